"""The batch worker works on batches in the background, one after the other, oldest first. It stops with the server and
goes on after a start. It knows rows, contents and journals; it gets what answers a line, and how busy the server is.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from models.errors import RepositoryError
from service.errors import Conflict, DosirakError, NotFound
from service.generation.batches.journal import Journal, JournalInUse
from service.generation.batches.pacing import Load, Moment, wait_seconds
from service.generation.batches.run import AnswerLine, BatchRun, Encode, Means
from service.storage.files.contents import Contents
from service.storage.files.files import Files
from service.storage.sessions import OPEN, BatchClaim, StoredBatch
from service.tasks import BackgroundTasks, cancelled

if TYPE_CHECKING:
    from service.storage.sessions import SessionStore

ANSWER_BATCHES: Final = "answer_batches"
IDLE_SECONDS: Final = 2.0
RENEW_SECONDS: Final = 0.5
_JOURNAL: Final = ".journal"
MOST_DEFECTS: Final = 5
"""A batch that shows a defect of this service so often fails: others wait behind it."""
TAKE_OVER: Final = timedelta(minutes=5)
"""How long a batch waits for the instance with its answers so far, before another one answers all its lines again."""
LOST_SECONDS: Final = 5.0
"""A claim that could not be renewed for so long is given up, a second before others may have it."""


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
        self._client_at = self._begun_at = float("-inf")

    def start(self, tasks: BackgroundTasks) -> None:
        tasks.keep(ANSWER_BATCHES, self._pass)

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
        claim = await self._claim(store)
        self._server.tell(await store.batches.present())
        if claim is None:
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._woken.wait()
            except TimeoutError:
                return
        else:
            await self._work_on(store, claim)

    async def _claim(self, store: SessionStore) -> BatchClaim | None:
        """Claims the oldest batch that is ours; one that is set aside where there is no other."""
        brought, token = await self._files.brought(), secrets.token_urlsafe(16)

        def is_ours(batch: StoredBatch) -> bool:
            return self._is_ours(batch, batch.input_file_id in brought, store.now())

        claim = await store.batches.claim(token, lambda batch: batch.id not in self._set_aside and is_ours(batch))
        if claim is None and self._set_aside:
            self._set_aside.clear()
            claim = await store.batches.claim(token, is_ours)
        return claim

    def _is_ours(self, batch: StoredBatch, can_bring: bool, now: datetime) -> bool:
        """Returns whether this instance may work on the batch: where it alone has the file, where nobody has begun, and
        where whoever has begun, and so has answers in a journal, shows no sign of life for TAKE_OVER."""
        if batch.expires_at <= now:
            return True
        if not can_bring:
            return self._files.contents.has(batch.input_file_id)
        is_begun = batch.status != "validating" and not self._journals.has(f"{batch.id}{_JOURNAL}")
        return not is_begun or batch.lease_until + TAKE_OVER <= now

    async def _work_on(self, store: SessionStore, claim: BatchClaim) -> None:
        """Works on a claimed batch, and gives the claim up. A batch on which the disk fails is set aside until another
        one was worked on."""
        path = self._journals.path(f"{claim.batch.id}{_JOURNAL}")
        try:
            journal = await asyncio.to_thread(Journal, path)
            await self._work_with(journal, path, store, claim)
            self._set_aside.clear()
        except JournalInUse:  # another process of this machine, whose claim has run out, still works
            self._set_aside.add(claim.batch.id)
            await asyncio.sleep(IDLE_SECONDS)
        except OSError:
            self._set_aside.add(claim.batch.id)
            raise
        finally:
            await store.batches.release(claim)

    async def _work_with(self, journal: Journal, path: Path, store: SessionStore, claim: BatchClaim) -> None:
        run = BatchRun(claim, journal, self._means(store))
        working = asyncio.create_task(run.work())
        renewing = asyncio.create_task(self._renew(store, claim, run))
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            run.stop()
            await working
        except (Conflict, NotFound):
            return  # another instance has the batch, or its owner was erased
        except (DosirakError, RepositoryError, OSError):
            raise  # the database, the store or the disk: a later pass goes on
        except Exception:
            self._defects[claim.batch.id] += 1
            if self._defects[claim.batch.id] >= MOST_DEFECTS:
                await run.give_up()
            raise
        finally:
            await cancelled((working, renewing))
            await asyncio.to_thread(journal.close)
        if run.batch.status not in OPEN:
            await asyncio.to_thread(path.unlink, missing_ok=True)
            self._server.tell(await store.batches.present())

    async def _renew(self, store: SessionStore, claim: BatchClaim, run: BatchRun) -> None:
        """Renews the claim while it can be renewed, and tells the run what has become of the batch."""
        renewed = time.monotonic()
        while time.monotonic() - renewed < LOST_SECONDS:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                now = await store.batches.renew(claim, *run.counts)
            except (Conflict, NotFound):
                return
            except DosirakError:
                continue
            renewed = time.monotonic()
            if now.status == "cancelling":
                run.batch = now

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
            server.observe,
            self._limits.line_bytes,
        )
