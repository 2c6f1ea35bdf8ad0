"""From asks to HTTP, the same for every dialect: wait or stream while the client is there, headers, the log line.

Errors before the first token are real HTTP statuses: the first delta is awaited before the response begins.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import structlog
from fastapi import Request

from service.answers import Answer, Ask, Delta
from service.api.connection import EventStream, while_connected
from service.api.deps import Service
from service.api.dialects import is_openai
from service.api.encoding import event
from service.api.errors import Internal, body_of
from service.api.findings import found
from service.errors import DosirakError

log = structlog.get_logger("dosirak.request")
Write = Callable[[Delta], Iterable[bytes]]
"""The events of one delta in a dialect."""


async def completed(request: Request, service: Service, asks: Sequence[Ask]) -> list[Answer]:
    """The whole answers, in the order of `asks`. Raises ClientGone when the client did not wait for them."""
    try:
        answers = await while_connected(request.receive, service.answers.complete(_owned(request, asks)))
    finally:
        request.state.log["streamed"] = False
    note(request, answers)
    return answers


async def streamed(
    request: Request, service: Service, asks: Sequence[Ask], write: Write, ending: bytes = b""
) -> EventStream:
    """The response that streams the deltas as `write` shows them, then `ending`."""
    deltas = service.answers.stream(_owned(request, asks))
    request.state.log["streamed"] = True
    first = await while_connected(request.receive, anext(deltas))
    return EventStream(_events(request, first, deltas, write, ending), headers(first.answer))


def _owned(request: Request, asks: Sequence[Ask]) -> list[Ask]:
    """The one place that all dialects pass."""
    return [replace(ask, owner=request.state.owner) for ask in asks]


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
    matches = [each for answer in answers for each in found(answer).get("guard", ())]
    if matches:
        fields["guard"] = matches
    request.state.log.update(fields)
