"""The batch worker on a disk and a store that fail it: what is answered stays, and no batch stops the others."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from service.generation.batches import worker
from service.generation.batches.journal import Entry, Journal
from service.generation.batches.run import BatchRun, LineReply, LineRequest
from service.generation.batches.worker import MOST_DEFECTS, TAKE_OVER
from service.storage.sessions import SessionStore
from tests.batch_bench import DAY, LINES, Bench
from tests.sessions import Clock, new_database
from tests.waiting import until


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
    bench.clock.move(DAY if answered else DAY + TAKE_OVER.total_seconds())  # where another one might have the file
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


async def test_a_defect_leaves_the_answers_that_the_batch_has(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(run: BatchRun) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(BatchRun, "_answer_all", broken)
    batch = await bench.batch()
    await bench.begun(batch, "in_progress", 2)
    for _ in range(MOST_DEFECTS):
        with pytest.raises(RuntimeError, match="planted"):
            await bench.ends()
    done = await bench.now(batch)
    assert (done.status, [each["code"] for each in done.facts.errors]) == ("failed", ["server_error"])
    assert (done.facts.completed, done.facts.failed) == (1, 1)
    assert bench.written(done.facts.output_file_id) == ["a1"]
    assert bench.written(done.facts.error_file_id) == ["a2", "a3"]
    assert bench.lines(done.facts.error_file_id)[1]["error"]["code"] == "server_error"


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
