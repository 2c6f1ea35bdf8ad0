"""This module makes HTTP responses of requests, the same way for every dialect: whole, or streamed while the client is
connected. A request with a known Idempotency-Key gets the response of the first request with it. What a dialect keeps
of an answer is kept before its client has all of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

from fastapi import Request
from starlette.responses import Response

from service.api.answering.callers import for_caller
from service.api.answering.keeping import Keep, Keeper, Write
from service.api.answering.notes import Generation, headers, note
from service.api.answering.stored_responses import Head, Held, ResponseRecorder, claimed, replay
from service.api.answering.streaming import Streaming
from service.api.deps import Service
from service.api.http.connection import stream_headers, while_connected
from service.api.http.encoding import JSON, encode
from service.api.http.idempotency import key_of
from service.api.shared.serialiser import Serialiser, WholeSerialiser
from service.generation.answer import Answer, Delta
from service.generation.request import GenerationRequest
from service.storage.sessions import Finished


async def respond(
    http: Request,
    service: Service,
    requests: Sequence[GenerationRequest],
    serialiser: Serialiser,
    *,
    stream: bool,
    keep: Keep | None = None,
) -> Response:
    """Returns the answers to `requests`, in their order, as `serialiser` writes them. `keep` says how the answer, of
    one request, is stored before its last bytes go out. Raises ClientGone when the client left."""
    begun = await _begun(http, service, requests, stream=stream)
    if isinstance(begun, Response):
        return begun
    answer = _streamed if stream else _completed
    return await answer(http, service, begun[0], serialiser, begun[1], keep)


async def respond_whole(
    http: Request, service: Service, requests: Sequence[GenerationRequest], serialiser: WholeSerialiser
) -> Response:
    """Works as `respond`, for answers that are never streamed."""
    begun = await _begun(http, service, requests, stream=False)
    return begun if isinstance(begun, Response) else await _completed(http, service, begun[0], serialiser, begun[1])


async def _begun(
    http: Request, service: Service, requests: Sequence[GenerationRequest], *, stream: bool
) -> tuple[Generation, Held | None] | Response:
    """Returns the generation, and the claim on its Idempotency-Key if it has one; or the response of the first request
    with that key."""
    requests = [for_caller(http, request, service.settings.context_policy) for request in requests]
    http.state.log["streamed"] = stream
    generation = Generation.begin(http, requests, stream=stream)
    held = None
    if (key := key_of(http)) is not None:
        claim = await while_connected(http.receive, claimed(service, key, requests))
        if isinstance(claim, Finished):
            return replay(http, claim)
        held = claim
    return generation, held


async def _completed(
    http: Request,
    service: Service,
    generation: Generation,
    serialiser: WholeSerialiser,
    held: Held | None,
    keep: Keep | None = None,
) -> Response:
    whole = _Whole(generation.requests, serialiser)
    writer = _writer(http, generation, whole.write, whole.head, (held, keep))
    deltas = _deltas(service, generation, writer)
    body = await while_connected(http.receive, _joined(deltas, writer.write if writer else whole.write))
    note(http, whole.answers)
    return Response(body, headers=headers(whole.answers[0]), media_type=JSON)


def _writer(
    http: Request,
    generation: Generation,
    write: Write,
    head: Head,
    stored: tuple[Held | None, Keep | None],
    ending: bytes = b"",
) -> ResponseRecorder | Keeper | None:
    """Returns what stores the response, or the answer, or both; None where nothing is stored."""
    held, keep = stored
    if held is not None:
        request = http.state.request_id, len(generation.requests)
        return ResponseRecorder(held, request, write, head, keep, ending)
    return Keeper(write, keep) if keep else None


def _deltas(
    service: Service, generation: Generation, writer: ResponseRecorder | Keeper | None
) -> AsyncGenerator[Delta, None]:
    record = writer.record if isinstance(writer, ResponseRecorder) else None
    deltas = service.answers.stream(generation.requests, record, generation.opening)
    return writer.deltas(deltas) if writer else deltas


async def _joined(deltas: AsyncGenerator[Delta, None], write: Write) -> bytes:
    async with aclosing(deltas):
        return b"".join([chunk async for delta in deltas for chunk in write(delta)])


class _Whole:
    """Writes whole answers through the interface of a stream: nothing before the very last delta."""

    def __init__(self, requests: Sequence[GenerationRequest], serialiser: WholeSerialiser) -> None:
        self._requests = requests
        self._serialiser = serialiser
        self._ended: dict[str, Answer] = {}

    @property
    def answers(self) -> list[Answer]:
        return [self._ended[request.id] for request in self._requests]

    def write(self, delta: Delta) -> Iterable[bytes]:
        self._serialiser.watch(delta)
        if delta.last:
            self._ended[delta.answer.request.id] = delta.answer
            if len(self._ended) == len(self._requests):
                yield encode(self._serialiser.whole(self.answers))

    def head(self, first: Delta) -> dict[str, str]:
        return {**headers(self.answers[0]), "Content-Type": JSON}


async def _streamed(
    http: Request,
    service: Service,
    generation: Generation,
    serialiser: Serialiser,
    held: Held | None,
    keep: Keep | None,
) -> Response:
    def head(first: Delta) -> dict[str, str]:
        return {**headers(first.answer), **stream_headers(serialiser.media_type)}

    writer = _writer(http, generation, serialiser.events, head, (held, keep), serialiser.ending)
    deltas = _deltas(service, generation, writer)
    return await Streaming(http, deltas, generation.opening, serialiser, writer).response()
