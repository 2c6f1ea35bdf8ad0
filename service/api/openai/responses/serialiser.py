"""This module writes answers as OpenAI's responses: whole, or as numbered events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from service.api.http.encoding import encode, event
from service.api.http.errors import ErrorDialect, body_of
from service.api.openai.responses.conversations import conversation_id
from service.api.openai.responses.output import Output
from service.api.openai.responses.schemas import ResponseBody
from service.api.shared.serialiser import Serialiser, finish_detail, guard_field
from service.engine.protocol.messages import FinishReason
from service.errors import DosirakError
from service.generation.answer import Answer, Delta
from service.generation.request import GenerationRequest

Json = dict[str, Any]
CUT: Final = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.DEADLINE: "max_output_tokens",
    FinishReason.ERROR: "max_output_tokens",
    FinishReason.CONTENT_FILTER: "content_filter",
}
"""OpenAI's word for why a response is incomplete."""


class ResponseSerialiser(Serialiser):
    """`body` is echoed in the response to `request`, as OpenAI does. `model` is what a failure names that comes before
    the version is known."""

    def __init__(self, body: ResponseBody, request: GenerationRequest, model: str = "") -> None:
        self._body = body
        self._request = request
        self._model = model
        self._output = Output(request.turn.ids[-1] if request.turn else request.id)
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
            yield self._numbered({"type": "response.created", "response": self._begun()})
            yield self._numbered({"type": "response.in_progress", "response": self._begun()})
        for step in self._steps(delta):
            yield self._numbered(step)
        if delta.last:
            response = self.response(delta.answer)
            yield self._numbered({"type": f"response.{response['status']}", "response": response})

    def failure(self, error: DosirakError, request_id: str) -> bytes:
        """Returns OpenAI's two last events: the error, and the response that failed. Clients raise on the second, and
        read none before a response was created."""
        begun = self._begun()
        created = self._numbered({"type": "response.created", "response": begun}) if self._answer is None else b""
        details = body_of(error, request_id, ErrorDialect.RESPONSES)["error"]
        shown = self._numbered({"type": "error", **{name: details[name] for name in ("code", "message", "param")}})
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        failed = {"status": "failed", "error": {"code": code, "message": error.message}}
        response = {**begun, **failed, "output": [item for item in self._output.shown() if _is_text(item)]}
        return created + shown + self._numbered({"type": "response.failed", "response": response})

    def response(self, answer: Answer) -> Json:
        """Returns the finished response, which is made once."""
        self._answer = answer
        if self.finished is None:
            self.finished = self._ended(answer)
        return self.finished

    def _ended(self, answer: Answer) -> Json:
        cut = _cut(answer)
        return {
            **self._begun(),
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": cut} if cut else None,
            "output": self._output.shown(),
            "usage": _usage(answer),
            **finish_detail(answer.finish_reason),
            "digest": answer.manifest.short_digest,
            "context": answer.context(),
            "timings": answer.timings(),
            **guard_field(answer),
        }

    def _steps(self, delta: Delta) -> Iterator[Json]:
        yield from self._output.add(delta)
        if delta.last:
            yield from self._output.end(delta, "incomplete" if _cut(delta.answer) else "completed")

    def _numbered(self, step: Json) -> bytes:
        number, self._events = self._events, self._events + 1
        return event({**step, "sequence_number": number}, step["type"])

    def _begun(self) -> Json:
        """Returns the response before its first item."""
        body, answer = self._body, self._answer
        request = answer.request if answer else self._request
        shown = body.model_dump(mode="json", by_alias=True, exclude_none=True, include=ECHOED)
        window = answer.receipt.policy != "refuse" if answer else body.truncation == "auto"
        return {
            "id": request.id,
            "object": "response",
            "created_at": answer.created if answer else int(time.time()),
            "status": "in_progress",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "model": answer.manifest.reference if answer else self._model,
            "output": [],
            "usage": None,
            "background": False,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "conversation": {"id": conversation_id(request.turn.session)} if request.turn else None,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "service_tier": "default",
            "store": body.is_stored,
            "temperature": request.sampling.temperature,
            "text": {"format": {"type": "text"}, **shown.get("text", {}), "verbosity": "medium"},
            "tool_choice": shown.get("tool_choice", "auto"),
            "tools": shown.get("tools", []),
            "top_logprobs": body.top_logprobs or 0,
            "top_p": request.sampling.top_p,
            "truncation": "auto" if window else "disabled",
            "user": body.user,
            "safety_identifier": body.safety_identifier,
            "prompt_cache_key": body.prompt_cache_key,
        }


ECHOED: Final = {"text", "tools", "tool_choice"}


def _is_text(item: Json) -> bool:
    """Whether an item can be sent. A failure may be that an item cannot."""
    try:
        encode(item)
    except UnicodeEncodeError:
        return False
    return True


def _cut(answer: Answer) -> str | None:
    """Returns OpenAI's word for why the response is incomplete; also where the model ended inside of a call."""
    sequence = answer.best[0]
    if sequence.calls and not sequence.has_whole_calls:
        return CUT.get(answer.finish_reason, "max_output_tokens")
    return CUT.get(answer.finish_reason)


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
