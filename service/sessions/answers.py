"""Stored answers are responses that their clients read again, and go on from: each with what its request brought. It
knows no wire format.

    answer ─▶ previous ─▶ … ─▶ the first of the thread

An owner keeps the newest `max_per_owner` answers; older ones make room. An answer expires as a session does.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import NotFound
from service.sessions.database import Database, uninterrupted
from service.sessions.limits import Limits
from service.sessions.owned import Owned, is_id
from service.sessions.values import StoredAnswer


class StoredAnswers:
    def __init__(self, database: Database, owned: Callable[[str], Owned], limits: Limits) -> None:
        self._database = database
        self._owned = owned
        self._limits = limits

    @uninterrupted
    async def add(self, owner: str, answer: StoredAnswer) -> None:
        """Stores an answer durably. Raises NotFound where the answer before it is gone."""
        mine = self._owned(owner)
        async with self._database.writing() as connection:
            await self._database.lock(connection, "answers", owner)
            thread = answer.id
            if answer.previous is not None:
                thread = (await self._row(connection, mine, answer.previous)).thread
            row = {
                "id": answer.id,
                "previous": answer.previous,
                "thread": thread,
                "asked": answer.asked,
                "body": answer.body,
                "created_at": mine.now,
                "expires_at": mine.now + timedelta(seconds=self._limits.ttl_seconds),
            }
            await mine.insert(connection, "answers", [row])
            await self._make_room(connection, mine)

    @uninterrupted
    async def get(self, owner: str, id: str) -> StoredAnswer:
        """Returns an answer. Raises NotFound."""
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            return _answer(await self._row(connection, mine, id))

    @uninterrupted
    async def thread(self, owner: str, id: str) -> list[StoredAnswer]:
        """Returns an answer behind those that led to it, oldest first. Raises NotFound, also where one of them is
        gone."""
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            last = await self._row(connection, mine, id)
            others = mine.select("answers").where(mine.columns("answers").thread == last.thread)
            known = {row.id: row for row in await connection.execute(others)}
        found, at = list[StoredAnswer](), id
        while True:
            if (row := known.get(at)) is None:
                raise _missing(at)
            found.append(_answer(row))
            if row.previous is None:
                return found[::-1]
            at = row.previous

    @uninterrupted
    async def delete(self, owner: str, id: str) -> None:
        """Deletes an answer; those that go on from it stay, and cannot be gone on from. Raises NotFound."""
        mine = self._owned(owner)
        async with self._database.writing() as connection:
            row = await self._row(connection, mine, id)
            await connection.execute(mine.delete("answers").where(mine.columns("answers").number == row.number))

    async def _row(self, connection: AsyncConnection, mine: Owned, id: str) -> Row[Any]:
        statement = mine.select("answers").where(mine.columns("answers").id == id)
        found = await connection.execute(statement) if is_id(id) else None
        if found is None or (row := found.one_or_none()) is None:
            raise _missing(id)
        return row

    async def _make_room(self, connection: AsyncConnection, mine: Owned) -> None:
        its = mine.columns("answers")
        newest_first = mine.select("answers", "number").order_by(its.number.desc())
        too_many = newest_first.offset(self._limits.max_per_owner).limit(1)
        number = (await connection.execute(too_many)).scalar_one_or_none()
        if number is not None:
            await connection.execute(mine.delete("answers").where(its.number <= number))


def _answer(row: Row[Any]) -> StoredAnswer:
    return StoredAnswer(row.id, row.asked, row.body, row.previous)


def _missing(id: str) -> NotFound:
    return NotFound(
        f"There is no stored response {id[:80]!r}: it was not stored, was deleted, or has expired", param="id"
    )
