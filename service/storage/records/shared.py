"""Shared records are those of all instances on one PostgreSQL: reads come from a mirror in memory, changes go to the
database, under the model's lock there.

Callers are threads and know no event loop; the link has one, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from models.errors import Conflict, RepositoryError, Unreachable
from models.repository.disk import durable
from models.repository.disk.journal import Entry, History, line_of
from models.repository.disk.layout import Layout
from models.repository.disk.records import FileRecords
from service.errors import DosirakError
from service.storage.records.mirror import JOURNAL, Mirror, changes_of, unread
from service.storage.records.presence import MOST_CLOCK_SECONDS, Identity, Instance
from service.tasks import cancelled

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from service.storage.records.link import Link

log = structlog.get_logger(__name__)
Result = TypeVar("Result")
LEASE_SECONDS: Final = 1.0
"""How long a load waits until its lease is told."""
END_SECONDS: Final = 1.0
"""How long calls have to end when the records are closed."""
FIRST_LOOK_SECONDS: Final = 15.0
"""How long a command waits for the database at its first read."""


class SharedRecords:
    """The records behind `url`, for one process. It begins to follow them at once, and ends with `close` or the
    process."""

    shared = True

    def __init__(self, url: str, layout: Layout, identity: Identity, **link: Any) -> None:
        self.identity = identity
        self._layout = layout
        self._mirror: Mirror | None = None
        self._has_mirror = threading.Event()
        self._locks = threading.local()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(url, link), name="records", daemon=True)
        self._started = threading.Event()
        self._asking = threading.Lock()
        self._has_ended = False
        self._link: Link
        self._thread.start()
        self._started.wait()

    def close(self) -> None:
        """Takes this process out of the list of instances and ends its connections."""
        self._call_soon(self._following.cancel)
        self._thread.join(10)

    # As `Records` says

    @contextmanager
    def locked(self, name: str, timeout: float) -> Iterator[None]:
        self._read()
        with durable.locked(self._layout.lock(name), timeout):
            connection = self._call(self._link.take(name, timeout))
            self._locks.connection = connection
            try:
                yield
            finally:
                self._locks.connection = None
                self._call(self._link.give_back(connection, name))

    def history(self, name: str) -> History:
        return self._read().history(name)

    def append(self, name: str, entry: Entry) -> None:
        self.extend(name, (entry,))

    def extend(self, name: str, entries: Iterable[Entry]) -> None:
        """Adds entries to a model's journal, all or none. The caller holds the model's lock."""
        self._write(*((JOURNAL, name, line_of(entry).decode()) for entry in entries))

    def documents(self, kind: str) -> list[str]:
        return self._read().documents(kind)

    def document(self, kind: str, name: str) -> bytes | None:
        return self._read().document(kind, name)

    def put_document(self, kind: str, name: str, content: bytes | None) -> None:
        self._write((kind, name, None if content is None else content.decode()))

    def lease(self, name: str, version: str) -> Callable[[], None]:
        with suppress(TimeoutError):  # told all the same, when the database answers
            self._call(self._link.lease(name, version), LEASE_SECONDS)
        return lambda: self._call_soon(lambda: self._link.release(name, version))

    def refuse_leased(self, name: str, version: str) -> None:
        holders = self._call(self._link.holders(self._locked_connection(), name, version))
        if holders:
            raise Conflict(f"{name}:{version} is in use by instance {', '.join(holders)}; unload it there first")

    # Beside them

    def wait(self, timeout: float = FIRST_LOOK_SECONDS) -> None:
        """Waits for the first look at the database, or for the copy. Raises Unreachable."""
        if not self._has_mirror.wait(timeout):
            raise self._unreachable()

    def refresh(self) -> None:
        """Takes in what others have changed until now. Raises Unreachable."""
        self._call(self._link.refresh())

    def tell(self, state: dict[str, object]) -> None:
        """Tells, with the next heartbeat, what this server says of itself."""
        self._link.state = json.dumps(state)

    def servers(self) -> list[Instance]:
        """Returns the servers that share the records. Raises Unreachable."""
        return self._call(self._link.servers())

    @property
    def database_id(self) -> str:
        """Returns the id that the database was given when its tables were made, as soon as it is known. Raises
        Unreachable."""
        self.wait()
        return self._read().database_id

    @property
    def is_reachable(self) -> bool:
        """Returns whether the last look at the database succeeded."""
        return self._link.reachable is True

    @property
    def clock_seconds(self) -> float:
        """Returns how far this clock is ahead of the database's, at least; negative where it is behind."""
        return self._link.clock_seconds

    @property
    def unfit(self) -> str | None:
        """Returns a sentence that says why this instance must not answer now; None where it may."""
        apart = self._link.clock_seconds
        if abs(apart) <= MOST_CLOCK_SECONDS:
            return None
        where = "ahead of" if apart > 0 else "behind"
        return (
            f"The clock of this instance is {abs(apart):.1f} s {where} the database's, at most "
            f"{MOST_CLOCK_SECONDS:g} s are allowed: set the clocks"
        )

    # Inside

    def _run(self, url: str, options: dict[str, Any]) -> None:
        from service.storage.records.link import Link  # here, for its libraries take long to import

        asyncio.set_event_loop(self._loop)
        files = FileRecords(self._layout)
        self._link = Link(
            url,
            self._layout.data_dir,
            self.identity,
            on_mirror=self._take_mirror,
            on_others=lambda mirror: self._warn_of_unread(unread(files, mirror)),
            **{"adopt": lambda: changes_of(files), **options},
        )
        self._following = self._loop.create_task(self._link.follow())
        self._started.set()
        try:
            self._loop.run_until_complete(self._following)
        except asyncio.CancelledError:
            with self._asking:
                self._has_ended = True
            self._loop.run_until_complete(self._end())
            self._loop.close()

    async def _end(self) -> None:
        """Ends the calls that other threads wait for: a process ends with its threads."""
        await asyncio.sleep(0)  # those of a moment ago have begun
        if calls := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(calls, timeout=END_SECONDS)
        await cancelled(calls)
        await self._link.close()

    def _take_mirror(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._has_mirror.set()

    def _warn_of_unread(self, models: list[str]) -> None:
        if models and self.identity.role == "server":
            log.warning("journals_not_read", models=models, to_do="`dosirak store push` moves them into the database")

    def _read(self) -> Mirror:
        if self._mirror is None and self.identity.role == "command":
            self.wait()
        if self._mirror is None:
            raise self._unreachable()
        return self._mirror

    def _write(self, *changes: tuple[str, str, str | None]) -> None:
        self._call(self._link.write(self._locked_connection(), list(changes)))

    def _locked_connection(self) -> AsyncConnection:
        connection: AsyncConnection | None = getattr(self._locks, "connection", None)
        if connection is None:
            raise RuntimeError("a change of shared records needs the model's lock")
        return connection

    def _call(self, work: Coroutine[Any, Any, Result], timeout: float | None = None) -> Result:
        with self._asking:
            if not self._is_there:
                work.close()
                raise self._unreachable()
            called = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return called.result(timeout)
        except (RepositoryError, TimeoutError):
            raise
        except CancelledError:
            raise Unreachable(
                "The server ended while the database of DOSIRAK_DATABASE_URL worked: look whether it was done"
            ) from None
        except (DosirakError, OSError) as error:
            raise self._unreachable() from error

    def _call_soon(self, work: Callable[[], object]) -> None:
        with self._asking:
            if self._is_there:
                self._loop.call_soon_threadsafe(work)

    @property
    def _is_there(self) -> bool:
        return self._thread.is_alive() and not self._has_ended

    def _unreachable(self) -> Unreachable:
        return Unreachable(
            "The shared records cannot be had now, for the database of DOSIRAK_DATABASE_URL does not answer: "
            "nothing was changed, try again"
        )
