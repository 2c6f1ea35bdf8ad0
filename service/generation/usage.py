"""Usage counts what owners use, and writes it once a second where all instances of a database add up theirs. Quotas
read here what an owner has used everywhere; between two writes an instance knows its own counts alone.

    answers, requests ─▶ new ─▶ being written ─▶ database ─▶ stored
    spent, as a quota sees it = stored + being written + new

What a crash loses is the last second. While the database is away, counts wait in memory. Where it is lost between a
commit and its acknowledgement, the counts of one write are counted twice: a quota ends earlier, never later.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from service.errors import DosirakError
from service.storage.keys import actor_of
from service.storage.usage import COUNTED, HOUR, WINDOWS, Bucket, Counts
from service.tasks import BackgroundTasks, Unbroken

if TYPE_CHECKING:
    from service.storage.sessions import SessionStore

WRITE_USAGE: Final = "write_usage"
WRITE_SECONDS: Final = 1.0
READ_SECONDS: Final = 1.0
"""How long the first request of an owner waits for what the owner has spent before."""
FORGOTTEN_SECONDS: Final = 120.0
Counted = dict[Bucket, Counter[str]]


@dataclass(slots=True)
class Known:
    """An owner with a quota who was here lately. `begun`: when each request that runs now began, by
    the quotas' clock; `seconds`: how long requests take."""

    seen: float
    stored: Counted
    begun: list[float] = field(default_factory=list)
    seconds: float = 1.0


class Usage:
    """The event loop owns Usage. `clock` tells seconds since 1970, for instances share periods. `known_owners` are for
    reading."""

    def __init__(self, store: Callable[[], Awaitable[SessionStore]], clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._store = store
        self._new: Counted = defaultdict(Counter)
        self._writing: Counted = {}
        self._writes = Unbroken()
        self.known_owners: dict[str, Known] = {}

    def start(self, tasks: BackgroundTasks) -> None:
        tasks.keep(WRITE_USAGE, self._pass)

    async def stop(self) -> None:
        """Writes what is left, where the database takes it: also what a cancelled write could not write."""
        await self._writes.ended()
        with suppress(DosirakError):
            await self.write()

    def answered(self, owner: str, model: str, usage: Counts) -> None:
        """Counts an answer that has ended; of its `usage` what is COUNTED."""
        tokens = {name: usage[name] for name in COUNTED if name in usage}
        self._count(owner, HOUR, {"requests": 1, **tokens}, model)
        for seconds in WINDOWS:
            self._count(owner, seconds, tokens)

    def entered(self, owner: str) -> None:
        """Counts a request that a quota let in."""
        for seconds in WINDOWS:
            self._count(owner, seconds, {"requests": 1})

    def refused(self, owner: str) -> None:
        """Counts a request that a quota refused."""
        self._count(owner, HOUR, {"refused": 1})

    def spent(self, owner: str, seconds: int, moment: float) -> Counter[str]:
        """Returns the counts of the period that a moment is in. The owner must be known."""
        bucket = Bucket.at(moment, owner, seconds)
        found = Counter[str]()
        for each in (self.known_owners[owner].stored, self._writing, self._new):
            found.update(each.get(bucket, {}))
        return found

    async def known(self, owner: str) -> Known:
        """Returns what is known of an owner. The first time this waits for the database, READ_SECONDS at most; without
        an answer the owner has spent nothing elsewhere until there is one."""
        if owner not in self.known_owners:
            stored = await self._look(owner)
            self.known_owners.setdefault(owner, Known(self.clock(), stored))
        found = self.known_owners[owner]
        found.seen = self.clock()
        return found

    async def write(self) -> None:
        """Writes what is new, and reads what other instances have counted. Raises what the store raises; then the
        next call writes what is new again. A write goes on to its end when the caller is cancelled."""
        self._forget()
        if not self._new and not self.known_owners:
            return
        store, now = await self._store(), self.clock()
        await self._writes.finish(self._write_or_keep(store))
        if owners := list(self.known_owners):
            for owner, stored in (await store.usage.spent(owners, now)).items():
                self.known_owners[owner].stored = stored

    async def _write_or_keep(self, store: SessionStore) -> None:
        self._writing, self._new = self._new, defaultdict(Counter)
        try:
            await store.usage.count(self._writing)
        except Exception:
            for bucket, counts in self._writing.items():
                self._new[bucket].update(counts)
            raise
        finally:
            written, self._writing = self._writing, {}
        for bucket, counts in written.items():
            if bucket.owner in self.known_owners:
                self.known_owners[bucket.owner].stored[bucket].update(counts)

    async def _look(self, owner: str) -> Counted:
        with suppress(DosirakError, TimeoutError):
            async with asyncio.timeout(READ_SECONDS):
                store = await self._store()
                return (await store.usage.spent([owner], self.clock()))[owner]
        return defaultdict(Counter)

    async def _pass(self) -> None:
        await asyncio.sleep(WRITE_SECONDS)
        with suppress(DosirakError):  # the database tells of itself, and counts wait for the next pass
            await self.write()

    def _count(self, owner: str, seconds: int, counts: Counts, model: str = "") -> None:
        self._new[Bucket.at(self.clock(), actor_of(owner), seconds, model)].update(counts)

    def _forget(self) -> None:
        now = self.clock()
        for owner, known in list(self.known_owners.items()):
            if not known.begun and known.seen < now - FORGOTTEN_SECONDS:
                del self.known_owners[owner]
        for bucket in [each for each in self._new if not each.is_kept(now)]:
            del self._new[bucket]
