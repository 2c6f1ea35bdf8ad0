"""An engine's script that answers by what the prompt says last, and holds each answer against the request's grammar."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from service.engine.protocol.messages import Request
from service.errors import Unavailable
from service.text.grammars import Grammar
from service.text.tokenizer import Tokenizer
from tests.grammars import fits

RETRY_AFTER: Final = 1.0
"""Longer than what clients wait by themselves before a first retry."""
Script = Callable[[Request, Tokenizer], list[int]]


def says(answers: Mapping[str, str | Sequence[str]]) -> Script:
    """Of the keys that a prompt holds, the one that stands last chooses the answers; the first that the request's
    grammar allows is given. A prompt without a key, or without such an answer, fails the request."""

    def script(request: Request, tokenizer: Tokenizer) -> list[int]:
        prompt = tokenizer.decode(list(request.token_ids), skip_special_tokens=False)
        key = max(answers, key=prompt.rfind)
        _hold(key in prompt, f"no answer to: {prompt}")
        known = answers[key]
        grammar = Grammar(request.params.grammar, "grammar")
        allowed = [
            each for each in ([known] if isinstance(known, str) else known) if not grammar.text or fits(grammar, each)
        ]
        _hold(allowed, f"{grammar.text} allows none of {known}")
        return [*tokenizer.encode(allowed[0], add_special_tokens=False), tokenizer.stop_token_ids[0]]

    return script


def calling(name: str, **arguments: Any) -> str:
    """A call as Hermes and Qwen write it, and as the repository's template does."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def failing_once(script: Script, word: str) -> Script:
    """The first request whose prompt holds `word` is turned away with `Retry-After`. One that comes again before that
    time has passed fails."""
    failed: list[float] = []

    def failing(request: Request, tokenizer: Tokenizer) -> list[int]:
        if word in tokenizer.decode(list(request.token_ids)):
            if not failed:
                failed.append(time.monotonic())
                raise Unavailable("planted", retry_after=RETRY_AFTER)
            waited = time.monotonic() - failed[0]
            _hold(waited >= RETRY_AFTER, f"asked again after {waited} s, and {RETRY_AFTER} s were named")
        return script(request, tokenizer)

    return failing


def _hold(fact: object, otherwise: str) -> None:
    """The server's log keeps no text, so pytest shows here what was wrong."""
    if not fact:
        print(otherwise)
        raise AssertionError(otherwise)
