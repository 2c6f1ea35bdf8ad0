"""This module stores the response of each `Idempotency-Key`: it is made once, and every repetition gets the same bytes.

    key ─▶ first: ResponseRecorder ─▶ deltas, the claim renewed meanwhile ─▶ all bytes kept ─▶ the last delta goes out
                                                                            with what the dialect keeps of the answer
      └──▶ a repetition waits for the first and gets what was kept; where nothing was, it is the first

A response that ends without a whole answer is not kept. The module knows no dialect: `write` gives the bytes of each
delta.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response

from service.api.answering.keeping import Keep, Write
from service.api.deps import Service
from service.api.http.idempotency import IdempotencyKey
from service.errors import Conflict, DosirakError, Unavailable
from service.generation.answer import Delta
from service.generation.request import GenerationRequest
from service.storage.sessions import LEASE_SECONDS, Claim, Done, Finished
from service.tasks import cancelled

if TYPE_CHECKING:
    from service.storage.sessions import Idempotency

T = TypeVar("T")
Head = Callable[[Delta], Mapping[str, str]]
"""The headers of the response that begins with this delta."""
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


def replay(http: Request, finished: Finished) -> Response:
    """Returns the stored response, under the id of the request that it was made for."""
    kept = _decoder.decode(finished.response)
    http.state.log.update(replayed=True, repeated_as=http.state.request_id)
    http.state.request_id = kept.request_id
    return Response(zlib.decompress(kept.packed), headers={**kept.headers, REPLAYED: "true"})


@dataclass(frozen=True, slots=True)
class Held:
    """A claim, and the store where it is renewed."""

    idempotency: Idempotency
    claim: Claim


async def claimed(service: Service, key: IdempotencyKey, requests: Sequence[GenerationRequest]) -> Held | Finished:
    """Returns the right to answer first, or the answer. Raises Conflict where the key came with another body,
    Unavailable where there is no database or the first request takes too long."""
    idempotency = (await service.answers.conversations.store()).idempotency
    left = [request.deadline - time.monotonic() for request in requests if request.deadline is not None]
    found = await idempotency.wait(key.owner, key.text, key.body_hash, min([WAIT_SECONDS, *left]))
    return found if isinstance(found, Finished) else Held(idempotency, found.claim)


class ResponseRecorder:
    """One response in progress. Answers takes `record`; `write` writes the response; both work on `deltas`."""

    def __init__(
        self,
        held: Held,
        request: tuple[str, int],
        write: Write,
        head: Head,
        keep: Keep | None = None,
        ending: bytes = b"",
    ) -> None:
        """`request` is the id of the HTTP request, and how many generation requests it has."""
        self._idempotency = held.idempotency
        self._claim = held.claim
        self._request_id, self._unfinished = request
        self._write = write
        self._head = head
        self._keep = keep
        self._ending = ending
        self._first: Delta | None = None
        self._told = bytearray()
        self._last: tuple[Delta, list[bytes]] | None = None
        self._renew_at = time.monotonic() + RENEW_SECONDS

    def write(self, delta: Delta) -> Iterable[bytes]:
        """Returns the bytes to send for this delta; for the last delta, the rest of the stored response."""
        if self._last is not None and self._last[0] is delta:
            return self._last[1]
        self._first = self._first or delta
        chunks = list(self._write(delta))
        self._told += b"".join(chunks)
        return chunks

    def record(self, delta: Delta) -> Done:
        """Returns the whole response, whose last delta this is."""
        chunks = [*self._write(delta), *([self._ending] if self._ending else ())]
        self._last = (delta, chunks)
        packed = zlib.compress(b"".join([self._told, *chunks]), level=1)
        kept = StoredResponse(self._request_id, dict(self._head(self._first or delta)), packed)
        row = self._keep.row(delta.answer) if self._keep else None
        return Done(self._claim, msgspec.msgpack.encode(kept), row)

    async def deltas(self, source: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """Yields the deltas of `source`, which it owns; the last one once the response is stored, with its turn or by
        itself. Where the response is never stored, the next request with the key begins anew. Raises Conflict where
        another request has taken over."""
        is_kept = False
        try:
            async with aclosing(source):
                while (delta := await self._held(_next(source))) is not None:
                    self._unfinished -= delta.last
                    if not self._unfinished:
                        if self._last is None:
                            await self._idempotency.finish(self.record(delta))
                            delta.answer.stored_at = time.monotonic()
                        is_kept = True
                    yield delta
        finally:
            if not is_kept:
                with suppress(DosirakError):  # the lease will run out
                    await self._idempotency.abandon(self._claim)

    async def _held(self, work: Coroutine[Any, Any, T]) -> T:
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


async def _next(source: AsyncGenerator[Delta, None]) -> Delta | None:
    return await anext(source, None)
