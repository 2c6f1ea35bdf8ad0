"""This module stores what a response needs stored, before its last bytes go out: no client reads an end that is not
stored. That is an answer, where its dialect keeps answers, and the whole response of each `Idempotency-Key`: it is made
once, and every repetition gets the same bytes.

    key ─▶ first: ResponseWriter ─▶ deltas, the claim renewed meanwhile ─▶ all bytes kept ─▶ the last delta goes out
                                                                          with what the dialect keeps of the answer
      └──▶ a repetition waits for the first and gets what was kept; where nothing was, it is the first

A response that ends without a whole answer is not kept. The module knows no dialect: a `Writer` gives the bytes.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response

from service.api.deps import Service
from service.api.http.headers import IdempotencyKey
from service.errors import Conflict, DosirakError, Unavailable
from service.generation.answer import Answer, Delta
from service.generation.request import GenerationRequest
from service.storage.sessions import LEASE_SECONDS, Claim, Done, Finished, InProgress, StoredAnswer
from service.tasks import cancelled

if TYPE_CHECKING:
    from service.storage.sessions import Idempotency, StoredAnswers

T = TypeVar("T")
WAIT_SECONDS: Final = 300.0
"""How long a repetition waits for the first request where it has no deadline."""
RENEW_SECONDS: Final = LEASE_SECONDS / 3
AGAIN_SECONDS: Final = 1.0
REPLAYED: Final = "Idempotent-Replayed"


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response in its stored form: `packed` is its body, compressed."""

    request_id: str
    headers: dict[str, str]
    packed: bytes


_decoder = msgspec.msgpack.Decoder(StoredResponse)


