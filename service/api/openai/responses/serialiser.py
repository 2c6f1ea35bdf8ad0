"""This module writes answers as OpenAI's responses: whole, or as numbered events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from service.api.http.encoding import event
from service.api.http.errors import ErrorDialect, body_of
from service.api.openai.responses.conversations import conversation_id
from service.api.openai.responses.output import Output
from service.api.openai.responses.schemas import ResponseBody
from service.api.shared.serialiser import Serialiser, guard_field
from service.engine.protocol.messages import FinishReason
from service.errors import DosirakError
from service.generation.answer import Answer, Delta
from service.generation.request import SessionTurn

Json = dict[str, Any]
CUT: Final = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.DEADLINE: "max_output_tokens",
    FinishReason.ERROR: "max_output_tokens",
    FinishReason.CONTENT_FILTER: "content_filter",
}
"""OpenAI's word for why a response is incomplete."""
OURS: Final = (FinishReason.DEADLINE, FinishReason.ERROR)
"""Reasons that are also told in our own word, for OpenAI has none."""


class ResponseSerialiser(Serialiser):
    """`body` is echoed in the response, as OpenAI does. `turn` is the one in its conversation, if it has one."""

    def __init__(self, body: ResponseBody, turn: SessionTurn | None = None) -> None:
        self._body = body
        self._turn = turn
        self._output = Output(turn.ids[-1] if turn else None)
        self._events = 0
        self._answer: Answer | None = None
        self.finished: Json | None = None
        """The whole response, once it is written."""

    def watch(self, delta: Delta) -> None:
        for _ in self._steps(delta):
            pass

    def whole(self, answers: Sequence[Answer]) -> Json:
        return self.response(answers[0])

    def events(self, delta: Delta) -> Iterable[bytes]:
        first = self._answer is None
        self._answer = delta.answer
        if first:
            for kind in ("created", "in_progress"):
                yield self._numbered({"type": f"response.{kind}", "response": self._begun(delta.answer)})
        for step in self._steps(delta):
            yield self._numbered(step)
        if delta.last:
            response = self.response(delta.answer)
            yield self._numbered({"type": f"response.{response['status']}", "response": response})

    def failure(self, error: DosirakError, request_id: str) -> bytes:
        """Returns OpenAI's two last events: the error, and the response that failed, where one has begun."""
        told = body_of(error, request_id, ErrorDialect.OPENAI)["error"]
        shown = self._numbered({"type": "error", **{name: told[name] for name in ("code", "message", "param")}})
        if self._answer is None:
            return shown
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        failed = {"status": "failed", "error": {"code": code, "message": error.message}}
        response = {**self._begun(self._answer), **failed, "output": self._output.shown()}
        return shown + self._numbered({"type": "response.failed", "response": response})

    def response(self, answer: Answer) -> Json:
        """Returns the finished response, which is made once."""
        if self.finished is None:
            self.finished = self._ended(answer)
        return self.finished

    def _ended(self, answer: Answer) -> Json:
        cut = CUT.get(answer.finish_reason)
        detail: Json = {"finish_detail": answer.finish_reason.value} if answer.finish_reason in OURS else {}
        return {
            **self._begun(answer),
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": cut} if cut else None,
            "output": self._output.shown(),
            "usage": _usage(answer),
            **detail,
            "digest": answer.manifest.short_digest,
            "context": answer.context(),
            "timings": answer.timings(),
            **guard_field(answer),
        }

    def _steps(self, delta: Delta) -> Iterator[Json]:
        yield from self._output.add(delta)
        if delta.last:
            yield from self._output.end(delta, "incomplete" if delta.answer.finish_reason in CUT else "completed")

    def _numbered(self, step: Json) -> bytes:
        number, self._events = self._events, self._events + 1
        return event({**step, "sequence_number": number}, step["type"])

    def _begun(self, answer: Answer) -> Json:
        """Returns the response before its first item."""
        asked = self._body
        shown = asked.model_dump(mode="json", by_alias=True, exclude_none=True, include=ECHOED)
        window = answer.receipt.policy != "refuse"
        return {
            "id": answer.request.id,
            "object": "response",
            "created_at": answer.created,
            "status": "in_progress",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "model": answer.manifest.reference,
            "output": [],
            "usage": None,
            "background": False,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "conversation": {"id": conversation_id(self._turn.session)} if self._turn else None,
            "previous_response_id": asked.previous_response_id,
            "reasoning": {"effort": asked.reasoning.effort if asked.reasoning else None, "summary": None},
            "service_tier": "default",
            "store": asked.is_stored,
            "temperature": answer.request.sampling.temperature,
            "text": {"format": {"type": "text"}, **shown.get("text", {}), "verbosity": "medium"},
            "tool_choice": shown.get("tool_choice", "auto"),
            "tools": shown.get("tools", []),
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": answer.request.sampling.top_p,
            "truncation": "auto" if window else "disabled",
            "user": asked.user,
            "safety_identifier": asked.safety_identifier,
            "prompt_cache_key": asked.prompt_cache_key,
        }


ECHOED: Final = {"text", "tools", "tool_choice"}


def _usage(answer: Answer) -> Json:
    """Returns OpenAI's counts. What is not found in the cache is written to it."""
    counts = answer.usage()
    cached = counts["cached_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": counts["prompt_tokens"] - cached},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": counts.get("reasoning_tokens", 0)},
        "total_tokens": counts["total_tokens"],
    }
