"""The link is the connection of one process to the shared records: it opens the database, listens, looks every second,
and tells that the process is there. It lives in an event loop of its own and fills the mirror.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from models.errors import Conflict, NotFound
from service.errors import DosirakError, Unavailable
from service.storage.database.database import Database, translated
from service.storage.database.failures import reason
from service.storage.database.migrating import upgrade
from service.storage.outages import SESSIONS, Outages
from service.storage.records import statements
from service.storage.records.mirror import Mirror
from service.storage.records.presence import BEAT_SECONDS, MOST_CLOCK_SECONDS, Identity, Instance, clock_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE_SECONDS: Final = 5.0
LOCK_POLL_SECONDS: Final = 0.02
_FORGET_EVERY: Final = 30
Adopt = Callable[[], Iterable[tuple[str, str, str | None]]]
"""What a data directory holds that the records of an empty database begin with."""
log = structlog.get_logger(__name__)


class Link:
    """`on_mirror` gets the mirror when it is there: the database's, or at a start without it the copy's. `on_others`
    gets it once, where the records began with those of another data directory, or of this one at an earlier start."""

    def __init__(
        self,
        url: str,
        directory: Path,
        identity: Identity,
        *,
        adopt: Adopt,
        on_mirror: Callable[[Mirror], None],
        on_others: Callable[[Mirror], None] = lambda mirror: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._directory = directory
        self._identity = identity
        self._adopt = adopt
        self._on_mirror = on_mirror
        self._on_others: Callable[[Mirror], None] | None = on_others
        self._clock = clock
        self._database: Database | None = None
        self._mirror: Mirror | None = None
        self._listening: AsyncConnection | None = None
        self._woken = asyncio.Event()
        self._looking = asyncio.Lock()
        self._held = Counter[tuple[str, str]]()
        self._held_there: set[tuple[str, str]] | None = None
        self._looks = 0
        self.reachable: bool | None = None
        """None before the first look has ended."""
        self.clock_seconds = 0.0
        """How far this clock is ahead of the database's, at least; negative where it is behind."""
        self.state: str | None = None
        """What a server tells of itself; None for a process that only holds leases."""

    async def follow(self) -> None:
        """Looks for ever: every second, and at once when a change is told."""
        while True:
            self._woken.clear()
            try:
                async with self._looking:
                    await self._look()
                self._reached()
            except Exception as error:  # the next look tries again; changes are refused meanwhile
                self._lost(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._woken.wait()

    async def close(self) -> None:
        """Takes this process out of the list of instances, and its leases with it."""
        if self._database is None:
            return
        with suppress(Exception):
            async with asyncio.timeout(1), self._database.writing() as connection:
                await statements.leave(connection, self._identity.id)
        with suppress(Exception):
            await self._drop_listening()
            await self._database.close()

    # Changes

    async def take(self, name: str, patience: float) -> AsyncConnection:
        """Returns a connection that holds the model's lock; the mirror then has all changes before. Raises Conflict."""
        database = self._opened()
        deadline = time.monotonic() + patience
        with translated(database.outages):
            connection = await database.engine.connect()
        try:
            with translated(database.outages):
                while not await connection.scalar(select(func.pg_try_advisory_lock(statements.lock_of(name)))):
                    await connection.commit()
                    if time.monotonic() > deadline:
                        raise Conflict(f"{name} is being changed by another caller; try again")
                    await asyncio.sleep(LOCK_POLL_SECONDS)
                await self._refresh(connection)
                await connection.commit()
        except BaseException:
            await _end(connection)
            raise
        return connection

    async def give_back(self, connection: AsyncConnection, name: str) -> None:
        """Releases the lock; where that fails the connection ends, and the lock with it."""
        try:
            await connection.scalar(select(func.pg_advisory_unlock(statements.lock_of(name))))
            await connection.commit()
            await connection.close()
        except Exception:
            await _end(connection)

    async def write(self, connection: AsyncConnection, changes: list[tuple[str, str, str | None]]) -> None:
        """Makes changes on a connection that holds their model's lock, durably, and takes them into the mirror."""
        with translated(self._opened().outages):
            await statements.write(connection, changes)
            await connection.commit()
            await self._refresh(connection)
            await connection.commit()

    # Leases

    async def lease(self, name: str, version: str) -> None:
        """Tells that this process uses a version. While the database is away it is told later: the files here are
        kept by a lock all the same. Raises NotFound for a version that is deleted."""
        self._held[name, version] += 1
        if self.reachable is False or (self._held_there is not None and (name, version) in self._held_there):
            return
        try:
            while True:
                if await self._tell_lease(name, version):
                    return
                await asyncio.sleep(LOCK_POLL_SECONDS)
        except NotFound:
            self.release(name, version)
            raise
        except DosirakError as error:
            log.warning("lease_not_told", model=f"{name}:{version}", reason=error.message)

    async def _tell_lease(self, name: str, version: str) -> bool:
        """Returns False while another instance changes the model: it may be deleting the version. One transaction at
        a time writes this process's leases."""
        async with self._looking, self._transaction() as connection:
            taken = func.pg_try_advisory_xact_lock_shared(statements.lock_of(name))
            if not await connection.scalar(select(taken)):
                return False
            mirror = await self._refresh(connection)
            if version in mirror.history(name).deleted:
                raise NotFound(f"{name}:{version} was deleted")
            await self._beat(connection)
            return True

    def release(self, name: str, version: str) -> None:
        self._held[name, version] -= 1
        if self._held[name, version] <= 0:
            del self._held[name, version]
            self._woken.set()

    async def holders(self, connection: AsyncConnection, name: str, version: str) -> list[str]:
        """Returns the other living instances that use a version."""
        with translated(self._opened().outages):
            found = await statements.holders(connection, name, version, self._identity.id)
            await connection.commit()
            return found

    async def servers(self) -> list[Instance]:
        async with self._transaction() as connection:
            return await statements.servers(connection)

    async def refresh(self) -> None:
        """Takes in what others have changed until now."""
        async with self._transaction() as connection:
            await self._refresh(connection)

    # Inside

    async def _look(self) -> None:
        self._looks += 1
        if self._database is None:
            await self._begin()
        async with self._transaction() as connection:
            mirror = await self._refresh(connection)
            if self.state is not None or self._held or self._held_there:
                await self._beat(connection)
                if self._looks % _FORGET_EVERY == 1:
                    await statements.forget_dead(connection)
        if self._on_others is not None:
            on_others, self._on_others = self._on_others, None
            on_others(mirror)
        if self._listening is None:
            await self._listen()

    def _opened(self) -> Database:
        if self._database is None:
            raise Unavailable("The database was not reached yet")
        return self._database

    async def _begin(self) -> None:
        """Brings the schema up to date, and gives records that are empty what the data directory holds."""
        database = Database(self._url, PATIENCE_SECONDS, outages=Outages(SESSIONS, is_logged=False))  # `_lost` tells
        try:
            await upgrade(database)
            async with database.writing() as connection:
                await connection.execute(select(func.pg_advisory_xact_lock(statements.lock_of(""))))
                if not (await statements.state(connection)).revision:
                    self._on_others = None
                    if found := list(self._adopt()):
                        await statements.write(connection, found)
                        log.info("records_moved", changes=len(found))
        except BaseException:
            await database.close()
            raise
        self._database = database

    async def _refresh(self, connection: AsyncConnection) -> Mirror:
        """Takes in what is new. A database that was restored to an earlier moment, or is another one, is read anew."""
        before = self._clock()
        state = await statements.state(connection)
        self._note_clock(clock_error(state.now.timestamp(), before, self._clock()))
        mirror = self._mirror
        if mirror is None or mirror.database_id != state.database_id or mirror.revision > state.revision:
            mirror = Mirror(state.database_id)
        if mirror.revision < state.revision:
            mirror.apply(await statements.since(connection, mirror.revision))
            with suppress(OSError):  # a full disk costs the copy only
                mirror.save(self._directory)
        if mirror is not self._mirror:
            self._mirror = mirror
            self._on_mirror(mirror)
        return mirror

    async def _beat(self, connection: AsyncConnection) -> None:
        held, there = set(self._held), self._held_there
        self._held_there = None  # a lease that is taken meanwhile is not told by this
        try:
            is_new = await statements.beat(connection, self._identity, self.state or "{}")
            if is_new or held != there:
                await statements.put_leases(connection, self._identity.id, sorted(held))
                there = held
        finally:
            self._held_there = there

    async def _listen(self) -> None:
        connection = await self._opened().lasting()
        raw: Any = await connection.get_raw_connection()
        await raw.driver_connection.add_listener(statements.CHANNEL, lambda *notice: self._woken.set())
        raw.driver_connection.add_termination_listener(lambda *lost: self._woken.set())
        self._listening = connection
        self._woken.set()  # what changed before we listened

    async def _drop_listening(self) -> None:
        connection, self._listening = self._listening, None
        if connection is not None:
            await _end(connection)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        async with self._opened().writing() as connection:
            yield connection

    def _note_clock(self, error: float) -> None:
        was_apart, is_apart = (abs(each) > MOST_CLOCK_SECONDS for each in (self.clock_seconds, error))
        self.clock_seconds = error
        if is_apart and not was_apart:
            log.error("clock_apart", ahead_seconds=round(error, 3), most_seconds=MOST_CLOCK_SECONDS)
        elif was_apart and not is_apart:
            log.info("clock_agrees")

    def _reached(self) -> None:
        if self.reachable is False:
            log.info("records_reached")
        self.reachable = True

    def _lost(self, error: Exception) -> None:
        if self.reachable is not False:
            log.error("records_unreachable", reason=reason(error.__cause__ or error))
        self.reachable = False
        self._held_there = None
        listening, self._listening = self._listening, None
        if listening is not None:
            self._ending = asyncio.ensure_future(_end(listening))
        if self._mirror is None and (copy := Mirror.saved(self._directory)) is not None:
            self._mirror = copy
            self._on_mirror(copy)


async def _end(connection: AsyncConnection) -> None:
    with suppress(Exception):
        await connection.invalidate()
    with suppress(Exception):
        await connection.close()
