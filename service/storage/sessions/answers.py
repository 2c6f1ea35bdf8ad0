"""Stored answers are responses and chat completions that their clients read again: each with what its request brought.
It knows no wire format.

    answer ─▶ previous ─▶ … ─▶ the first of the thread

An owner keeps the newest `max_per_owner` answers of a kind; older ones make room. An answer expires as a session does.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import NotFound
from service.storage.database.database import uninterrupted
from service.storage.sessions.owned import Owned, StoredKind, one
from service.storage.sessions.values import AnswerKind, Json, StoredAnswer, WantedAnswers

_SOME: Final = 500
"""Rows that a list looks at in one statement."""
_FIELDS: Final = tuple(StoredAnswer.__annotations__)


class StoredAnswers(StoredKind):
    @uninterrupted
    async def add(self, owner: str, answer: StoredAnswer) -> None:
        """Stores an answer durably. Raises NotFound where the answer before it is gone."""
        async with self._database.writing() as connection:
            await self.insert(connection, self._owned(owner), answer)

    async def insert(self, connection: AsyncConnection, mine: Owned, answer: StoredAnswer) -> None:
        """Does as `add`, in the caller's transaction."""
        await self._database.lock(connection, "answers", mine.owner)
        thread = answer.id
        if answer.previous is not None:
            thread = (await self._row(connection, mine, answer.kind, answer.previous)).thread
        row = {
            **{name: getattr(answer, name) for name in _FIELDS},
            "thread": thread,
            "created_at": mine.now,
            "expires_at": mine.now + timedelta(seconds=self._limits.ttl_seconds),
        }
        await mine.insert(connection, "answers", [row])
        await self._make_room(connection, mine, answer.kind)

    @uninterrupted
    async def get(self, owner: str, kind: AnswerKind, id: str) -> StoredAnswer:
        """Returns an answer. Raises NotFound, also for an answer of another kind."""
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            return _answer(await self._row(connection, mine, kind, id))

    @uninterrupted
    async def thread(self, owner: str, kind: AnswerKind, id: str) -> list[StoredAnswer]:
        """Returns an answer behind those that led to it, oldest first. Raises NotFound, also where one of them is
        gone."""
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            last = await self._row(connection, mine, kind, id)
            others = mine.select("answers").where(mine.columns("answers").thread == last.thread)
            known = {row.id: row for row in await connection.execute(others)}
        thread, at = list[StoredAnswer](), id
        while True:
            if (row := known.get(at)) is None:
                raise _missing(kind, at)
            thread.append(_answer(row))
            if row.previous is None:
                return thread[::-1]
            at = row.previous

    @uninterrupted
    async def all(self, owner: str, query: WantedAnswers, limit: int) -> tuple[list[StoredAnswer], bool]:
        """Returns answers in the order of their storing, and whether there are more. Raises NotFound for `after`."""
        mine, its = self._owned(owner), self._owned(owner).columns("answers")
        async with self._database.reading() as connection:
            numbers = await self._numbers(connection, mine, query, limit + 1)
            rows = await connection.execute(mine.select("answers").where(its.number.in_(numbers[:limit])))
            found = sorted(rows, key=lambda row: numbers.index(row.number))
        return [_answer(row) for row in found], len(numbers) > limit

    @uninterrupted
    async def change_metadata(self, owner: str, kind: AnswerKind, id: str, metadata: Json) -> StoredAnswer:
        """Puts other metadata in place of an answer's. Raises NotFound."""
        mine, its = self._owned(owner), self._owned(owner).columns("answers")
        async with self._database.writing() as connection:
            row = await self._row(connection, mine, kind, id)
            changed = mine.update("answers").where(its.number == row.number).values(metadata=metadata)
            await connection.execute(changed)
            return _answer(await self._row(connection, mine, kind, id))

    @uninterrupted
    async def delete(self, owner: str, kind: AnswerKind, id: str) -> None:
        """Deletes an answer; those that go on from it stay, and cannot be gone on from. Raises NotFound."""
        mine = self._owned(owner)
        async with self._database.writing() as connection:
            row = await self._row(connection, mine, kind, id)
            await connection.execute(mine.delete("answers").where(mine.columns("answers").number == row.number))
        self._leave_traces()

    async def _row(
        self, connection: AsyncConnection, mine: Owned, kind: AnswerKind, id: str, param: str = "id"
    ) -> Row[Any]:
        its = mine.columns("answers")
        statement = mine.select("answers").where(its.id == id, its.kind == kind)
        return await one(connection, statement, id, _missing(kind, id, param))

    async def _numbers(self, connection: AsyncConnection, mine: Owned, query: WantedAnswers, most: int) -> list[int]:
        """Returns the numbers of the first answers that are wanted, without reading their texts."""
        its = mine.columns("answers")
        order = its.number.desc() if query.newest_first else its.number
        some = mine.select("answers", "number", "model", "metadata").where(its.kind == query.kind)
        some = some.order_by(order).limit(_SOME)
        at = None
        if query.after is not None:
            at = (await self._row(connection, mine, query.kind, query.after, "after")).number
        numbers = list[int]()
        while len(numbers) < most:
            behind = [] if at is None else [its.number < at if query.newest_first else its.number > at]
            rows = (await connection.execute(some.where(*behind))).all()
            numbers += [row.number for row in rows if query.fits(row.model, row.metadata)]
            if len(rows) < _SOME:
                break
            at = rows[-1].number
        return numbers[:most]

    async def _make_room(self, connection: AsyncConnection, mine: Owned, kind: AnswerKind) -> None:
        its = mine.columns("answers")
        newest_first = mine.select("answers", "number").where(its.kind == kind).order_by(its.number.desc())
        too_many = newest_first.offset(self._limits.max_per_owner).limit(1)
        number = (await connection.execute(too_many)).scalar_one_or_none()
        if number is not None:
            await connection.execute(mine.delete("answers").where(its.kind == kind, its.number <= number))
            self._leave_traces()


def _answer(row: Row[Any]) -> StoredAnswer:
    return StoredAnswer(**{name: row._mapping[name] for name in _FIELDS})


def _missing(kind: AnswerKind, id: str, param: str = "id") -> NotFound:
    return NotFound(
        f"There is no stored {kind} {id[:80]!r}: it was not stored, was deleted, or has expired", param=param
    )
