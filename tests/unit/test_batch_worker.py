"""The batch worker on a disk and a store that fail it: what is answered stays, and no batch stops the others."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service.generation.batches import worker
from service.generation.batches.journal import Entry, Journal
from service.generation.batches.pacing import Load
from service.generation.batches.run import BatchRun, LineReply, LineRequest
from service.generation.batches.worker import MOST_DEFECTS, BatchWorker, ServerState, WorkerLimits
from service.storage.files.contents import Contents
from service.storage.files.files import Files
from service.storage.sessions import BatchFacts, SessionStore, StoredBatch
from tests.sessions import Clock, new_database
from tests.waiting import until

URL = "/v1/completions"
FACTS = BatchFacts(endpoint=URL, output_seconds=3600)
LINES = 3
DAY = 24 * 3600.0


@dataclass
class Bench:
    """A worker over a store and a data directory, without a server. A line is answered when `go` is set."""

    store: SessionStore
    directory: Path
    clock: Clock
    go: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[LineRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = Files(self.directory / "files", self._found, 10**6, 10**9)
        self.worker = BatchWorker(
            self._found,
            self.files,
            Contents(self.directory / "batches"),
            (self.answer, lambda value: msgspec.json.encode(value) + b"\n"),
            ServerState(load=Load, rests=lambda: False),
            WorkerLimits(8, 1.0, 10**6),
            (URL,),
        )

    async def _found(self) -> SessionStore:
        return self.store

    async def answer(self, request: LineRequest) -> LineReply:
        self.asked.append(request)
        await self.go.wait()
        return LineReply(200, "r", b"{}")

    async def batch(self, name: str = "a", seconds: float = 30 * DAY) -> StoredBatch:
        draft = self.files.contents.draft()
        for n in range(1, LINES + 1):
            line = {"custom_id": f"{name}{n}", "method": "POST", "url": URL, "body": {}}
            draft.write(json.dumps(line).encode() + b"\n")
        file = await self.files.keep("ann", draft, "in.jsonl", "batch", seconds)
        self.clock.move(1)
        return await self.store.batches.create("ann", file.id, FACTS)

    async def begun(self, batch: StoredBatch, status: str, answered: int) -> None:
        """Brings a batch to this status, with its first lines in the journal: the second has failed."""
        if status == "validating":
            return
        claim = await self.store.batches.claim("another", lambda found: found.id == batch.id)
        assert claim is not None
        await self.store.batches.advance(claim, "in_progress", total=LINES)
        if status == "finalizing":
            await self.store.batches.advance(claim, "finalizing")
        if status == "cancelling":
            await self.store.batches.cancel("ann", batch.id)
        await self.store.batches.release(claim)
        journal = Journal(self.journal(batch))
        journal.append([Entry(n, n != 2, b'{"custom_id":"a%d"}\n' % n) for n in range(1, answered + 1)])
        journal.close()

    def journal(self, batch: StoredBatch) -> Path:
        return self.directory / "batches" / f"{batch.id}.journal"

    async def now(self, batch: StoredBatch) -> StoredBatch:
        return await self.store.batches.get("ann", batch.id)

    async def status(self, batch: StoredBatch) -> str:
        return (await self.now(batch)).status

    def written(self, id: str | None) -> list[Any]:
        lines = self.files.contents.path(id).read_bytes().splitlines() if id else []
        return [json.loads(line)["custom_id"] for line in lines]

    async def ends(self) -> None:
        """Makes one pass."""
        async with asyncio.timeout(20):
            await self.worker._pass()


@pytest.fixture
async def bench(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(worker, "RENEW_SECONDS", 0.01)
    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.01)
    store = await SessionStore.open(new_database("sqlite", tmp_path), clock=clock)
    yield Bench(store, tmp_path, clock)
    await store.close()


async def test_a_batch_keeps_its_answers_when_its_file_expires(bench: Bench) -> None:
    batch = await bench.batch(seconds=3600)
    passing = asyncio.create_task(bench.ends())
    await until(lambda: bench.asked)
    bench.clock.move(3700)
    content = bench.files.contents.path(batch.input_file_id)
    os.utime(content, (time.time() - 7200,) * 2)
    await bench.files.sweep()
    assert content.exists()
    bench.go.set()
    await passing
    done = await bench.now(batch)
    assert (done.status, done.facts.completed) == ("completed", LINES)
    assert bench.written(done.facts.output_file_id) == ["a1", "a2", "a3"]
    await bench.files.sweep()
    assert not content.exists(), "its batch has ended"


@pytest.mark.parametrize(
    ("status", "answered", "end"),
    [
        ("validating", 0, "failed"),
        ("in_progress", 2, "failed"),
        ("finalizing", 2, "failed"),
        ("finalizing", LINES, "completed"),
        ("cancelling", 2, "cancelled"),
        ("cancelling", LINES, "cancelled"),
    ],
)
async def test_without_its_file_a_batch_ends_with_the_answers_that_it_has(
    bench: Bench, status: str, answered: int, end: str
) -> None:
    batch = await bench.batch()
    await bench.begun(batch, status, answered)
    bench.files.contents.remove(batch.input_file_id)
    bench.clock.move(DAY)
    other = await bench.batch("b")
    bench.go.set()
    await bench.ends()
    done = await bench.now(batch)
    missing = [] if answered == LINES else ["input_file_missing"]
    assert (done.status, [each["code"] for each in done.facts.errors]) == (end, missing)
    succeeded = [f"a{n}" for n in range(1, answered + 1) if n != 2]
    assert bench.written(done.facts.output_file_id) == succeeded
    assert bench.written(done.facts.error_file_id) == (["a2"] if answered else [])
    assert (done.facts.completed, done.facts.failed) == (len(succeeded), answered - len(succeeded))
    assert not bench.journal(batch).exists()
    await bench.ends()
    assert await bench.status(other) == "completed"


async def test_an_expired_file_of_an_open_batch_is_brought_from_the_store(bench: Bench) -> None:
    class Shared:
        """Of one content."""

        def put(self, id: str, sha256: str, path: Path) -> None:
            self.content = path.read_bytes()

        def bring(self, id: str, sha256: str, size: int, path: Path) -> None:
            path.write_bytes(self.content)

    bench.files._shared = Shared()  # type: ignore[assignment]
    batch = await bench.batch(seconds=60)
    bench.files.contents.remove(batch.input_file_id)
    bench.clock.move(61)
    await bench.store.files.remove_expired()
    bench.go.set()
    await bench.ends()
    assert await bench.status(batch) == "completed"


async def test_a_defect_ends_a_cancelled_batch_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(run: BatchRun) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(BatchRun, "_finish", broken)
    batch = await bench.batch()
    await bench.begun(batch, "cancelling", 1)
    for _ in range(MOST_DEFECTS):
        with pytest.raises(RuntimeError, match="planted"):
            await bench.ends()
    done = await bench.now(batch)
    assert (done.status, [each["code"] for each in done.facts.errors]) == ("cancelled", ["server_error"])


@pytest.mark.parametrize("where", ["opening", "writing"])
async def test_a_batch_on_which_the_disk_fails_lets_each_other_one_pass(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    class Failing(Journal):
        """A disk with a bad place: it holds the first batch's journal."""

        def __init__(self, path: Path) -> None:
            self.is_bad = path == bench.journal(batches[0])
            self.fail("opening")
            super().__init__(path)

        def append(self, entries: Iterable[Entry]) -> None:
            self.fail("writing")
            super().append(entries)

        def fail(self, what: str) -> None:
            if self.is_bad and what == where:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(worker, "Journal", Failing)
    batches = [await bench.batch(name) for name in "abc"]
    bench.go.set()
    for other in batches[1:]:
        with pytest.raises(OSError, match="Input/output"):
            await bench.ends()
        bench.clock.move(10)  # past the lease
        await bench.ends()
        assert await bench.status(other) == "completed"
    assert await bench.status(batches[0]) == ("validating" if where == "opening" else "in_progress")
    monkeypatch.setattr(worker, "Journal", Journal)
    await bench.ends()
    assert await bench.status(batches[0]) == "completed", "it is tried again"


