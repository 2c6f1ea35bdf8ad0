"""The rows of the audit in the session database. Writers lock the head, one after the other, so instances that share a
database make one chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Row as Found
from sqlalchemy import Select, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import Unavailable
from service.storage.audit import chain
from service.storage.audit.chain import Entry, Head, Row
from service.storage.database.audit_tables import audit, audit_head
from service.storage.database.database import Database, uninterrupted

_BATCH: Final = 1000
_LOST: Final = "The audit has lost its head, so nothing is written behind it: `dosirak audit verify` says more"


class Trail:
    """The audit of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @uninterrupted("write")
    async def add(self, entries: Iterable[Entry]) -> list[Row]:
        """Adds entries, all or none, durably. Returns their rows."""
        async with self._database.writing() as connection:
            return await _add(connection, entries)

    @uninterrupted("read")
    async def all(
        self, wanted: Mapping[str, str], since: int | None, until: int | None, before: int | None, limit: int
    ) -> tuple[list[Row], bool]:
        """Returns rows, newest first, and whether there are more. `wanted` are texts by column; `since` and `until`
        are microseconds since 1970, the second excluded; `before` is a number."""
        found = [audit.c[name] == text for name, text in wanted.items()]
        ends = ((since, audit.c.at.__ge__), (until, audit.c.at.__lt__), (before, audit.c.number.__lt__))
        found += [meets(end) for end, meets in ends if end is not None]
        statement = _ROWS.where(*found).order_by(audit.c.number.desc()).limit(limit + 1)
        async with self._database.reading() as connection:
            rows = [_row(each) for each in await connection.execute(statement)]
        return rows[:limit], len(rows) > limit

    async def read(self, take: Callable[[Row], None]) -> Head:
        """Gives every row to `take`, in their order, and returns the head, all of one moment."""
        async with self._database.reading() as connection:
            head, last = await _head(connection), -1
            while True:
                some = _ROWS.where(audit.c.number > last).order_by(audit.c.number).limit(_BATCH)
                rows = [_row(each) for each in await connection.execute(some)]
                for row in rows:
                    take(row)
                if not rows:
                    return head or Head(0, "")
                last = rows[-1].number

    @uninterrupted("maintain")
    async def cut(self, until: int, cut_by: Callable[[str, dict[str, object]], Entry]) -> tuple[int, Head | None]:
        """Removes the rows before the first that is not older than `until`, and adds one that says so, which `cut_by`
        makes of its subject and detail. Returns how many went, and the new last row; None where nothing was older."""
        async with self._database.writing() as connection:
            await _head(connection, lock=True)
            younger = select(func.min(audit.c.number)).where(audit.c.at >= until)
            first = (await connection.execute(younger)).scalar_one()
            old = select(audit.c.number, audit.c.hash).order_by(audit.c.number.desc()).limit(1)
            last = (await connection.execute(old if first is None else old.where(audit.c.number < first))).one_or_none()
            if last is None:
                return 0, None
            [told] = await _add(connection, [cut_by(str(last.number), {"hash": last.hash})])
            gone = (await connection.execute(delete(audit).where(audit.c.number <= last.number))).rowcount
            return gone, Head(told.number, told.hash)


_ROWS: Final[Select[Any]] = select(audit)


async def _head(connection: AsyncConnection, *, lock: bool = False) -> Head | None:
    statement = select(audit_head.c.number, audit_head.c.hash)
    found = (await connection.execute(statement.with_for_update() if lock else statement)).one_or_none()
    return None if found is None else Head(*found)


async def _add(connection: AsyncConnection, entries: Iterable[Entry]) -> list[Row]:
    head = await _head(connection, lock=True)
    if head is None:
        raise Unavailable(_LOST, retry_after=60)
    rows = list(chain.after(head, entries))
    if rows:
        values = [
            {"number": row.number, "previous": row.previous, "hash": row.hash, **_texts(row.entry)} for row in rows
        ]
        await connection.execute(insert(audit), values)
        await connection.execute(update(audit_head).values(number=rows[-1].number, hash=rows[-1].hash))
    return rows


def _texts(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in Entry.__struct_fields__}


def _row(found: Found[Any]) -> Row:
    entry = Entry(**{name: getattr(found, name) for name in Entry.__struct_fields__})
    return Row(found.number, entry, found.previous, found.hash)
