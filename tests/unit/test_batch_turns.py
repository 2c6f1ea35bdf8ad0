"""Batches take turns: none waits behind another one's tries, and each ends with the answers that there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest

from service.errors import QuotaExceeded
from service.generation.batches import run, worker
from service.generation.batches.run import MOST_TRIES, LineReply, LineRequest
from service.generation.batches.worker import TAKE_OVER, WorkerLimits
from service.storage.sessions import Limits, SessionStore, StoredBatch
from tests.batch_bench import DAY, LINES, Bench
from tests.sessions import Clock, new_database
from tests.waiting import until


@pytest.fixture
async def bench(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(worker, "RENEW_SECONDS", 0.01)
    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.01)
    store = await SessionStore.open(new_database("sqlite", tmp_path), clock=clock)
    bench = Bench(store, tmp_path, clock)
    bench.go.set()
    yield bench
    await store.close()


@pytest.mark.parametrize("has_store", [False, True])
async def test_an_expired_batch_is_left_to_the_instance_with_its_answers(
    bench: Bench, tmp_path: Path, has_store: bool
) -> None:
    other = Bench(bench.store, tmp_path / "other", bench.clock)
    batch = await bench.batch()
    if has_store:
        other.files.brought = _each(batch.input_file_id)  # type: ignore[method-assign]
    await bench.begun(batch, "in_progress", 2)
    bench.clock.move(DAY - 10)
    claim = await bench.store.batches.claim("a sign of life", lambda found: True)
    assert claim is not None
    await bench.store.batches.release(claim)
    bench.clock.move(10)
    await other.ends()
    assert await bench.status(batch) == "in_progress"
    await bench.ends()
    done = await bench.now(batch)
    assert (done.status, done.facts.errors) == ("expired", [])
    assert bench.written(done.facts.output_file_id) == ["a1"]
    assert bench.written(done.facts.error_file_id) == ["a2", "a3"]


def _each(*ids: str) -> Callable[[], Coroutine[None, None, set[str]]]:
    async def brought() -> set[str]:
        return set(ids)

    return brought


@pytest.mark.parametrize("answered", [0, 2])
async def test_an_expired_batch_whose_instance_is_silent_ends_at_another(
    bench: Bench, tmp_path: Path, answered: int
) -> None:
    other = Bench(bench.store, tmp_path / "other", bench.clock)
    batch = await bench.batch()
    await bench.begun(batch, "in_progress" if answered else "validating", answered)
    bench.clock.move(DAY)
    await other.ends()
    assert await bench.status(batch) != "failed"
    bench.clock.move(TAKE_OVER.total_seconds())
    await other.ends()
    done = await bench.now(batch)
    assert (done.status, [each["code"] for each in done.facts.errors]) == ("failed", ["input_file_missing"])


def fail(bench: Bench, batch: StoredBatch, seconds: float) -> list[str]:
    """Lets the lines of a batch find a version that does not load. Returns the keys of the lines that are asked."""
    asked = list[str]()

    async def answer(request: LineRequest) -> LineReply:
        asked.append(request.key)
        if request.key.startswith(batch.id):
            return LineReply(503, "r", b"{}", retry_after=seconds)
        return LineReply(200, "r", b"{}")

    bench.worker._answer = answer
    return asked


async def test_a_batch_whose_lines_wait_lets_the_others_pass(bench: Bench) -> None:
    waiting, other = await bench.batch("a"), await bench.batch("b")
    asked = fail(bench, waiting, 1000)
    for _ in range(2):
        await bench.ends()
    assert await bench.status(other) == "completed"
    assert await bench.status(waiting) == "in_progress"
    assert sorted(asked) == sorted(f"{batch.id}:{n}" for batch in (waiting, other) for n in (1, 2, 3))
    await bench.store.batches.cancel("ann", waiting.id)
    await bench.ends()
    assert await bench.status(waiting) == "cancelled", "an end waits for no line"


async def test_a_line_fails_after_its_tries_in_all_passes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LONGEST_PAUSE_SECONDS", 0.0)
    batch = await bench.batch()
    asked = fail(bench, batch, 1000)
    for _ in range(MOST_TRIES * LINES):
        if await bench.status(batch) == "completed":
            break
        await bench.ends()
    done = await bench.now(batch)
    assert (done.status, done.facts.completed, done.facts.failed) == ("completed", 0, LINES)
    assert {key: asked.count(key) for key in asked} == {f"{batch.id}:{n}": MOST_TRIES for n in (1, 2, 3)}
    assert [each["response"]["status_code"] for each in bench.lines(done.facts.error_file_id)] == [503] * LINES
    assert not bench.worker._tries and not bench.worker._resuming


async def test_so_many_lines_wait_and_the_batch_begins_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that loads for minutes fails these lines, not all."""
    monkeypatch.setattr(run, "MOST_WAITING", 2)
    asked = fail(bench, await bench.batch(), 1000)
    await bench.ends()
    assert len(asked) == 2


