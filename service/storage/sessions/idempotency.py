"""This module makes one generation for one `Idempotency-Key`: the first request does the work, and repetitions get its
answer, byte for byte.

    begin ──> Fresh ──(renew …)──> finish, with the turn or the stored answer ──> Finished for 24 hours
      └─────> InProgress: another request works on it and renews its lease; if that dies, the next one takes over

A worker whose lease was taken over can no longer finish, so that no turn is stored twice.

Of a response above MOST_BYTES only the fact is kept. An owner's newest responses are kept, up to MOST_OWN_BYTES
together; older ones make room.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Row, func
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import Conflict, Unavailable
from service.storage.database.database import Database, uninterrupted
from service.storage.sessions.answers import StoredAnswers
from service.storage.sessions.claims import LEASE_SECONDS, Claim, Done, Finished, Fresh, InProgress
from service.storage.sessions.limits import check_text
from service.storage.sessions.owned import Owned

KEPT_SECONDS = 24 * 3600.0
_FIRST_POLL_SECONDS = 0.05
_LAST_POLL_SECONDS = 1.0
MOST_BYTES: Final = 4 << 20
"""The largest response that is kept."""
MOST_OWN_BYTES: Final = 256 << 20
_ROW_BYTES: Final = 512
"""What a row takes beside its response."""
_LOOK_BYTES: Final = MOST_OWN_BYTES // 8
"""After so many new bytes of an owner, this process looks whether older responses must make room."""
_TOO_LARGE: Final = b""
"""Stands in place of a response above MOST_BYTES."""


class Idempotency:
    def __init__(self, database: Database, owned: Callable[[str], Owned], answers: StoredAnswers) -> None:
        self._database = database
        self._answers = answers
        self._owned = owned
        self._new_bytes = Counter[str]()

    async def begin(self, owner: str, key: str, body_hash: str) -> Fresh | InProgress | Finished:
        """Returns the key's state, and claims a free key. Raises Conflict where the key came with another body or its
        response was too large to keep, InvalidRequest for a key that cannot be stored. A claim that comes after its
        caller was cancelled is given up: its client asks again."""
        check_text(key, "key")
        left = asyncio.Event()
        try:
            return await self._begin(owner, key, body_hash, left)
        except asyncio.CancelledError:
            left.set()
            raise

    @uninterrupted("write")
    async def _begin(self, owner: str, key: str, body_hash: str, left: asyncio.Event) -> Fresh | InProgress | Finished:
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            known = _status(await _record(connection, mine, key), mine, body_hash)
        if known is not None:
            return known
        async with self._database.writing() as connection:
            await self._database.lock(connection, "idempotency", owner, key)
            mine = self._owned(owner)
            known = _status(await _record(connection, mine, key), mine, body_hash)
            status = known or await _claim(connection, mine, key, body_hash)
        if left.is_set() and isinstance(status, Fresh):
            await self.abandon(status.claim)
        return status

    async def wait(self, owner: str, key: str, body_hash: str, seconds: float) -> Fresh | Finished:
        """Does as `begin`, but waits for another request's work to end. Raises Unavailable when that takes longer than
        `seconds`.

        The polling interval grows, so that many waiting requests do not keep the worker from the database.
        """
        deadline, pause = asyncio.get_running_loop().time() + seconds, _FIRST_POLL_SECONDS
        while isinstance(status := await self.begin(owner, key, body_hash), InProgress):
            left = deadline - asyncio.get_running_loop().time()
            if left < 0:
                raise Unavailable("The first request with this Idempotency-Key still runs: try again", retry_after=5)
            await asyncio.sleep(min(pause, max(left, 0.01), status.seconds + 0.01))
            pause = min(1.5 * pause, _LAST_POLL_SECONDS)
        return status

    @uninterrupted("write")
    async def renew(self, claim: Claim) -> None:
        """Renews the lease of work that goes on. Raises Conflict where another request has taken over: the work must
        stop."""
        mine = self._owned(claim.owner)
        async with self._database.writing() as connection:
            await _change(connection, mine, claim, lease_until=mine.now + timedelta(seconds=LEASE_SECONDS))

    @uninterrupted("write")
    async def finish(self, done: Done) -> None:
        """Keeps an answer that belongs to no session, and its row: both or nothing. Raises Conflict where another
        request has taken over, NotFound where the answer before it is gone."""
        async with self._database.writing() as connection:
            await self.settle(connection, self._owned(done.claim.owner), done, None)

    async def settle(self, connection: AsyncConnection, mine: Owned, done: Done, session_id: str | None) -> None:
        """Does as `finish`, in the caller's transaction, which stores the turn of a session."""
        if done.answer is not None:
            await self._answers.insert(connection, mine, done.answer)
        await finish(connection, mine, done, session_id)
        self._new_bytes[mine.owner] += len(_kept(done)) + _ROW_BYTES
        if self._new_bytes[mine.owner] >= _LOOK_BYTES:
            await _make_room(connection, mine)
            del self._new_bytes[mine.owner]

    @uninterrupted("write")
    async def abandon(self, claim: Claim) -> None:
        """Gives the key up without an answer: the next request with the key begins anew. A claim that is lost already
        is no error."""
        mine = self._owned(claim.owner)
        its = mine.columns("idempotency")
        held = (its.key == claim.key, its.claim == claim.token, its.response.is_(None))
        async with self._database.writing() as connection:
            await connection.execute(mine.delete("idempotency").where(*held))


