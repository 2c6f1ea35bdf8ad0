"""The batch worker works on batches in the background, one after the other, oldest first; beside that one it ends those
that need no line. It stops with the server and goes on after a start. It knows rows, contents and journals; it gets
what answers a line, and how busy the server is.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from models.errors import RepositoryError
from service.errors import Conflict, DosirakError, NotFound
from service.generation.batches.journal import Journal, JournalInUse
from service.generation.batches.pacing import Load, Moment, wait_seconds
from service.generation.batches.room import Room, most_bytes
from service.generation.batches.run import AnswerLine, BatchRun, Encode, Means
from service.storage.files.contents import Contents
from service.storage.files.files import Files
from service.storage.sessions import OPEN, BatchClaim, StoredBatch
from service.tasks import BackgroundTasks, cancelled

if TYPE_CHECKING:
    from service.storage.sessions import SessionStore

ANSWER_BATCHES: Final = "answer_batches"
END_BATCHES: Final = "end_batches"
IDLE_SECONDS: Final = 2.0
RENEW_SECONDS: Final = 0.5
_JOURNAL: Final = ".journal"
MOST_DEFECTS: Final = 5
"""A batch that shows a defect of this service so often fails: others wait behind it."""
TAKE_OVER: Final = timedelta(minutes=5)
"""How long a batch waits for the instance with its answers so far, before another one answers all its lines again."""
LOST_SECONDS: Final = 5.0
"""A claim that could not be renewed for so long is given up, a second before others may have it."""
Work = Callable[[BatchRun], Coroutine[Any, Any, None]]
"""What is done of a batch: all that is left, or its validation alone."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the worker sees of the server. While `rests` says yes, no batch is claimed and no line begins. `observe`
    counts a line by its result, `tell` gets the batches by status."""

    load: Callable[[], Load]
    rests: Callable[[], bool]
    observe: Callable[[str], None] = lambda result: None
    tell: Callable[[Mapping[str, int]], None] = lambda counts: None


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """An engine's `max_num_seqs`, the longest backlog of clients in seconds beside which lines begin, the largest
    line."""

    max_num_seqs: int
    longest_backlog: float
    line_bytes: int


class BatchWorker:
    """The event loop owns the worker. `endpoints` are the routes whose requests a batch may hold."""

    def __init__(
        self,
        store: Callable[[], Awaitable[SessionStore]],
        files: Files,
        journals: Contents,
        answer: tuple[AnswerLine, Encode],
        server: ServerState,
        limits: WorkerLimits,
        endpoints: tuple[str, ...],
    ) -> None:
        self.endpoints = endpoints
        self._store = store
        self._files, self._journals = files, journals
        self._answer, self._encode = answer
        self._server = server
        self._limits = limits
        self._woken = asyncio.Event()
        self._defects = Counter[str]()
        self._set_aside = set[str]()
        """Batches on which the disk has failed: each other one gets its turn before them."""
        self._tries = defaultdict[str, Counter[int]](Counter)
        self._resuming = dict[str, float]()
        """Batches whose lines wait for their next try, and until when, by `time.monotonic`."""
        self._working = asyncio.Event()
        self._claiming = asyncio.Lock()
        """Held while a batch is ended beside another one, so that the oldest is not passed over meanwhile."""
        self._client_at = self._begun_at = float("-inf")

    def start(self, tasks: BackgroundTasks) -> None:
        tasks.keep(ANSWER_BATCHES, self._pass)
        tasks.keep(END_BATCHES, self._ending_pass)

    def wake(self) -> None:
        """Tells of a new batch."""
        self._woken.set()

    async def _pass(self) -> None:
        """Works on one batch, or waits for one."""
        if self._server.rests():
            await asyncio.sleep(IDLE_SECONDS)
            return
        self._woken.clear()
        store = await self._store()
        await self._sweep(store)
        async with self._claiming:
            claim = await self._claim(store)
        self._server.tell(await store.batches.present())
        if claim is None:
            await self._idle()
            return
        self._working.set()
        try:
            if await self._work_on(store, claim, BatchRun.work):
                self._set_aside.clear()
        finally:
            self._working.clear()

    async def _ending_pass(self) -> None:
        """Ends one batch that needs no line, beside the one that is worked on, or waits for one: a malformed file and a
        cancellation wait behind no other batch."""
        await self._working.wait()
        self._woken.clear()
        store = await self._store()
        async with self._claiming:
            claim = None if self._server.rests() else await self._claim_without_lines(store)
            if claim is not None:
                is_new = claim.batch.status == "validating" and claim.batch.expires_at > store.now()
                await self._work_on(store, claim, BatchRun.validate if is_new else BatchRun.work)
                return
        await self._idle()

    async def _idle(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(IDLE_SECONDS):
                await self._woken.wait()

    async def _claim(self, store: SessionStore) -> BatchClaim | None:
        """Claims the oldest batch that is ours and has no line that waits; one that is set aside where there is no
        other."""
        now = time.monotonic()
        self._resuming = {id: until for id, until in self._resuming.items() if until > now}

        def is_free(batch: StoredBatch) -> bool:
            return batch.id not in self._resuming or _needs_no_line(batch, store.now())

        claim = await self._claim_if(store, lambda batch: batch.id not in self._set_aside and is_free(batch))
        if claim is None and self._set_aside:
            self._set_aside.clear()
            claim = await self._claim_if(store, is_free)
        return claim

    async def _claim_without_lines(self, store: SessionStore) -> BatchClaim | None:
        """Claims the oldest batch that is ours and needs no line."""
        now = store.now()
        return await self._claim_if(store, lambda batch: batch.id not in self._set_aside and _needs_no_line(batch, now))

    async def _claim_if(self, store: SessionStore, may: Callable[[StoredBatch], bool]) -> BatchClaim | None:
        """Claims the oldest batch that is ours and for which `may`."""
        brought = await self._files.brought()

        def is_ours(batch: StoredBatch) -> bool:
            return may(batch) and self._is_ours(batch, batch.input_file_id in brought, store.now())

        return await store.batches.claim(secrets.token_urlsafe(16), is_ours)

    def _is_ours(self, batch: StoredBatch, can_bring: bool, now: datetime) -> bool:
        """Returns whether this instance may work on the batch: where it alone has the file, where nobody has begun, and
        where whoever has begun, and so has answers in a journal, shows no sign of life for TAKE_OVER. A file that is
        nowhere to be had ends its batch when its time is over, and an instance with the file has had TAKE_OVER."""
        has_journal = self._journal(batch.id).is_file()
        if can_bring:
            return not _is_begun(batch) or has_journal or batch.lease_until + TAKE_OVER <= now
        if self._files.contents.has(batch.input_file_id):
            return True
        is_lost = max(batch.expires_at, batch.lease_until) + TAKE_OVER <= now
        return is_lost or (has_journal and batch.expires_at <= now)

    async def _work_on(self, store: SessionStore, claim: BatchClaim, work: Work) -> bool:
        """Works on a claimed batch, and gives the claim up. A batch on which the disk fails is set aside until another
        one was worked on. Returns False for a batch on which another process works."""
        try:
            most = await self._most_bytes(store, claim.batch.id)
            journal = await asyncio.to_thread(Journal, self._journal(claim.batch.id))
            run = BatchRun(claim, journal, self._means(store), self._tries[claim.batch.id], Room(most, journal.size))
            await self._work_with(journal, store, claim, run, work)
            return True
        except JournalInUse:  # another process of this machine, whose claim has run out, still works
            self._set_aside.add(claim.batch.id)
            await asyncio.sleep(IDLE_SECONDS)
            return False
        except OSError:
            self._set_aside.add(claim.batch.id)
            raise
        finally:
            await store.batches.release(claim)

    async def _work_with(
        self, journal: Journal, store: SessionStore, claim: BatchClaim, run: BatchRun, work: Work
    ) -> None:
        id = claim.batch.id
        working = asyncio.create_task(work(run))
        renewing = asyncio.create_task(self._renew(store, claim, run))
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            run.stop()
            await working
        except (Conflict, NotFound):
            self._forget(id)
            return  # another instance has the batch, or its owner was erased
        except (DosirakError, RepositoryError, OSError):
            raise  # the database, the store or the disk: a later pass goes on
        except Exception:
            self._defects[id] += 1
            if self._defects[id] >= MOST_DEFECTS:
                await run.give_up()
                self._forget(id)
            raise
        finally:
            await cancelled((working, renewing))
            await asyncio.to_thread(journal.close)
        if run.resumes_at:
            self._resuming[id] = run.resumes_at
        is_open = run.batch.status in OPEN
        if not (is_open and _is_begun(run.batch)):
            await asyncio.to_thread(self._journal(id).unlink, missing_ok=True)
        if not is_open:
            self._forget(id)
            self._server.tell(await store.batches.present())

    def _forget(self, id: str) -> None:
        self._defects.pop(id, None)
        self._tries.pop(id, None)
        self._resuming.pop(id, None)

    def _journal(self, id: str) -> Path:
        return self._journals.path(f"{id}{_JOURNAL}")

    async def _most_bytes(self, store: SessionStore, id: str) -> int:
        """Returns how many bytes the journal of a batch may have, beside all files and the other journals here."""
        others = await asyncio.to_thread(self._bytes_beside, self._journal(id))
        return most_bytes(self._files.total_bytes, await store.batches.bytes_of_files() + self._files.arriving + others)

    def _bytes_beside(self, journal: Path) -> int:
        size = 0
        for path in map(self._journals.path, self._journals.ids()):
            with suppress(FileNotFoundError):
                size += path.stat().st_size if path != journal else 0
        return size

    def _gives_way(self) -> bool:
        """Returns whether a batch whose lines waited may go on."""
        return any(until <= time.monotonic() for until in self._resuming.values())

    async def _renew(self, store: SessionStore, claim: BatchClaim, run: BatchRun) -> None:
        """Renews the claim while it can be renewed, and tells the run what has become of the batch."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                now = await store.batches.renew(claim, *run.counts)
                renewed = time.monotonic()
                if now.status == "cancelling":
                    run.batch = now
                run.room.most = await self._most_bytes(store, claim.batch.id)
            except (Conflict, NotFound):
                return
            except (DosirakError, OSError):
                if time.monotonic() - renewed >= LOST_SECONDS:
                    return

    async def _sweep(self, store: SessionStore) -> None:
        """Removes the journals of batches that are not open: of owners that were erased. A journal is younger than its
        batch's row, so what is looked at first cannot be of a batch that is not known yet."""
        if present := await asyncio.to_thread(self._journals.ids):
            known = await store.batches.open_ids()
            for name in present:
                if name.removesuffix(_JOURNAL) not in known:
                    await asyncio.to_thread(self._journals.remove, name)

    def _wait_seconds(self, in_flight: int) -> float:
        """Returns 0 where one more line may begin, and counts it as begun; else the seconds until the next look."""
        load, now = self._server.load(), time.monotonic()
        if load.clients:
            self._client_at = now
        limits, since = self._limits, (now - self._client_at, now - self._begun_at)
        wait = wait_seconds(Moment(load, in_flight, limits.max_num_seqs, limits.longest_backlog, *since))
        if not wait:
            self._begun_at = now
        return wait

    def _means(self, store: SessionStore) -> Means:
        server = self._server
        return Means(
            store,
            self._files,
            self._answer,
            self._encode,
            self._wait_seconds,
            store.now,
            server.rests,
            self._gives_way,
            server.observe,
            self._limits.line_bytes,
        )


def _is_begun(batch: StoredBatch) -> bool:
    """Returns whether a line was begun, so that a journal may have answers."""
    return "in_progress" in batch.facts.times


def _needs_no_line(batch: StoredBatch, now: datetime) -> bool:
    """Returns whether what comes next of the batch needs no line: its validation, or its end."""
    is_new = batch.status == "validating" and not batch.facts.total
    return is_new or batch.status in ("finalizing", "cancelling") or batch.expires_at <= now
