"""This module makes HTTP responses of requests, the same way for every dialect: whole, or streamed while the client is
connected. A request with a known Idempotency-Key gets the response of the first request with it. What a dialect keeps
of an answer is stored before its client has all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from fastapi import Request
from starlette.responses import Response

from service.api.answering.callers import for_caller
from service.api.answering.notes import Generation, headers, note, whole_headers
from service.api.answering.stored_responses import (
    AnswerStore,
    AnswerWriter,
    Claimed,
    ResponseWriter,
    Writer,
    claimed,
    replay,
)
from service.api.answering.streaming import Streaming
from service.api.deps import Service
from service.api.http.connection import stream_headers, while_connected
from service.api.http.encoding import JSON, encode
from service.api.http.headers import key_of
from service.api.shared.serialiser import Serialiser, WholeSerialiser
from service.generation.answer import Answer, Delta
from service.generation.request import GenerationRequest
from service.storage.sessions import Finished

MANY: Final = 16
"""The body of more answers is made in a thread: streams wait for the event loop."""


async def respond(
    http: Request,
    service: Service,
    requests: Sequence[GenerationRequest],
    serialiser: Serialiser,
    *,
    stream: bool,
    store: AnswerStore | None = None,
) -> Response:
    """Returns the answers to `requests`, in their order, as `serialiser` writes them. With `store` the answer, of one
    request, is stored before its last bytes go out. Raises ClientGone when the client left."""
    if not stream:
        return await respond_whole(http, service, requests, serialiser, store)
    requests = [replace(request, is_streamed=True, keeps_top=store is not None) for request in requests]
    begun = await _begun(http, service, requests)
    if isinstance(begun, Response):
        return begun
    generation, claim = begun
    writer = _storing(http, generation, _StreamWriter(serialiser), claim, store)
    deltas = _deltas(service, generation, writer)
    return await Streaming(http, deltas, generation.opening, serialiser, writer).response()


async def respond_whole(
    http: Request,
    service: Service,
    requests: Sequence[GenerationRequest],
    serialiser: WholeSerialiser,
    store: AnswerStore | None = None,
) -> Response:
    """Works as `respond`, for answers that are not streamed."""
    begun = await _begun(http, service, requests)
    if isinstance(begun, Response):
        return begun
    generation, claim = begun
    whole = _WholeWriter(generation.requests, serialiser)
    writer = _storing(http, generation, whole, claim, store)
    body = await while_connected(http.receive, _joined(_deltas(service, generation, writer), writer))
    note(http, whole.answers)
    return Response(body, headers=whole_headers(whole.answers[0]), media_type=JSON)


async def _begun(
    http: Request, service: Service, requests: Sequence[GenerationRequest]
) -> tuple[Generation, Claimed | None] | Response:
    """Returns the generation, and the claim on its Idempotency-Key if it has one; or the response of the first request
    with that key."""
    requests = [for_caller(http, request, service.settings.context_policy) for request in requests]
    generation = Generation.begin(http, requests)
    http.state.log["streamed"] = generation.is_streamed
    if (key := key_of(http)) is None:
        return generation, None
    service.answers.refuse_more_than_all(requests)  # what fails behind the claim must give it back
    claim = await while_connected(http.receive, claimed(service, key, requests))
    return await replay(http, claim) if isinstance(claim, Finished) else (generation, claim)


def _storing(
    http: Request, generation: Generation, writer: Writer, claim: Claimed | None, store: AnswerStore | None
) -> Writer:
    """Returns `writer`, around which the response is stored, or the answer, or both, or neither."""
    if claim is not None:
        return ResponseWriter(writer, claim, (http.state.request_id, len(generation.requests)), store)
    return AnswerWriter(writer, store) if store else writer


def _deltas(service: Service, generation: Generation, writer: Writer) -> AsyncGenerator[Delta, None]:
    return writer.deltas(service.answers.stream(generation.requests, writer.record, generation.opening))


async def _joined(deltas: AsyncGenerator[Delta, None], writer: Writer) -> bytes:
    chunks = list[bytes]()
    async with aclosing(deltas):
        async for delta in deltas:
            await writer.prepare(delta)
            chunks += writer.write(delta)
    return b"".join(chunks)


class _WholeWriter(Writer):
    """Writes whole answers: nothing before the very last delta."""

    def __init__(self, requests: Sequence[GenerationRequest], serialiser: WholeSerialiser) -> None:
        self._requests = requests
        self._serialiser = serialiser
        self._ended: dict[str, Answer] = {}
        self._body: bytes | None = None

    @property
    def answers(self) -> list[Answer]:
        return [self._ended[request.id] for request in self._requests]

    async def prepare(self, delta: Delta) -> None:
        if delta.last and len(self._ended) + 1 == len(self._requests) > MANY:
            self._body = await asyncio.to_thread(self._made, delta)

    def write(self, delta: Delta) -> Iterable[bytes]:
        if self._body is None:
            self._body = self._made(delta)
        return () if self._body is None else (self._body,)

    def _made(self, delta: Delta) -> bytes | None:
        """Returns the body with the very last delta, and None before."""
        self._serialiser.watch(delta)
        if delta.last:
            self._ended[delta.answer.request.id] = delta.answer
        return encode(self._serialiser.whole(self.answers)) if len(self._ended) == len(self._requests) else None

    def head(self, first: Delta) -> dict[str, str]:
        return {**whole_headers(self.answers[0]), "Content-Type": JSON}


class _StreamWriter(Writer):
    """Writes the events of each delta."""

    def __init__(self, serialiser: Serialiser) -> None:
        self.ending = serialiser.ending
        self._serialiser = serialiser

    def write(self, delta: Delta) -> Iterable[bytes]:
        return self._serialiser.events(delta)

    def head(self, first: Delta) -> dict[str, str]:
        return {**headers(first.answer), **stream_headers(self._serialiser.media_type)}