async def test_a_batch_whose_journal_another_process_has_lets_the_others_pass(bench: Bench) -> None:
    held, other = await bench.batch("a"), await bench.batch("b")
    journal = Journal(bench.journal(held))
    bench.go.set()
    for _ in range(2):
        await bench.ends()
        bench.clock.move(10)
    assert await bench.status(other) == "completed"
    journal.close()
    await bench.ends()
    assert await bench.status(held) == "completed"


async def test_what_a_thread_still_writes_is_in_the_output_of_a_cancelled_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, may_end, left = asyncio.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(Journal):
        def append(self, entries: Iterable[Entry]) -> None:
            loop.call_soon_threadsafe(writes.set)
            assert may_end.wait(20)
            super().append(entries)

    async def answer(request: LineRequest) -> LineReply:
        if not request.key.endswith(":1"):
            try:
                await asyncio.Event().wait()
            finally:
                left.set()
        return LineReply(200, "r", b"{}")

    monkeypatch.setattr(worker, "Journal", Slow)
    bench.worker._answer = answer
    batch = await bench.batch()
    passing = asyncio.create_task(bench.ends())
    await writes.wait()
    await bench.store.batches.cancel("ann", batch.id)
    await left.wait()
    await asyncio.sleep(0.1)  # what would not wait would be through
    may_end.set()
    await passing
    done = await bench.now(batch)
    assert (done.status, done.facts.completed) == ("cancelled", 1)
    assert bench.written(done.facts.output_file_id) == ["a1"]
    assert bench.written(done.facts.error_file_id) == ["a2", "a3"]
