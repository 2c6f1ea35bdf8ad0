"""This module writes Anthropic's messages and the events of their streams.

message_start ─▶ blocks ─▶ message_delta ─▶ message_stop
a block: content_block_start ─▶ content_block_delta, … ─▶ content_block_stop

Thinking, text and each call are blocks of their own. Only one block is open at a time, so what a token adds to the open
call goes out before its text, and calls that it begins after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pydantic_core import from_json

from service.api.anthropic.chat import shown_call
from service.api.http.encoding import event
from service.api.http.errors import ErrorDialect, body_of
from service.api.shared.serialiser import Serialiser, guard_field
from service.engine.protocol.messages import FinishReason
from service.errors import DosirakError
from service.generation.answer import Answer, Delta
from service.generation.delta import Call, CallDelta
from service.generation.output_sequence import OutputSequence
from service.text.arguments import INVALID

STOP_REASONS: Final = {FinishReason.STOP: "end_turn", FinishReason.CONTENT_FILTER: "refusal"}
"""Anthropic's word for a finish reason; for the others it is `max_tokens`."""
DETAILS: Final = frozenset({FinishReason.DEADLINE, FinishReason.ERROR})
"""Reasons that are also told in our own word."""


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


class MessageSerialiser(Serialiser):
    comment = _event("ping")

    def __init__(self, shows_thinking: bool = True) -> None:
        """Without `shows_thinking` its blocks have no text."""
        self._shows_thinking = shows_thinking
        self._signature = ""
        self._begun = False
        self._blocks = 0
        self._open: str | None = None  # the kind of the open block

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        [answer] = answers
        [sequence] = answer.best
        content = [*self._thought(answer, sequence), *_content(sequence)]
        return {**_head(answer), "content": content, **_stop(answer, sequence), **_end(answer)}

    def events(self, delta: Delta) -> Iterable[bytes]:
        answer = delta.answer
        if not self._begun:
            self._begun = True
            nothing: dict[str, Any] = {
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": _usage(answer),
            }
            yield _event("message_start", message={**_head(answer), **nothing})
        if delta.reasoning:
            yield from self._think(answer, delta.reasoning)
        begun = next((at for at, each in enumerate(delta.calls) if each.begun is not None), len(delta.calls))
        yield from self._call(delta.calls[:begun])
        if delta.text:
            yield from self._text(delta.text)
        yield from self._call(delta.calls[begun:])
        if delta.finish_reason is not None:
            yield from self._close()
            end = _stop(answer, delta.sequence)
            detail = {name: end.pop(name) for name in ("finish_detail",) if name in end}
            yield _event("message_delta", delta=end, **detail, **_end(answer))
            yield _event("message_stop")

    def failure(self, error: DosirakError, request_id: str) -> bytes:
        return event(body_of(error, request_id, ErrorDialect.ANTHROPIC), "error")

    def _thought(self, answer: Answer, sequence: OutputSequence) -> Iterator[dict[str, str]]:
        if sequence.reasoning:
            text = sequence.reasoning if self._shows_thinking else ""
            yield {"type": "thinking", "thinking": text, "signature": _signature(answer)}

    def _think(self, answer: Answer, text: str) -> Iterator[bytes]:
        if self._open != "thinking":
            self._signature = _signature(answer)
            yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
        if self._shows_thinking:
            yield self._delta(type="thinking_delta", thinking=text)

    def _text(self, text: str) -> Iterator[bytes]:
        if self._open != "text":
            yield from self._begin({"type": "text", "text": ""})
        yield self._delta(type="text_delta", text=text)

    def _call(self, deltas: Sequence[CallDelta]) -> Iterator[bytes]:
        for each in deltas:
            if each.begun is not None:
                yield from self._begin(_tool_use(each.begun, {}))
            if each.arguments:
                yield self._delta(type="input_json_delta", partial_json=each.arguments)

    def _begin(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self._close()
        self._open = block["type"]
        self._blocks += 1
        yield _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _delta(self, **delta: str) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open == "thinking":
            yield self._delta(type="signature_delta", signature=self._signature)
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._blocks - 1)


def _head(answer: Answer) -> dict[str, Any]:
    return {"id": answer.request.id, "type": "message", "role": "assistant", "model": answer.manifest.reference}


def _signature(answer: Answer) -> str:
    """Returns which version thought. Clients that send thinking back want a signature; nothing here rests on it."""
    return answer.manifest.digest


def _content(sequence: OutputSequence) -> Iterator[dict[str, Any]]:
    """Yields the blocks in the order of a stream."""
    text, start = sequence.text, 0
    for call in sequence.calls:
        if call.at > start:
            yield {"type": "text", "text": text[start : call.at]}
        start = call.at
        yield _tool_use(call, _input(call.arguments))
    if text[start:]:
        yield {"type": "text", "text": text[start:]}


def _tool_use(call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": shown_call(call.id), "name": call.name, "input": arguments}


def _input(arguments: str) -> dict[str, Any]:
    """Returns the input as Anthropic's own client reads it of a stream: of one that a limit cut, what is whole."""
    try:
        value = from_json(arguments or "{}", allow_partial=True, allow_inf_nan=False)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {INVALID: arguments}


def _stop(answer: Answer, sequence: OutputSequence) -> dict[str, Any]:
    reason = sequence.finish_reason or FinishReason.ABORT
    word = STOP_REASONS.get(reason, "max_tokens")
    if sequence.stop_string is not None:
        word = "stop_sequence"
    elif reason is FinishReason.STOP and sequence.has_whole_calls:
        word = "tool_use"
    elif reason is FinishReason.LENGTH and answer.max_new_tokens < (answer.request.max_new_tokens or 0):
        word = "model_context_window_exceeded"
    detail = {"finish_detail": reason.value} if reason in DETAILS else {}
    return {"stop_reason": word, "stop_sequence": sequence.stop_string, **detail}


def _end(answer: Answer) -> dict[str, Any]:
    """Returns what the answer cost, with our own fields."""
    return {
        "usage": _usage(answer),
        "digest": answer.manifest.short_digest,
        "context": answer.context(),
        "timings": answer.timings(),
        **({"session_id": answer.request.turn.session} if answer.request.turn else {}),
        **guard_field(answer),
    }


def _usage(answer: Answer) -> dict[str, Any]:
    """Returns exact counts; `input_tokens` are those that no cache had, as Anthropic counts them."""
    usage = answer.usage()
    return {
        "input_tokens": usage["prompt_tokens"] - usage["cached_tokens"],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage["cached_tokens"],
        "output_tokens": usage["completion_tokens"],
        **({"output_tokens_details": {"thinking_tokens": answer.reasoning_tokens}} if answer.reads_reasoning else {}),
        "service_tier": "standard",
    }
