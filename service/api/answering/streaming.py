"""Streaming starts a stream's response early, keeps it alive while no token comes, and writes ahead of a slow client,
in every dialect.

    first token within HEADERS_SECONDS ─▶ headers and the token; an error until then is a real HTTP status
    none yet, the version is loaded    ─▶ headers once the prompt is known, then a comment every COMMENT_SECONDS
    none yet, the version is loading   ─▶ headers without what is not known yet, then the same comments
    no byte for COMMENT_SECONDS        ─▶ a comment, for example while a guard holds text or an engine starts again

An answer ends when the engine has ended it, and gives its places back, also where its client has not read it yet. What
waits for the client is bounded in bytes here, and in seconds by its connection. An error after the headers is the
stream's last event. The module knows no dialect: `Serialiser` gives the bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

import structlog
from fastapi import Request

from service.api.answering.notes import headers, note
from service.api.answering.stored_responses import Writer
from service.api.http.connection import EventStream, while_connected
from service.api.http.errors import Internal
from service.api.shared.serialiser import Serialiser
from service.errors import DosirakError
from service.generation.answer import Answer, Delta, Opening
from service.tasks import cancelled

log = structlog.get_logger("dosirak.request")
HEADERS_SECONDS: Final = 1.0
COMMENT_SECONDS: Final = 10.0
"""Proxies give a silent connection up after 30 to 60 s."""
MOST_WAITING_BYTES: Final = 1 << 20
"""An answer of some thousand tokens; a longer one waits for its client."""


class Streaming:
    """One stream from before its headers to its end; it owns `deltas`, and sends the bytes of `writer`."""

    def __init__(
        self,
        http: Request,
        deltas: AsyncGenerator[Delta, None],
        opening: Opening,
        serialiser: Serialiser,
        writer: Writer,
    ) -> None:
        self._http = http
        self._deltas = deltas
        self._opening = opening
        self._serialiser = serialiser
        self._writer = writer
        self._answers: dict[str, Answer] = {}
        self._backlog = Backlog(MOST_WAITING_BYTES)
        self._first = asyncio.Event()
        self._writing = asyncio.create_task(self._write())

    async def response(self) -> EventStream:
        """Returns the response when the headers are due. Raises an error that ends the answer before that, and
        ClientGone."""
        try:
            answer = await while_connected(self._http.receive, self._opened())
        except BaseException:
            await self._close()
            raise
        known = headers(answer) if answer else {}
        return EventStream(self._events(), known, self._close, self._serialiser.media_type)

    async def _opened(self) -> Answer | None:
        """Returns when the headers are due, with the answer that they describe, where it is known."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEADERS_SECONDS):
                await self._first.wait()
        if not self._first.is_set() and self._opening.is_loaded:
            waits = {asyncio.create_task(each) for each in (self._first.wait(), self._opening.begun())}
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancelled(waits)
        if self._first.is_set() and not self._answers:
            await self._writing
        return next(iter(self._answers.values()), self._opening.answer)

    async def _write(self) -> None:
        """Writes the answer's bytes, as far ahead of the client as the backlog lets it."""
        try:
            async for delta in self._deltas:
                self._answers[delta.answer.request.id] = delta.answer
                self._first.set()
                await self._backlog.put(b"".join(self._writer.write(delta)))
        finally:
            self._first.set()
            self._backlog.end()

    async def _close(self) -> None:
        await cancelled((self._writing,))
        await self._deltas.aclose()

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            if not self._first.is_set():
                yield self._serialiser.comment
            while (chunk := await self._backlog.take(COMMENT_SECONDS)) is not None:
                yield chunk or self._serialiser.comment
            await self._writing  # raises what ended the answer
            if self._writer.ending:
                yield self._writer.ending
        except DosirakError as error:
            yield self._failure(error)
        except Exception:
            log.exception("stream_failed", request_id=self._http.state.request_id)
            yield self._failure(Internal())
        finally:
            await self._close()
            note(self._http, list(self._answers.values()))

    def _failure(self, error: DosirakError) -> bytes:
        self._http.state.log["code"] = error.code
        return self._serialiser.failure(error, self._http.state.request_id)


class Backlog:
    """Bytes that wait for a client: at most about `most`, from one writer to one reader."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting = bytearray()
        self._has_ended = False
        self._has_room = asyncio.Event()
        self._has_news = asyncio.Event()
        self._has_room.set()

    async def put(self, chunk: bytes) -> None:
        """Returns once the chunk waits."""
        await self._has_room.wait()
        self._waiting += chunk
        if len(self._waiting) >= self._most:
            self._has_room.clear()
        if chunk:
            self._has_news.set()

    def end(self) -> None:
        """Says that nothing follows."""
        self._has_ended = True
        self._has_news.set()

    async def take(self, seconds: float) -> bytes | None:
        """Returns all that waits; no bytes where none came within `seconds`, None at the end."""
        try:
            async with asyncio.timeout(seconds):
                await self._has_news.wait()
        except TimeoutError:
            return b""
        if not self._waiting:
            return None
        chunk = bytes(self._waiting)
        self._waiting.clear()
        self._has_room.set()
        if not self._has_ended:
            self._has_news.clear()
        return chunk
