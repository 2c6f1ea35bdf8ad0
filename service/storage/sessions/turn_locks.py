"""Turn locks let one turn of a session run at a time, over all instances that share a PostgreSQL.

Within a process turns wait in a line, in order of arrival. On PostgreSQL the first of the line then takes an advisory
lock, on one connection that all turns of an instance share: when an instance dies its connection ends, and its locks
end too. Between instances the order is not defined, but each gets its chance. Where that connection is lost, so are its
locks; then the session's revision keeps two turns apart, and the second gets a Conflict.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from sqlalchemy import FunctionElement, func
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import DosirakError, Overloaded, Unavailable
from service.storage.database.database import Database, translated

MOST_IN_LINE = 32
"""Turns of one session that wait behind the one that runs."""
MOST_WAITING = 512
"""Turns of all sessions that wait."""
RETRY_SECONDS = 5.0
_POLL_SECONDS = 0.02


class TurnLocks:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._lines: dict[tuple[str, str], _Line] = {}
        self._waiting = 0
        self._connection: AsyncConnection | None = None
        self._statement = asyncio.Lock()  # a connection takes one statement at a time

    async def close(self) -> None:
        if self._connection is not None:
            await self._drop(self._connection)

    @asynccontextmanager
    async def held(self, owner: str, session: str) -> AsyncIterator[None]:
        """Holds the session for the caller until the block ends. Raises Unavailable where the database cannot be
        reached, Overloaded where the line is full."""
        key = (owner, session)
        line = self._lines.get(key) or _Line()
        self._refuse_more(line)
        self._lines[key] = line
        line.members += 1
        handed_on = line.lock.locked()
        try:
            async with AsyncExitStack() as held:
                with self._counted():
                    await held.enter_async_context(line.lock)
                    if not self._database.is_sqlite:
                        await held.enter_async_context(self._taken(_name(key), handed_on))
                yield
        finally:
            line.members -= 1
            if not line.members:
                del self._lines[key]

    def _refuse_more(self, line: _Line) -> None:
        """Raises Overloaded where one more may not wait. Another instance may hold a session that has no line here."""
        may_wait = line.members > 0 or not self._database.is_sqlite
        if line.members > MOST_IN_LINE or (may_wait and self._waiting >= MOST_WAITING):
            whose, waiting = ("this session", MOST_IN_LINE) if line.members > MOST_IN_LINE else ("all", self._waiting)
            raise Overloaded(
                f"{waiting} turns of {whose} wait already: send one when another was answered",
                retry_after=RETRY_SECONDS,
            )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def _taken(self, name: FunctionElement[int], handed_on: bool) -> AsyncIterator[None]:
        if handed_on:
            await asyncio.sleep(2 * _POLL_SECONDS)  # another instance's turn gets its chance
        connection = await self._take(name)
        try:
            yield
        finally:
            await self._database.finish(self._give_back(connection, name))

    async def _take(self, name: FunctionElement[int]) -> AsyncConnection:
        while True:
            attempt = asyncio.create_task(self._try(name))
            try:
                connection = await asyncio.shield(attempt)
            except asyncio.CancelledError:
                await self._database.finish(self._undo(attempt, name))
                raise
            if connection is not None:
                return connection
            await asyncio.sleep(_POLL_SECONDS)

    async def _undo(self, attempt: asyncio.Task[AsyncConnection | None], name: FunctionElement[int]) -> None:
        """Gives back the lock of an attempt whose caller is gone: it may have succeeded."""
        try:
            connection = await attempt
        except DosirakError:
            return
        if connection is not None:
            await self._give_back(connection, name)

    async def _try(self, name: FunctionElement[int]) -> AsyncConnection | None:
        """Returns the connection that now holds the lock; None where another connection holds it. Replaces a lost
        connection once."""
        async with self._statement:
            try:
                return await self._ask(name)
            except Unavailable:
                return await self._ask(name)

    async def _ask(self, name: FunctionElement[int]) -> AsyncConnection | None:
        with translated(self._database.outages):
            connection = self._connection
            if connection is None:
                connection = self._connection = await self._database.lasting()
            try:
                return connection if await connection.scalar(func.pg_try_advisory_lock(name)) else None
            except BaseException:
                await self._drop(connection)
                raise

    async def _give_back(self, connection: AsyncConnection, name: FunctionElement[int]) -> None:
        async with self._statement:
            if connection is not self._connection:
                return  # the connection was lost, and the lock with it
            try:
                await connection.scalar(func.pg_advisory_unlock(name))
            except Exception:
                await self._drop(connection)  # the lock ends with it

    async def _drop(self, connection: AsyncConnection) -> None:
        self._connection = None
        await connection.invalidate()
        await connection.close()


@dataclass(slots=True)
class _Line:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    members: int = 0


def _name(key: tuple[str, str]) -> FunctionElement[int]:
    return func.hashtextextended("\x1f".join(("turn", *key)), 0)