async def replay(http: Request, finished: Finished) -> Response:
    """Returns the stored response, under the id of the request that it was made for."""
    kept = _decoder.decode(finished.response)
    body = await asyncio.to_thread(zlib.decompress, kept.packed)
    http.state.log.update(replayed=True, repeated_as=http.state.request_id)
    http.state.request_id = kept.request_id
    return Response(body, headers={**kept.headers, REPLAYED: "true"})


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim, and the store where it is renewed."""

    idempotency: Idempotency
    claim: Claim


async def claimed(service: Service, key: IdempotencyKey, requests: Sequence[GenerationRequest]) -> Claimed | Finished:
    """Returns the right to answer first, or the answer. Raises Conflict where the key came with another body or its
    response was too large to keep, Unavailable where there is no database or the first request takes too long,
    Overloaded where too many wait."""
    idempotency = (await service.store()).idempotency
    first = await idempotency.begin(key.owner, key.text, key.body_hash)
    if isinstance(first, InProgress):
        seconds = [request.deadline - time.monotonic() for request in requests if request.deadline is not None]
        with service.answers.waiting.entered(1, key.owner):
            first = await idempotency.wait(key.owner, key.text, key.body_hash, min([WAIT_SECONDS, *seconds]))
    return first if isinstance(first, Finished) else Claimed(idempotency, first.claim)


class Writer(ABC):
    """Writes one response."""

    ending: bytes = b""
    """The bytes behind those of the last delta."""
    record: Callable[[Delta], Done] | None = None
    """Makes of the last delta what is stored with a session's turn."""

    async def prepare(self, delta: Delta) -> None:  # noqa: B027  (most writers have nothing that takes long)
        """Comes before `write` of a delta where its caller can wait: makes in a thread what would take long."""

    @abstractmethod
    def write(self, delta: Delta) -> Iterable[bytes]:
        """Returns the bytes to send for this delta."""

    @abstractmethod
    def head(self, first: Delta) -> dict[str, str]:
        """Returns the headers of the response that begins with this delta."""

    def deltas(self, source: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """Returns the deltas of `source`, which it owns; the last one once all is stored."""
        return source


@dataclass(frozen=True, slots=True)
class AnswerStore:
    """Where an answer is stored, and as whose. `row` returns what is stored of an answer whose response is written."""

    stored: StoredAnswers
    owner: str
    row: Callable[[Answer], StoredAnswer]


class AnswerWriter(Writer):
    """Writes as `writer`, and stores the answer."""

    def __init__(self, writer: Writer, store: AnswerStore) -> None:
        self.ending = writer.ending
        self._writer = writer
        self._store = store
        self._last: list[bytes] | None = None

    def head(self, first: Delta) -> dict[str, str]:
        return self._writer.head(first)

    def write(self, delta: Delta) -> Iterable[bytes]:
        """Returns the bytes of a delta; those of the last one are made once."""
        if not delta.last:
            return self._writer.write(delta)
        if self._last is None:
            self._last = list(self._writer.write(delta))
        return self._last

    async def deltas(self, source: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        async with aclosing(source):
            async for delta in source:
                if delta.last:
                    self.write(delta)
                    await self._store.stored.add(self._store.owner, self._store.row(delta.answer))
                yield delta


class ResponseWriter(Writer):
    """Writes as `writer`, and stores the whole response, its ending too; with `store` the answer at the same time.
    `request` is the id of the HTTP request, and how many generation requests it has."""

    def __init__(self, writer: Writer, claimed: Claimed, request: tuple[str, int], store: AnswerStore | None) -> None:
        self._writer = writer
        self._idempotency = claimed.idempotency
        self._claim = claimed.claim
        self._request_id, self._unfinished = request
        self._store = store
        self._first: Delta | None = None
        self._written = bytearray()
        self._last: tuple[Delta, list[bytes]] | None = None
        self._renew_at = time.monotonic() + RENEW_SECONDS

    def head(self, first: Delta) -> dict[str, str]:
        return self._writer.head(first)

    def write(self, delta: Delta) -> Iterable[bytes]:
        """Returns the bytes to send for this delta; for the last delta, the rest of the stored response."""
        if self._last is not None and self._last[0] is delta:
            return self._last[1]
        self._first = self._first or delta
        chunks = list(self._writer.write(delta))
        self._written += b"".join(chunks)
        return chunks

    def record(self, delta: Delta) -> Done:
        """Returns the whole response, whose last delta this is."""
        chunks = [*self._writer.write(delta), *([self._writer.ending] if self._writer.ending else ())]
        self._last = (delta, chunks)
        packed = zlib.compress(b"".join([self._written, *chunks]), level=1)
        kept = StoredResponse(self._request_id, self.head(self._first or delta), packed)
        row = self._store.row(delta.answer) if self._store else None
        return Done(self._claim, msgspec.msgpack.encode(kept), row)

    async def _recorded(self, delta: Delta) -> Done:
        """Does as `record`, in a thread: thousands of vectors take seconds."""
        await self._writer.prepare(delta)
        return await asyncio.to_thread(self.record, delta)

    async def deltas(self, source: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """The response is stored with its turn or by itself. Where it never is, the next request with the key begins
        anew. Raises Conflict where another request has taken over."""
        is_kept = False
        try:
            async with aclosing(source):
                while (delta := await self._claiming(anext(source, None))) is not None:
                    self._unfinished -= delta.last
                    if not self._unfinished:
                        if self._last is None:
                            await self._idempotency.finish(await self._claiming(self._recorded(delta)))
                            delta.answer.stored_at = time.monotonic()
                        is_kept = True
                    yield delta
        finally:
            if not is_kept:
                with suppress(DosirakError):  # the lease will run out
                    await self._idempotency.abandon(self._claim)

    async def _claiming(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`, and renews the claim meanwhile. Cancels `work` where the claim is lost."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=max(0.0, self._renew_at - time.monotonic()))
                if time.monotonic() >= self._renew_at:
                    await self._renew()
            return task.result()
        finally:
            await cancelled((task,))

    async def _renew(self) -> None:
        try:
            await self._idempotency.renew(self._claim)
            self._renew_at = time.monotonic() + RENEW_SECONDS
        except Unavailable:
            self._renew_at = time.monotonic() + AGAIN_SECONDS
        except Conflict:
            if self._last is None:
                raise
            self._renew_at = float("inf")  # the response is being stored or is stored, which settles the claim
