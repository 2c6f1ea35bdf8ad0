"""This module writes a drawn request as the body that its route takes. It draws nothing."""

from __future__ import annotations

from typing import Any

from service.evaluation.scenarios.requests import Drawn


def body(drawn: Drawn) -> dict[str, Any]:
    kind = drawn.kind
    model = {} if kind.model is None else {"model": kind.model}
    end = {"ignore_eos": True} if kind.ignore_eos else {}
    if kind.route in ("/generate_stream", "/generate"):
        parameters = {"max_new_tokens": drawn.max_new_tokens, "temperature": kind.temperature, **end}
        return {**model, "messages": drawn.chat, "parameters": parameters}
    asked = {**model, "max_tokens": drawn.max_new_tokens, "temperature": kind.temperature, **end}
    if kind.route == "/v1/chat/completions":
        return {**asked, "messages": drawn.chat, "stream": True, "stream_options": {"include_usage": True}}
    return {**asked, "prompt": [drawn.chat[-1]["content"], *drawn.others]}
