"""From asks to HTTP, the same for every dialect: wait or stream while the client is there, headers, the log line, and
to a request with a known Idempotency-Key the response that the first one got.

Errors before the first token are real HTTP statuses: the first delta is awaited before the response begins.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import structlog
from fastapi import Request
from starlette.responses import Response

from service.answers import Answer, Ask, Delta
from service.api.connection import EVENT_HEADERS, EventStream, while_connected
from service.api.deps import Service
from service.api.dialects import is_openai
from service.api.encoding import JSON, encode, event, json_response
from service.api.errors import Internal, body_of
from service.api.findings import found
from service.api.keys import Key, key_of
from service.api.places import owned
from service.api.recordings import Recording, Write, claimed, replay
from service.errors import DosirakError
from service.sessions import Finished

log = structlog.get_logger("dosirak.request")
Show = Callable[[Sequence[Answer]], object]
"""Whole answers in a dialect, as its JSON has them."""


async def completed(request: Request, service: Service, asks: Sequence[Ask], show: Show) -> Response:
    """`show` of the whole answers, in the order of `asks`. Raises ClientGone when the client did not wait for them."""
    asks = [owned(request, ask, service.settings.context_policy) for ask in asks]
    request.state.log["streamed"] = False
    if (key := key_of(request)) is not None:
        return await _completed_once(request, service, asks, show, key)
    answers = await while_connected(request.receive, service.answers.complete(asks))
    note(request, answers)
    return json_response(show(answers), headers=headers(answers[0]))


async def _completed_once(request: Request, service: Service, asks: Sequence[Ask], show: Show, key: Key) -> Response:
    whole = _Whole(asks, show)
    held = await while_connected(request.receive, claimed(service, key, asks))
    if isinstance(held, Finished):
        return replay(request, held)
    recording = Recording(held, request.state.request_id, len(asks), whole.write, whole.head)
    deltas = recording.deltas(service.answers.stream(asks, recording.record))
    body = await while_connected(request.receive, _joined(deltas, recording.write))
    note(request, whole.answers)
    return Response(body, headers=headers(whole.answers[0]), media_type=JSON)


async def _joined(deltas: AsyncGenerator[Delta, None], write: Write) -> bytes:
    async with aclosing(deltas):
        return b"".join([chunk async for delta in deltas for chunk in write(delta)])


class _Whole:
    """Whole answers as a stream shows them: nothing, until the last delta of the last."""

    def __init__(self, asks: Sequence[Ask], show: Show) -> None:
        self._asks = asks
        self._show = show
        self._ended: dict[str, Answer] = {}

    @property
    def answers(self) -> list[Answer]:
        return [self._ended[ask.id] for ask in self._asks]

    def write(self, delta: Delta) -> Iterable[bytes]:
        if delta.last:
            self._ended[delta.answer.ask.id] = delta.answer
            if len(self._ended) == len(self._asks):
                yield encode(self._show(self.answers))

    def head(self, first: Delta) -> dict[str, str]:
        return {**headers(self.answers[0]), "Content-Type": JSON}


async def streamed(
    request: Request, service: Service, asks: Sequence[Ask], write: Write, ending: bytes = b""
) -> Response:
    """The response that streams the deltas as `write` shows them, then `ending`."""
    asks = [owned(request, ask, service.settings.context_policy) for ask in asks]
    request.state.log["streamed"] = True
    if (key := key_of(request)) is None:
        return await _streamed(request, service.answers.stream(asks), write, ending)
    held = await while_connected(request.receive, claimed(service, key, asks))
    if isinstance(held, Finished):
        return replay(request, held)
    recording = Recording(held, request.state.request_id, len(asks), write, _event_head, ending)
    deltas = recording.deltas(service.answers.stream(asks, recording.record))
    return await _streamed(request, deltas, recording.write, b"")


def _event_head(first: Delta) -> dict[str, str]:
    return {**headers(first.answer), **EVENT_HEADERS}


async def _streamed(request: Request, deltas: AsyncGenerator[Delta, None], write: Write, ending: bytes) -> EventStream:
    first = await while_connected(request.receive, anext(deltas))
    return EventStream(_events(request, first, deltas, write, ending), headers(first.answer))


async def _events(
    request: Request, first: Delta, deltas: AsyncGenerator[Delta, None], write: Write, ending: bytes
) -> AsyncGenerator[bytes, None]:
    answers = {first.answer.ask.id: first.answer}
    try:
        async with aclosing(deltas):
            for chunk in write(first):
                yield chunk
            async for delta in deltas:
                answers[delta.answer.ask.id] = delta.answer
                for chunk in write(delta):
                    yield chunk
        if ending:
            yield ending
    except DosirakError as error:
        yield _failure(request, error)
    except Exception:
        log.exception("stream_failed", request_id=request.state.request_id)
        yield _failure(request, Internal())
    finally:
        note(request, list(answers.values()))


def _failure(request: Request, error: DosirakError) -> bytes:
    """The stream's last word: never silence."""
    request.state.log["code"] = error.code
    return event(body_of(error, request.state.request_id, is_openai(request.url.path)), "error")


def headers(answer: Answer) -> dict[str, str]:
    """What really served it, and what of the chat it saw."""
    receipt = answer.receipt
    return {
        "X-Model-Version": answer.manifest.reference,
        "X-Context-Truncated": "true" if receipt.truncated else "false",
        "X-Context-Dropped-Tokens": str(receipt.dropped_tokens),
    }


def note(request: Request, answers: Sequence[Answer]) -> None:
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
    for what in ("dropped", "summarised"):
        fields[f"messages_{what}"] = sum(getattr(receipt.counts, what) for receipt in receipts)
    fields["messages_recalled"] = sum(len(receipt.recalled) for receipt in receipts)
    matches = [each for answer in answers for each in found(answer).get("guard", ())]
    if matches:
        fields["guard"] = matches
    request.state.log.update(fields)