async def test_a_batch_gives_way_to_one_whose_lines_have_waited(bench: Bench) -> None:
    batch, asked = await bench.batch(), list[str]()

    async def answer(request: LineRequest) -> LineReply:
        asked.append(request.key)
        if len(asked) == 1:
            bench.worker._resuming["another"] = 0.0
        return LineReply(200, "r", b"{}")

    bench.worker._answer = answer
    await bench.ends()
    assert (await bench.status(batch), len(asked)) == ("in_progress", 1)
    await bench.ends()
    assert (await bench.status(batch), len(asked)) == ("completed", LINES), "once, not for ever"


async def test_answers_past_the_limit_of_all_files_become_error_lines(bench: Bench) -> None:
    async def answer(request: LineRequest) -> LineReply:
        bench.asked.append(request)
        return LineReply(200, "r", b'"' + b"x" * 1000 + b'"')

    bench.worker._answer = answer
    bench.files.total_bytes = 5000
    batch = await bench.batch()  # its file counts 4096
    await bench.ends()
    done = await bench.now(batch)
    assert (done.status, done.facts.completed, done.facts.failed) == ("completed", 1, 2)
    assert bench.written(done.facts.output_file_id) == ["a1"]
    errors = bench.lines(done.facts.error_file_id)
    assert [(each["custom_id"], each["error"]["code"]) for each in errors] == [
        ("a2", "storage_full"),
        ("a3", "storage_full"),
    ]
    assert "DOSIRAK_FILES_TOTAL_BYTES" in errors[0]["error"]["message"]
    assert len(bench.asked) == 2, "where there is no room no line begins"


async def test_uploads_that_fill_the_limit_leave_room_for_answers(bench: Bench) -> None:
    batch, _ = await bench.batch(), await bench.batch("b")
    bench.files.total_bytes = 2 * 4096
    await bench.ends()
    assert (await bench.now(batch)).facts.completed == LINES


async def test_outputs_count_as_files_of_their_owner(bench: Bench) -> None:
    await bench.batch()
    await bench.ends()
    bench.store.files._limits = Limits(max_per_owner=2)
    with pytest.raises(QuotaExceeded, match="2 files"):
        await bench.batch("b")


async def test_journals_of_other_batches_take_room(bench: Bench) -> None:
    other, batch = await bench.batch("b"), await bench.batch()
    await bench.begun(other, "in_progress", 1)
    with bench.journal(other).open("ab") as journal:
        journal.truncate(2 * 10**9)
    bench.worker._set_aside.add(other.id)
    await bench.ends()
    assert ((await bench.now(batch)).facts.failed, bench.asked) == (LINES, [])


async def test_a_line_that_is_not_read_any_more_fails_alone(bench: Bench) -> None:
    """Its size was right by an earlier DOSIRAK_MAX_BODY_BYTES."""
    batch = await bench.batch()
    await bench.begun(batch, "in_progress", 2)
    bench.worker._limits = WorkerLimits(8, 1.0, 50)
    await bench.ends()
    done = await bench.now(batch)
    assert (done.status, done.facts.completed, done.facts.failed) == ("completed", 1, 2)
    assert bench.written(done.facts.output_file_id) == ["a1"]
    error = bench.lines(done.facts.error_file_id)[1]["error"]
    assert (error["code"], error["line"]) == ("line_too_large", 3) and "DOSIRAK_MAX_BODY_BYTES" in error["message"]


async def test_a_malformed_file_and_a_cancellation_wait_behind_no_other_batch(bench: Bench) -> None:
    first, wrong, right = await bench.batch("a"), await bench.batch("b", method="GET"), await bench.batch("c")
    cancelled = await bench.batch("d")
    await bench.begun(cancelled, "cancelling", 2)
    bench.go.clear()
    passing = asyncio.create_task(bench.ends())
    await until(lambda: bench.asked)
    for _ in range(4):
        await bench.worker._ending_pass()
    assert await bench.status(first) == "in_progress"
    assert [await bench.status(each) for each in (wrong, cancelled)] == ["failed", "cancelled"]
    checked = await bench.now(right)
    assert (checked.status, checked.facts.total) == ("validating", LINES), "another instance may begin it"
    assert not bench.journal(right).exists() and bench.journal(first).exists()
    bench.go.set()
    await passing
    await bench.ends()
    assert await bench.status(right) == "completed"
