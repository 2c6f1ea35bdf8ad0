"""Requests become HTTP responses, the same for every dialect: wait or stream while the client is there, headers, the
log line, and to a request with a known Idempotency-Key the response that the first one got.

Errors before the first token are real HTTP statuses: the first delta is awaited before the response begins.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import structlog
from fastapi import Request
from starlette.responses import Response

from service.answers import Answer, Delta, GenerationRequest
from service.api.connection import EVENT_HEADERS, EventStream, while_connected
from service.api.deps import Service
from service.api.dialects import is_openai
from service.api.encoding import JSON, encode, event, json_response
from service.api.errors import Internal, body_of
from service.api.guard_findings import found
from service.api.idempotency import IdempotencyKey, key_of
from service.api.session_turns import owned
from service.api.stored_responses import ResponseRecorder, Write, claimed, replay
from service.errors import DosirakError
from service.sessions import Finished

log = structlog.get_logger("dosirak.request")
Show = Callable[[Sequence[Answer]], object]
"""Whole answers in a dialect, as its JSON has them."""


async def completed(http: Request, service: Service, requests: Sequence[GenerationRequest], show: Show) -> Response:
    """`show` of the whole answers, in the order of `requests`. Raises ClientGone when the client left."""
    requests = [owned(http, request, service.settings.context_policy) for request in requests]
    http.state.log["streamed"] = False
    if (key := key_of(http)) is not None:
        return await _completed_once(http, service, requests, show, key)
    answers = await while_connected(http.receive, service.answers.complete(requests))
    note(http, answers)
    return json_response(show(answers), headers=headers(answers[0]))


async def _completed_once(
    http: Request, service: Service, requests: Sequence[GenerationRequest], show: Show, key: IdempotencyKey
) -> Response:
    whole = _Whole(requests, show)
    held = await while_connected(http.receive, claimed(service, key, requests))
    if isinstance(held, Finished):
        return replay(http, held)
    recording = ResponseRecorder(held, http.state.request_id, len(requests), whole.write, whole.head)
    deltas = recording.deltas(service.answers.stream(requests, recording.record))
    body = await while_connected(http.receive, _joined(deltas, recording.write))
    note(http, whole.answers)
    return Response(body, headers=headers(whole.answers[0]), media_type=JSON)


async def _joined(deltas: AsyncGenerator[Delta, None], write: Write) -> bytes:
    async with aclosing(deltas):
        return b"".join([chunk async for delta in deltas for chunk in write(delta)])


class _Whole:
    """Whole answers as a stream shows them: nothing, until the last delta of the last."""

    def __init__(self, requests: Sequence[GenerationRequest], show: Show) -> None:
        self._requests = requests
        self._show = show
        self._ended: dict[str, Answer] = {}

    @property
    def answers(self) -> list[Answer]:
        return [self._ended[request.id] for request in self._requests]

    def write(self, delta: Delta) -> Iterable[bytes]:
        if delta.last:
            self._ended[delta.answer.request.id] = delta.answer
            if len(self._ended) == len(self._requests):
                yield encode(self._show(self.answers))

    def head(self, first: Delta) -> dict[str, str]:
        return {**headers(self.answers[0]), "Content-Type": JSON}


async def streamed(
    http: Request, service: Service, requests: Sequence[GenerationRequest], write: Write, ending: bytes = b""
) -> Response:
    """The response that streams the deltas as `write` shows them, then `ending`."""
    requests = [owned(http, request, service.settings.context_policy) for request in requests]
    http.state.log["streamed"] = True
    if (key := key_of(http)) is None:
        return await _streamed(http, service.answers.stream(requests), write, ending)
    held = await while_connected(http.receive, claimed(service, key, requests))
    if isinstance(held, Finished):
        return replay(http, held)
    recording = ResponseRecorder(held, http.state.request_id, len(requests), write, _event_head, ending)
    deltas = recording.deltas(service.answers.stream(requests, recording.record))
    return await _streamed(http, deltas, recording.write, b"")


def _event_head(first: Delta) -> dict[str, str]:
    return {**headers(first.answer), **EVENT_HEADERS}


async def _streamed(http: Request, deltas: AsyncGenerator[Delta, None], write: Write, ending: bytes) -> EventStream:
    first = await while_connected(http.receive, anext(deltas))
    return EventStream(_events(http, first, deltas, write, ending), headers(first.answer))


async def _events(
    http: Request, first: Delta, deltas: AsyncGenerator[Delta, None], write: Write, ending: bytes
) -> AsyncGenerator[bytes, None]:
    answers = {first.answer.request.id: first.answer}
    try:
        async with aclosing(deltas):
            for chunk in write(first):
                yield chunk
            async for delta in deltas:
                answers[delta.answer.request.id] = delta.answer
                for chunk in write(delta):
                    yield chunk
        if ending:
            yield ending
    except DosirakError as error:
        yield _failure(http, error)
    except Exception:
        log.exception("stream_failed", request_id=http.state.request_id)
        yield _failure(http, Internal())
    finally:
        note(http, list(answers.values()))


def _failure(http: Request, error: DosirakError) -> bytes:
    """The stream's last word: never silence."""
    http.state.log["code"] = error.code
    return event(body_of(error, http.state.request_id, is_openai(http.url.path)), "error")


def headers(answer: Answer) -> dict[str, str]:
    """What really served it, and what of the chat it saw."""
    receipt = answer.receipt
    return {
        "X-Model-Version": answer.manifest.reference,
        "X-Context-Truncated": "true" if receipt.truncated else "false",
        "X-Context-Dropped-Tokens": str(receipt.dropped_tokens),
    }


def note(http: Request, answers: Sequence[Answer]) -> None:
    """Counts and times for the log line; never a prompt, never an answer."""
    usage = [answer.usage() for answer in answers]
    fields: dict[str, Any] = {
        "model": answers[0].manifest.reference,
        "digest": answers[0].manifest.short_digest,
        "finish_reason": answers[0].finish_reason.value,
        **answers[0].timings(),
    }
    for count in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        fields[count] = sum(each[count] for each in usage)
    receipts = [answer.receipt for answer in answers]
    fields["context_policy"] = receipts[0].policy
    fields["dropped_tokens"] = sum(receipt.dropped_tokens for receipt in receipts)
    for what in ("dropped", "summarised", "recalled"):
        fields[f"messages_{what}"] = sum(len(getattr(receipt, what)) for receipt in receipts)
    matches = [each for answer in answers for each in found(answer).get("guard", ())]
    if matches:
        fields["guard"] = matches
    http.state.log.update(fields)
