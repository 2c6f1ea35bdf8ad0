"""Stored answers are responses and chat completions that their clients read again: each with what its request brought.
It knows no wire format.

    answer ─▶ previous ─▶ … ─▶ the first of the thread

An owner keeps the newest `max_per_owner` answers of a kind; older ones make room. An answer expires as a session does.
With an answer goes the response that is kept for its Idempotency-Key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, Text, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import NotFound
from service.storage.database.database import uninterrupted
from service.storage.sessions.owned import Owned, StoredKind, one
from service.storage.sessions.values import AnswerKind, Json, StoredAnswer, WantedAnswers

_SOME: Final = 500
"""Rows that one statement looks at."""
_FIELDS: Final = tuple(StoredAnswer.__annotations__)
_JSON: Final = frozenset({"asked", "body", "metadata"})
"""Columns whose JSON is decoded in a thread: a request may have brought megabytes."""


class StoredAnswers(StoredKind):
    @uninterrupted("write")
    async def add(self, owner: str, answer: StoredAnswer) -> None:
        """Stores an answer durably. Raises NotFound where the answer before it is gone."""
        async with self._database.writing() as connection:
            await self.insert(connection, self._owned(owner), answer)

    async def insert(self, connection: AsyncConnection, mine: Owned, answer: StoredAnswer) -> None:
        """Does as `add`, in the caller's transaction."""
        await self._database.lock(connection, "answers", mine.owner)
        thread = answer.id
        if answer.previous is not None:
            thread = (await self._row(connection, mine, answer.kind, answer.previous, "thread")).thread
        row = {
            **{name: getattr(answer, name) for name in _FIELDS},
            "thread": thread,
            "created_at": mine.now,
            "expires_at": mine.now + timedelta(seconds=self._limits.ttl_seconds),
        }
        await mine.insert(connection, "answers", [row])
        await self._make_room(connection, mine, answer.kind)

    @uninterrupted("read")
    async def get(self, owner: str, kind: AnswerKind, id: str) -> StoredAnswer:
        """Returns an answer. Raises NotFound, also for an answer of another kind."""
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            row = await self._row(connection, mine, kind, id)
        return (await _answers([row]))[0]

    @uninterrupted("read")
    async def thread(self, owner: str, kind: AnswerKind, id: str) -> list[StoredAnswer]:
        """Returns an answer behind those that led to it, oldest first. Raises NotFound, also where one of them is
        gone."""
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            rows = await self._rows(connection, mine, await self._led_to(connection, mine, kind, id))
        return await _answers(rows)

    @uninterrupted("read")
    async def all(self, owner: str, query: WantedAnswers, limit: int) -> tuple[list[StoredAnswer], bool]:
        """Returns answers in the order of their storing, and whether there are more. Raises NotFound for `after`."""
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            numbers = await self._numbers(connection, mine, query, limit + 1)
            rows = await self._rows(connection, mine, numbers[:limit])
        return await _answers(rows), len(numbers) > limit

    @uninterrupted("write")
    async def change_metadata(self, owner: str, kind: AnswerKind, id: str, metadata: Json) -> StoredAnswer:
        """Puts other metadata in place of an answer's. Raises NotFound."""
        mine, its = self._owned(owner), self._owned(owner).columns("answers")
        async with self._database.writing() as connection:
            number = (await self._row(connection, mine, kind, id, "number")).number
            await connection.execute(mine.update("answers").where(its.number == number).values(metadata=metadata))
            row = await self._row(connection, mine, kind, id)
        return (await _answers([row]))[0]

    @uninterrupted("write")
    async def delete(self, owner: str, kind: AnswerKind, id: str) -> None:
        """Deletes an answer; those that go on from it stay, and cannot be gone on from. Raises NotFound."""
        mine = self._owned(owner)
        async with self._database.writing() as connection:
            number = (await self._row(connection, mine, kind, id, "number")).number
            await _remove(connection, mine, mine.columns("answers").number == number)
        self._leave_traces()

    async def _row(
        self, connection: AsyncConnection, mine: Owned, kind: AnswerKind, id: str, *columns: str, param: str = "id"
    ) -> Row[Any]:
        """Returns these columns of an answer; without names all, as `_texts` does. Raises NotFound."""
        its = mine.columns("answers")
        wanted = mine.select("answers", *columns) if columns else _texts(mine)
        return await one(connection, wanted.where(its.id == id, its.kind == kind), id, _missing(kind, id, param))

    async def _rows(self, connection: AsyncConnection, mine: Owned, numbers: Sequence[int]) -> list[Row[Any]]:
        """Returns the rows of these numbers, in their order, as `_texts` does."""
        its, found = mine.columns("answers"), dict[int, Row[Any]]()
        for at in range(0, len(numbers), _SOME):
            some = _texts(mine).where(its.number.in_(numbers[at : at + _SOME]))
            found |= {row.number: row for row in await connection.execute(some)}
        return [found[number] for number in numbers]

    async def _led_to(self, connection: AsyncConnection, mine: Owned, kind: AnswerKind, id: str) -> list[int]:
        """Returns the numbers of an answer and of those that led to it, oldest first. A thread may have thousands of
        branches: of their answers the ids alone are read. Raises NotFound."""
        thread = (await self._row(connection, mine, kind, id, "thread")).thread
        ids = mine.select("answers", "number", "id", "previous").where(mine.columns("answers").thread == thread)
        known = {row.id: row for row in await connection.execute(ids)}
        numbers, at = list[int](), id
        while True:
            if (row := known.get(at)) is None:
                raise _missing(kind, at)
            numbers.append(row.number)
            if row.previous is None:
                return numbers[::-1]
            at = row.previous

    async def _numbers(self, connection: AsyncConnection, mine: Owned, query: WantedAnswers, most: int) -> list[int]:
        """Returns the numbers of the first answers that are wanted, without reading their texts."""
        its = mine.columns("answers")
        order = its.number.desc() if query.newest_first else its.number
        some = mine.select("answers", "number", "model", "metadata").where(its.kind == query.kind)
        some = some.order_by(order).limit(_SOME)
        at = None
        if query.after is not None:
            at = (await self._row(connection, mine, query.kind, query.after, "number", param="after")).number
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
            await _remove(connection, mine, its.kind == kind, its.number <= number)
            self._leave_traces()


async def _remove(connection: AsyncConnection, mine: Owned, *which: ColumnElement[bool]) -> None:
    """Removes answers, and the responses kept for their keys."""
    ids = mine.select("answers", "id").where(*which)
    copies = mine.delete("idempotency").where(mine.columns("idempotency").answer_id.in_(ids))
    await connection.execute(copies)
    await connection.execute(mine.delete("answers").where(*which))


def _texts(mine: Owned) -> Select[Any]:
    """Returns the statement of whole answers, whose JSON is still text."""
    its = mine.columns("answers")
    columns = (type_coerce(its[name], Text).label(name) if name in _JSON else its[name] for name in _FIELDS)
    return mine.select("answers").with_only_columns(its.number, *columns)


async def _answers(rows: Sequence[Row[Any]]) -> list[StoredAnswer]:
    """Returns the answers of rows that `_texts` found."""
    return await asyncio.to_thread(lambda: [_answer(row) for row in rows])


def _answer(row: Row[Any]) -> StoredAnswer:
    its = row._mapping
    return StoredAnswer(**{name: json.loads(its[name]) if name in _JSON else its[name] for name in _FIELDS})


def _missing(kind: AnswerKind, id: str, param: str = "id") -> NotFound:
    return NotFound(
        f"There is no stored {kind} {id[:80]!r}: it was not stored, was deleted, or has expired", param=param
    )
