"""A database is SQLite or PostgreSQL: its transactions are durable when they end, and its waits are bounded.

It knows no tables. In SQLite one writer at a time holds the file (`BEGIN IMMEDIATE`) and readers go on beside it; a
commit returns when its log is on the disk (WAL, `synchronous=FULL`). PostgreSQL does the same by `synchronous_commit`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from sqlalchemy import event, func, select
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from service.errors import Unavailable
from service.storage.database.failures import busy, failure, kind, outlives, reason
from service.storage.database.operations import Operation
from service.storage.database.sqlite_engine import sqlite_engine
from service.storage.outages import SESSIONS, Outages
from service.tasks import Unbroken

DRIVERS = ("sqlite+aiosqlite", "postgresql+asyncpg")
Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
Observe = Callable[[str, float], None]
Self_ = TypeVar("Self_", bound="OnDatabase")
CONNECTING, READING, WRITING = "connecting", "reading", "writing"
"""What of a database fails alone."""
_POLL_SECONDS = 0.05
_POOL = 8


class Database:
    """One database, used by one event loop. `patience` is the longest wait for a lock, a free connection or a result,
    in seconds."""

    def __init__(
        self,
        url: str,
        patience: float,
        observe: Observe | None = None,
        outages: Outages | None = None,
        is_hurried: bool = True,
    ) -> None:
        """Opens nothing yet. `observe` gets the kind and the seconds of every call, `outages` what fails. PostgreSQL
        ends a statement that takes longer than four times `patience`, where `is_hurried`. Raises ValueError for a URL
        of another kind of database."""
        parsed = _parsed(url)
        self._url = url
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self._patience = patience
        self._writer = asyncio.Lock()
        self._calls = Unbroken()
        self._observe = observe
        self.outages = outages or Outages(SESSIONS)
        self.engine = (
            sqlite_engine(parsed, patience, _POOL)
            if self.is_sqlite
            else _postgresql(parsed, patience, 4 * patience if is_hurried else None)
        )
        event.listen(self.engine.sync_engine, "handle_error", _renew)

    async def close(self) -> None:
        """Closes the database after the calls that still run have ended."""
        await self._calls.ended()
        await self.engine.dispose()

    @asynccontextmanager
    async def unhurried(self) -> AsyncIterator[Database]:
        """Yields the same database, whose statements may take as long as they need: those of a migration grow with the
        tables."""
        if self.is_sqlite:
            yield self
            return
        database = Database(self._url, self._patience, outages=self.outages, is_hurried=False)
        try:
            yield database
        finally:
            await database.close()

    async def finish(self, call: Coroutine[Any, Any, Result], operation: Operation | None = None) -> Result:
        """Runs `call` to its end even when the caller is cancelled: a transaction left in the middle would keep its
        locks until the database notices. Its time is observed as `operation`, if there is one."""
        return await self._calls.finish(self._timed(call, operation))

    async def _timed(self, call: Coroutine[Any, Any, Result], operation: Operation | None) -> Result:
        if self._observe is None or operation is None:
            return await call
        started = time.monotonic()
        try:
            return await call
        finally:
            self._observe(operation, time.monotonic() - started)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """Opens a snapshot: all reads inside see one moment. Raises what `failures` says."""
        async with self._transaction(writing=False) as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """Opens a transaction: when it ends all writes inside are durable; when it raises none is kept."""
        async with self._turn(), self._transaction(writing=True) as connection:
            yield connection

    async def require_writing(self) -> None:
        """Raises what a write would raise, where calls failed."""
        if self.outages.is_failing():
            async with self.writing() as connection:
                await connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[AsyncConnection]:
        """Opens a connection without a transaction, for statements that allow none."""
        with translated(self.outages, WRITING):
            async with self.engine.connect() as connection:
                yield await connection.execution_options(isolation_level="AUTOCOMMIT")

    async def lasting(self) -> AsyncConnection:
        """Returns a connection without a transaction, which the caller keeps and closes."""
        connection = await self.engine.connect()
        return await connection.execution_options(isolation_level="AUTOCOMMIT")

    async def lock(self, connection: AsyncConnection, *name: str) -> None:
        """Holds the lock `name` to the end of the transaction. SQLite needs none: it has one writer at a time."""
        if not self.is_sqlite:
            number = func.hashtextextended("\x1f".join(name), 0)
            await connection.execute(select(func.pg_advisory_xact_lock(number)))

    async def truncate_log(self) -> None:
        """Moves SQLite's log into its file and leaves the log empty. Raises Unavailable where a reader holds the log
        too long."""
        deadline = asyncio.get_running_loop().time() + self._patience
        while True:
            async with self.alone() as connection:
                blocked = (await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")).one()[0]
            if not blocked:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(
                    "It is deleted, but a reader holds the database's log with its bytes: ask again", retry_after=5
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def rewrite(self) -> None:
        """Writes SQLite's file anew, without the copies of deleted rows that moving rows between pages left behind.
        Takes time and disk in proportion to the file; no other write runs meanwhile."""
        async with self._turn(), self.alone() as connection:
            await connection.exec_driver_sql("VACUUM")

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Queues this process's writers: SQLite has one writer at a time. Raises Unavailable."""
        if not self.is_sqlite:
            yield
            return
        loop, half = asyncio.get_running_loop(), self._patience / 2
        try:
            async with asyncio.timeout(None) as limit:
                # The second half begins when the loop gets to it: a process that stood still has waited for nothing.
                halfway = loop.call_later(half, lambda: limit.reschedule(loop.time() + half))
                try:
                    await self._writer.acquire()
                finally:
                    halfway.cancel()
        except TimeoutError:
            raise busy() from None
        try:
            yield
        finally:
            self._writer.release()

    @asynccontextmanager
    async def _transaction(self, *, writing: bool) -> AsyncIterator[AsyncConnection]:
        async with AsyncExitStack() as stack:
            with translated(self.outages, CONNECTING):
                connection = await stack.enter_async_context(self.engine.connect())
            self.outages.ended(CONNECTING, quiet=0)
            with translated(self.outages, WRITING if writing else READING):
                await connection.execution_options(**self._options(writing))
                async with connection.begin():
                    yield connection
            self.outages.ended(READING, *([WRITING] if writing else []))

    def _options(self, writing: bool) -> dict[str, Any]:
        if self.is_sqlite:
            return {"writing": writing}
        return {} if writing else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


