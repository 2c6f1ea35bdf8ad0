"""Owned is the only module that builds statements for a caller: each statement is bound to its owner, and to sessions
that have not expired.

No other module of the package can reach the tables (tests/test_architecture.py), so no query can forget the owner. The
row of another owner is not refused; for the caller it does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Delete,
    Row,
    Select,
    Update,
    and_,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import NotFound
from service.storage.database import tables
from service.storage.database.database import Database
from service.storage.sessions.limits import Limits

Name = Literal[
    "sessions",
    "messages",
    "summaries",
    "feedback",
    "knowledge",
    "passages",
    "idempotency",
    "answers",
    "files",
    "batches",
]


class Owned:
    """Builds statements about what `owner` has at the time `now`."""

    def __init__(self, owner: str, now: datetime) -> None:
        self.owner = owner
        self.now = now

    def columns(self, name: Name) -> Any:
        """Returns the columns of a table, for conditions and orders in addition to the owner's."""
        return tables.metadata.tables[name].c

    def select(self, name: Name, *columns: str) -> Select[Any]:
        table = tables.metadata.tables[name]
        return select(*(table.c[column] for column in columns or table.c.keys())).where(self._visible(name))

    def update(self, name: Name) -> Update:
        return update(tables.metadata.tables[name]).where(self._mine(name))

    def delete(self, name: Name) -> Delete:
        return delete(tables.metadata.tables[name]).where(self._mine(name))

    async def insert(self, connection: AsyncConnection, name: Name, rows: Sequence[Mapping[str, object]]) -> list[int]:
        """Stores `rows` as the owner's. Returns their new numbers in the same order (for tables that have numbers)."""
        table = tables.metadata.tables[name]
        owned = [{**row, "owner": self.owner} for row in rows]
        if "number" not in table.c:
            await connection.execute(insert(table), owned)
            return []
        statement = insert(table).returning(table.c.number, sort_by_parameter_order=True)
        return list((await connection.execute(statement, owned)).scalars())

    async def session(self, connection: AsyncConnection, id: str, *, lock: bool = False) -> Row[Any]:
        """Returns the session's row; with `lock` no other transaction changes it before this one ends. Raises NotFound,
        also for another owner's session and for an expired one."""
        statement = self.select("sessions").where(self.columns("sessions").id == id)
        missing = no_session(id)
        return await one(connection, statement.with_for_update() if lock else statement, id, missing)

    async def message(self, connection: AsyncConnection, session: Row[Any], id: str) -> Row[Any]:
        """Returns the message's row. Raises NotFound where the session has no such message."""
        its = self.columns("messages")
        statement = self.select("messages").where(its.session == session.number, its.id == id)
        missing = NotFound(f"The session has no message {id[:80]!r}", param="message_id")
        return await one(connection, statement, id, missing)

    async def named(
        self, connection: AsyncConnection, name: Literal["files", "batches"], id: str, param: str, *, lock: bool = False
    ) -> Row[Any]:
        """Returns the row with this id; `lock` as in `session`. Raises NotFound, which names the parameter."""
        statement = self.select(name).where(self.columns(name).id == id)
        missing = NotFound(f"There is no such thing as {id[:80]!r}; GET /v1/{name} lists your {name}", param=param)
        return await one(connection, statement.with_for_update() if lock else statement, id, missing)

    async def behind(
        self,
        connection: AsyncConnection,
        name: Literal["files", "batches"],
        after: str | None,
        *,
        newest_first: bool = True,
    ) -> Select[Any]:
        """Returns the statement of the rows behind the one with the id `after`, or of all. Raises NotFound."""
        its = self.columns(name)
        statement, place = self.select(name), tuple_(its.created_at, its.number)
        if after is not None:
            last = await self.named(connection, name, after, "after")
            reached = last.created_at, last.number
            statement = statement.where(place < reached if newest_first else place > reached)
        columns = its.created_at, its.number
        return statement.order_by(*(each.desc() if newest_first else each.asc() for each in columns))

    async def count(self, connection: AsyncConnection, statement: Select[Any], most: int | None = None) -> int:
        """Returns how many rows a statement of this object finds, counted up to `most`."""
        some = statement.limit(most).subquery()
        return (await connection.execute(select(func.count()).select_from(some))).scalar_one()

    def _visible(self, name: Name) -> ColumnElement[bool]:
        """Returns the condition of reading. A vote is read while the sessions of all its answers have not expired."""
        if name != "feedback":
            return self._mine(name)
        its = tables.feedback.c
        other = or_(its.other_session.is_(None), self._has_not_expired(its.other_session))
        return and_(self._mine(name), self._has_not_expired(its.session), other)

    def _has_not_expired(self, session: ColumnElement[Any]) -> ColumnElement[bool]:
        """Returns the condition that the session of this number has not expired."""
        its = tables.sessions.alias()
        return exists(select(its.c.number).where(its.c.number == session, its.c.expires_at > self.now))

    def _mine(self, name: Name) -> ColumnElement[bool]:
        table = tables.metadata.tables[name]
        mine: ColumnElement[bool] = table.c.owner == self.owner
        if name == "files":
            return and_(mine, or_(table.c.expires_at.is_(None), table.c.expires_at > self.now))
        return and_(mine, table.c.expires_at > self.now) if name in ("sessions", "answers") else mine


class StoredKind:
    """A kind of thing that owners have: the base of the store's parts."""

    def __init__(
        self, database: Database, owned: Callable[[str], Owned], limits: Limits, leave_traces: Callable[[], None]
    ) -> None:
        """`leave_traces` is called where rows were removed: the store's next sweep clears what is left of them."""
        self._database = database
        self._owned = owned
        self._limits = limits
        self._leave_traces = leave_traces


async def one(connection: AsyncConnection, statement: Select[Any], id: str, missing: NotFound) -> Row[Any]:
    """Returns the row that a statement finds by this id. Raises `missing` where there is none."""
    found = await connection.execute(statement) if is_id(id) else None
    if found is None or (row := found.one_or_none()) is None:
        raise missing
    return row


def no_session(id: str) -> NotFound:
    """Returns the error of who names a session that is not there, or not the owner's."""
    return NotFound(f"There is no session {id[:80]!r}; GET /v1/sessions lists yours", param="session_id")


def is_id(text: str) -> bool:
    """Returns whether a database can look up this text: PostgreSQL takes no U+0000, and no driver takes half a
    character."""
    return text.isascii() and "\x00" not in text
