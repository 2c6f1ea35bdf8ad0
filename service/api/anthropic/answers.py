"""This module writes Anthropic's messages and the events of their streams.

message_start ─▶ blocks ─▶ message_delta ─▶ message_stop
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from service.api.anthropic.blocks import Blocks
from service.api.http.encoding import event
from service.api.http.errors import ErrorDialect, body_of
from service.api.shared.serialiser import Serialiser, finish_detail, guard_field
from service.engine.protocol.messages import FinishReason
from service.errors import DosirakError
from service.generation.answer import Answer, Delta
from service.generation.output_sequence import OutputSequence

STOP_REASONS: Final = {FinishReason.STOP: "end_turn", FinishReason.CONTENT_FILTER: "refusal"}
"""Anthropic's word for a finish reason; for the others it is `max_tokens`."""


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


class MessageSerialiser(Serialiser):
    comment = _event("ping")

    def __init__(self, shows_thinking: bool = True) -> None:
        """Without `shows_thinking` the blocks of thinking have no text."""
        self._blocks = Blocks(shows_thinking)
        self._begun = False

    def watch(self, delta: Delta) -> None:
        for _ in self._blocks.add(delta):
            pass

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        [answer] = answers
        [sequence] = answer.best
        return {**_head(answer), "content": self._blocks.whole(), **_stop(answer, sequence), **_end(answer)}

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
        for step in self._blocks.add(delta):
            yield event(step, step["type"])
        if delta.finish_reason is not None:
            end = _stop(answer, delta.sequence)
            detail = {name: end.pop(name) for name in ("finish_detail",) if name in end}
            yield _event("message_delta", delta=end, **detail, **_end(answer))
            yield _event("message_stop")

    def failure(self, error: DosirakError, request_id: str) -> bytes:
        return event(body_of(error, request_id, ErrorDialect.ANTHROPIC), "error")


def _head(answer: Answer) -> dict[str, Any]:
    return {"id": answer.request.id, "type": "message", "role": "assistant", "model": answer.manifest.reference}


def _stop(answer: Answer, sequence: OutputSequence) -> dict[str, Any]:
    reason = sequence.finish_reason or FinishReason.ABORT
    word = STOP_REASONS.get(reason, "max_tokens")
    if sequence.stop_string is not None:
        word = "stop_sequence"
    elif reason is FinishReason.STOP and sequence.has_whole_calls:
        word = "tool_use"
    elif reason is FinishReason.LENGTH and answer.max_new_tokens < (answer.request.max_new_tokens or 0):
        word = "model_context_window_exceeded"
    return {"stop_reason": word, "stop_sequence": sequence.stop_string, **finish_detail(reason)}


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
