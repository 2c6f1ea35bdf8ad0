"""This dialect is Anthropic's messages: one request for each body."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, Final

from service.api.anthropic.chat import chat_of, continues, turn_of
from service.api.anthropic.schemas import CountTokensBody, MessagesBody
from service.api.shared.chat_schemas import use_of
from service.api.shared.sampling import sampling_of
from service.context.budget import OPEN_RESERVE, ContextOptions
from service.context.prompt import Chat
from service.generation.request import GenerationRequest
from service.text.grammars import Grammar
from service.text.messages import Message
from service.text.reasoning import ReasoningUse
from service.text.tools import ToolUse

CHOICES: Final = {"any": "required", "tool": "required"}
"""OpenAI's word for the type of a `tool_choice`, where it is another one."""
DEFAULT_EFFORT: Final = "high"


def parse(body: MessagesBody) -> GenerationRequest:
    """Returns the request. `max_tokens` is an upper bound, as Anthropic's newer models have it: agents send the most
    that any model can give."""
    options = body.context.options() if body.context else ContextOptions()
    if options.reserve_output_tokens is None:
        options = replace(options, reserve_output_tokens=min(body.max_tokens, OPEN_RESERVE))
    turn = None if body.session_id is None else turn_of(body, body.session_id)
    return _request(
        body,
        turn.messages if turn else chat_of(body),
        max_new_tokens=body.max_tokens,
        context=options,
        **sampling_of(body, defaults={"temperature": 1.0}),
        seed=body.seed,
        stop=tuple(body.stop_sequences or ()),
        priority=body.priority or 0,
        deadline_ms=body.deadline_ms,
        user=body.user or "",
        turn=turn,
    )


def parse_count(body: CountTokensBody) -> GenerationRequest:
    """Returns a request whose prompt is that of `parse`, with nothing left out and no room for an answer."""
    context = ContextOptions(policy="refuse")
    return _request(body, chat_of(body), max_new_tokens=0, context=context)


def _request(body: CountTokensBody, messages: tuple[Message, ...], **more: Any) -> GenerationRequest:
    return GenerationRequest(
        id=f"msg_{uuid.uuid4().hex}",
        source=Chat(messages),
        model=body.model,
        documents=tuple(each.document() for each in body.documents or ()),
        grammar=_grammar(body),
        tools=_tools(body),
        reasoning=_reasoning(body),
        template_variables=tuple(sorted((body.chat_template_kwargs or {}).items())),
        continues=continues(body),
        **more,
    )


def _grammar(body: CountTokensBody) -> Grammar | None:
    if body.output_format is not None:
        return Grammar.of_json_schema(body.output_format.schema_, "output_format.schema")
    json_format = body.output_config and body.output_config.format
    return Grammar.of_json_schema(json_format.schema_, "output_config.format.schema") if json_format else None


def _tools(body: CountTokensBody) -> ToolUse | None:
    choice = body.tool_choice
    kind = choice.type if choice else "auto"
    return use_of(
        tuple(each.tool() for each in body.tools or ()),
        CHOICES.get(kind, kind),
        choice.name if choice else None,
        is_parallel=not (choice and choice.disable_parallel_tool_use),
    )


def _reasoning(body: CountTokensBody) -> ReasoningUse | None:
    kind = body.thinking.type if body.thinking else "adaptive"
    is_enabled = None if kind == "adaptive" else kind == "enabled"
    effort = (body.output_config.effort if body.output_config else None) or ""
    if is_enabled is None and not effort:
        return None
    is_default = effort in ("", DEFAULT_EFFORT)
    return ReasoningUse("thinking" if is_default else "output_config.effort", is_enabled, effort, is_default)
