"""Stored usage adds counts to those of all instances, and reads them: the owner's own, or for operators everybody's. It
holds numbers alone, and no owner's content."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import Insert, Row, and_, delete, func, literal_column, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from service.storage.cursors import decode, encode
from service.storage.database.database import Database, uninterrupted
from service.storage.database.tables import usage
from service.storage.sessions.limits import check_text
from service.storage.sessions.rows import page_of
from service.storage.sessions.values import Page
from service.storage.usage import COUNTED, HOUR, KEPT, WINDOWS, Bucket, Counts, Used, Wanted

_KIND: Final = "usage"
_BETWEEN: Final = " "
_LARGEST: Final = 1 << 53


class StoredUsage:
    def __init__(self, database: Database) -> None:
        self._database = database

    @uninterrupted("maintain")
    async def count(self, counts: Mapping[Bucket, Counts]) -> None:
        """Adds to what is counted already, all or nothing. Instances add in one order, so that none waits for another
        that waits for it."""
        rows = [
            {**bucket._asdict(), **{name: counts[bucket].get(name, 0) for name in COUNTED}} for bucket in sorted(counts)
        ]
        if rows:
            async with self._database.writing() as connection:
                await connection.execute(_adding(self._database.is_sqlite), rows)

    @uninterrupted("maintain")
    async def spent(self, owners: Collection[str], now: float) -> dict[str, defaultdict[Bucket, Counter[str]]]:
        """Returns what each of these owners has used of the quotas' periods, this one and the one before."""
        its = usage.c
        current = (and_(its.seconds == each, its.start >= int(now // each - 1) * each) for each in WINDOWS)
        statement = select(usage).where(its.owner.in_(owners), or_(*current))
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).all()
        found = {owner: defaultdict[Bucket, Counter[str]](Counter) for owner in owners}
        for row in rows:
            found[row.owner][Bucket(row.owner, row.seconds, row.start, row.model)].update(_counts(row))
        return found

    @uninterrupted("read")
    async def used(self, wanted: Wanted, cursor: str | None, limit: int) -> Page[Used]:
        """Returns usage, newest first. Raises InvalidRequest for a cursor of another list, and for a NUL."""
        check_text(wanted.owner, "key")
        check_text(wanted.model, "model")
        its = usage.c
        began = (its.start - its.start % literal_column(str(wanted.seconds))).label("began")
        order = began, its.owner, its.model
        chosen = [its.seconds == HOUR, its.start >= wanted.since, its.start < wanted.until]
        if wanted.owner is not None:
            chosen.append(its.owner == wanted.owner)
        if wanted.model is not None:
            chosen.append(
                or_(its.model == wanted.model, func.substr(its.model, 1, len(wanted.model) + 1) == f"{wanted.model}:")
            )
        if cursor is not None:
            chosen.append(tuple_(*order) < tuple_(*_position(cursor)))
        sums = (func.sum(its[name]).label(name) for name in COUNTED)
        statement = select(*order, *sums).where(*chosen).group_by(*order).order_by(*(each.desc() for each in order))
        async with self._database.reading() as connection:
            rows = list((await connection.execute(statement.limit(limit + 1))).all())
        return page_of(rows, limit, _used_of, _cursor_of)


@cache
def _adding(is_sqlite: bool) -> Insert:
    """Returns the statement that adds counts to what there is. It is made once: such a statement is a ring of some 400
    objects, and counts are written every second."""
    statement = (sqlite.insert if is_sqlite else postgresql.insert)(usage)
    more = {name: usage.c[name] + statement.excluded[name] for name in COUNTED}
    return statement.on_conflict_do_update(index_elements=Bucket._fields, set_=more)


async def remove_old(connection: AsyncConnection, now: float) -> None:
    """Removes what is kept no longer."""
    for seconds, kept in KEPT.items():
        await connection.execute(delete(usage).where(usage.c.seconds == seconds, usage.c.start <= int(now) - kept))


def _counts(row: Row[Any]) -> dict[str, int]:
    return {name: int(row._mapping[name]) for name in COUNTED}


def _used_of(row: Row[Any]) -> Used:
    return Used(datetime.fromtimestamp(row.began, UTC), row.owner, row.model, _counts(row))


def _cursor_of(row: Row[Any]) -> str:
    return encode(_KIND, row.began, f"{row.owner}{_BETWEEN}{row.model}")


def _position(cursor: str) -> tuple[int, str, str]:
    began, place = decode(_KIND, cursor, lambda each: type(each) is int and abs(each) < _LARGEST)
    owner, _, model = place.partition(_BETWEEN)
    return began, owner, model
