"""Streaming starts a stream's response early and keeps it alive until its first token, in every dialect.

    first token within HEADERS_SECONDS ─▶ headers and the token; an error until then is a real HTTP status
    none yet, the version is loaded    ─▶ headers once the prompt is known, then a comment every COMMENT_SECONDS
    none yet, the version is loading   ─▶ headers without what is not known yet, then the same comments

An error after the headers is the stream's last event. The module knows no dialect: `Serialiser` gives the bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
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
        self._first = asyncio.create_task(_next(deltas))
        self._answers: dict[str, Answer] = {}

    async def response(self) -> EventStream:
        """Returns the response when the headers are due. Raises an error that ends the answer before that, and
        ClientGone."""
        try:
            answer = await while_connected(self._http.receive, self._opened())
        except BaseException:
            await self._close()
            raise
        known = headers(answer) if answer else {}
        return EventStream(self._events(), known, self._close, media_type=self._serialiser.media_type)

    async def _opened(self) -> Answer | None:
        """Returns when the headers are due, with the answer that they describe, where it is known."""
        await asyncio.wait({self._first}, timeout=HEADERS_SECONDS)
        if not self._first.done() and self._opening.is_loaded:
            begun = asyncio.create_task(self._opening.begun())
            try:
                await asyncio.wait({self._first, begun}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancelled((begun,))
        return self._first.result().answer if self._first.done() else self._opening.answer

    async def _close(self) -> None:
        await cancelled((self._first,))
        await self._deltas.aclose()

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            while not self._first.done():
                yield self._serialiser.comment
                await asyncio.wait({self._first}, timeout=COMMENT_SECONDS)
            for chunk in self._shown(self._first.result()):
                yield chunk
            async for delta in self._deltas:
                for chunk in self._shown(delta):
                    yield chunk
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

    def _shown(self, delta: Delta) -> Iterable[bytes]:
        self._answers[delta.answer.request.id] = delta.answer
        return self._writer.write(delta)

    def _failure(self, error: DosirakError) -> bytes:
        self._http.state.log["code"] = error.code
        return self._serialiser.failure(error, self._http.state.request_id)


async def _next(deltas: AsyncGenerator[Delta, None]) -> Delta:
    return await anext(deltas)