class OnDatabase(Protocol):
    _database: Database


Method: TypeAlias = Callable[Concatenate[Self_, Parameters], Coroutine[Any, Any, Result]]


def uninterrupted(
    operation: Operation,
) -> Callable[[Method[Self_, Parameters, Result]], Method[Self_, Parameters, Result]]:
    """Makes a method run to its end when its caller is cancelled, as when a client disconnects. Its time is observed as
    `operation`."""

    def finished(method: Method[Self_, Parameters, Result]) -> Method[Self_, Parameters, Result]:
        @wraps(method)
        async def call(self: Self_, /, *arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
            return await self._database.finish(method(self, *arguments, **options), operation)

        return call

    return finished


class translated:
    """Turns the database's errors into those of `failures`, and tells `outages` of them."""

    def __init__(self, outages: Outages, part: str = CONNECTING) -> None:
        self._outages = outages
        self._part = part

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and (known := failure(error)) is not None:
            self._outages.began(self._part, known.message, reason(error), kind(error))
            raise known from error


def _renew(context: ExceptionContext) -> None:
    context.is_disconnect = context.is_disconnect or outlives(context.original_exception)


def sqlite_file(url: str) -> Path | None:
    """Returns the file of a SQLite database, which may not be there; None for PostgreSQL. Raises ValueError as
    `Database`."""
    parsed = _parsed(url)
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ValueError("not a database URL: write postgresql+asyncpg://user:password@host/name") from None
    if parsed.drivername not in DRIVERS:
        raise ValueError(f"{parsed.drivername} is not supported: begin the URL with {' or '.join(DRIVERS)}")
    if parsed.get_backend_name() == "postgresql" and find_spec("asyncpg") is None:
        raise ValueError("PostgreSQL needs its driver: pip install 'dosirak[postgres]'")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ValueError("a database in memory keeps nothing: name a file, as sqlite+aiosqlite:////var/lib/sessions.db")
    return parsed


def _postgresql(url: URL, patience: float, statement_seconds: float | None) -> AsyncEngine:
    waits = str(int(patience * 1000))
    settings = {"synchronous_commit": "on", "lock_timeout": waits, "idle_in_transaction_session_timeout": "60000"}
    settings |= {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
    return create_async_engine(
        url,
        pool_size=_POOL + 1,  # the extra one is for the locks of turns
        max_overflow=0,
        pool_timeout=patience,
        pool_pre_ping=True,
        connect_args={"timeout": patience, "command_timeout": statement_seconds, "server_settings": settings},
    )