async def finish(connection: AsyncConnection, mine: Owned, done: Done, session_id: str | None) -> None:
    """Keeps the answer, in the transaction that stores its turn. Raises Conflict where another request has taken
    over."""
    until = mine.now + timedelta(seconds=KEPT_SECONDS)
    shown = {"session_id": session_id, "answer_id": done.answer.id if done.answer else None}
    await _change(connection, mine, done.claim, response=_kept(done), expires_at=until, **shown)


def _kept(done: Done) -> bytes:
    return done.response if len(done.response) <= MOST_BYTES else _TOO_LARGE


async def _make_room(connection: AsyncConnection, mine: Owned) -> None:
    """Removes the owner's oldest kept responses, so that the others have MOST_OWN_BYTES at most."""
    its = mine.columns("idempotency")
    newest_first = (its.expires_at.desc(), its.key)
    held = func.sum(func.length(its.response) + _ROW_BYTES).over(order_by=newest_first).label("held")
    kept = mine.select("idempotency", "key").where(its.response.is_not(None)).add_columns(held).subquery()
    oldest = kept.select().with_only_columns(kept.c.key).where(kept.c.held > MOST_OWN_BYTES)
    await connection.execute(mine.delete("idempotency").where(its.key.in_(oldest)))


async def _record(connection: AsyncConnection, mine: Owned, key: str) -> Row[Any] | None:
    statement = mine.select("idempotency").where(mine.columns("idempotency").key == key)
    record: Row[Any] | None = (await connection.execute(statement)).one_or_none()
    return record


def _status(record: Row[Any] | None, mine: Owned, body_hash: str) -> InProgress | Finished | None:
    """Returns None where the key is free: never used, past its time, or left by a worker that died. Raises Conflict."""
    if record is None or record.expires_at <= mine.now:
        return None
    if record.body_hash != body_hash:
        raise Conflict("This Idempotency-Key came with another body before: use a new key for a new request")
    if record.response == _TOO_LARGE:
        raise Conflict(
            "The first request with this Idempotency-Key was answered, but its response was too large to be kept "
            f"(over {MOST_BYTES} bytes, compressed): read what was stored of it, or send the request with a new key"
        )
    if record.response is not None:
        return Finished(record.response)
    left = (record.lease_until - mine.now).total_seconds()
    return InProgress(left) if left > 0 else None


async def _claim(connection: AsyncConnection, mine: Owned, key: str, body_hash: str) -> Fresh:
    claim = Claim(mine.owner, key, secrets.token_urlsafe(16))
    await connection.execute(mine.delete("idempotency").where(mine.columns("idempotency").key == key))
    record = {"key": key, "body_hash": body_hash, "claim": claim.token, "session_id": None, "response": None}
    times = {
        "lease_until": mine.now + timedelta(seconds=LEASE_SECONDS),
        "expires_at": mine.now + timedelta(seconds=KEPT_SECONDS),
    }
    await mine.insert(connection, "idempotency", [{**record, **times}])
    return Fresh(claim)


async def _change(connection: AsyncConnection, mine: Owned, claim: Claim, **values: object) -> None:
    its = mine.columns("idempotency")
    held = (its.key == claim.key, its.claim == claim.token, its.response.is_(None))
    changed = await connection.execute(mine.update("idempotency").where(*held).values(values))
    if changed.rowcount != 1:
        raise Conflict("Another request took this Idempotency-Key over, since this one showed no sign of life")
