"""Background tasks: tried again with back-off, told, ended; one that fails takes no other with it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from service.tasks import FAILING_AFTER, BackgroundTasks
from tests.waiting import until


class Told:
    """What an observer hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def __call__(self, name: str, failures: int) -> None:
        self.heard.append((name, failures))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def tasks(told: Told) -> AsyncIterator[BackgroundTasks]:
    made = BackgroundTasks(told, first_delay=0.0005, longest_delay=0.001)
    yield made
    await made.stop()


async def test_a_kept_task_goes_on_after_every_failure_and_says_so(tasks: BackgroundTasks, told: Told) -> None:
    passes = count()

    async def work() -> None:
        await asyncio.sleep(0)
        if next(passes) in (1, 2):
            raise RuntimeError("what a client wrote")

    with capture_logs() as lines:
        kept = tasks.keep("watch", work)
        await until(lambda: told.heard == [("watch", 0), ("watch", 1), ("watch", 2), ("watch", 0)])
    assert not kept.failures and not kept.is_failing
    assert [(line["event"], line["task"], line["failures"]) for line in lines] == [
        ("background_task_failed", "watch", 1),
        ("background_task_goes_on", "watch", 2),
    ], "the same failure is logged once"
    assert "what a client wrote" not in str([{**line, "exc_info": ""} for line in lines])


async def test_a_pass_that_failed_is_not_put_off_by_the_interval(
    tasks: BackgroundTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that was away for a moment at the hourly pass left the alert on for the next hour."""
    slept, passes, really = list[float](), list[int](), asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await really(0)

    async def work() -> None:
        passes.append(slept.count(3600))
        if len(passes) == 1:
            raise RuntimeError("away")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    tasks.keep("prune", work, every=3600)
    await until(lambda: len(passes) >= 3)
    assert passes[:3] == [1, 1, 2], "hours before each pass"


async def test_a_task_that_goes_on_failing_is_failing_until_it_succeeds(tasks: BackgroundTasks) -> None:
    is_broken = True

    async def work() -> None:
        await asyncio.sleep(0)
        if is_broken:
            raise OSError("disk")

    kept = tasks.keep("watch", work)
    assert not kept.is_failing
    await until(lambda: kept.failures >= FAILING_AFTER)
    assert kept.is_failing
    is_broken = False
    await until(lambda: not kept.is_failing)
    assert kept.failures == 0


async def test_what_must_be_done_is_tried_until_it_is(tasks: BackgroundTasks) -> None:
    tries = count(1)
    done = asyncio.Event()

    async def work() -> None:
        if next(tries) < 4:
            raise OSError
        done.set()

    tasks.retry("start", work)
    async with asyncio.timeout(20):
        await done.wait()
    await asyncio.sleep(0.01)
    assert next(tries) == 5, "once done it is not done again"


async def test_a_cancellation_that_nobody_asked_for_is_a_failure(tasks: BackgroundTasks, told: Told) -> None:
    """A pass that awaits a cancelled future gets its CancelledError: no reason to end for ever."""
    passes = count()

    async def work() -> None:
        await asyncio.sleep(0)
        if not next(passes):
            lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            lost.cancel()
            await lost

    tasks.keep("watch", work)
    await until(lambda: told.heard == [("watch", 0), ("watch", 1), ("watch", 0)])


async def test_work_that_is_done_once_raises_nothing(tasks: BackgroundTasks, told: Told) -> None:
    async def work() -> None:
        raise ValueError

    await tasks.run("load", work)
    assert told.heard == [("load", 0), ("load", 1)]


async def test_work_is_kept_alive_by_its_owner(tasks: BackgroundTasks) -> None:
    """asyncio has weak references only."""
    ended = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0.01)
        ended.set()

    tasks.run("load", work)
    gc.collect()
    async with asyncio.timeout(20):
        await ended.wait()


async def test_stopping_ends_those_named_and_waits_for_their_end() -> None:
    tasks, ended = BackgroundTasks(), list[str]()

    def work(name: str) -> Callable[[], asyncio.Future[None]]:
        async def endless() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(name)

        return lambda: asyncio.ensure_future(endless())

    for name in ("one", "two"):
        tasks.keep(name, work(name))
    await asyncio.sleep(0.01)
    await tasks.stop(["one"])
    assert ended == ["one"]
    await tasks.stop()
    assert ended == ["one", "two"]
    await tasks.stop()


async def test_a_task_that_was_never_begun_is_ended_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    tasks = BackgroundTasks()

    async def work() -> None:
        raise AssertionError("it must not begin")

    tasks.run("load", work)
    await tasks.stop()
    gc.collect()
    assert not recwarn.list


@given(st.integers(1, 10_000), st.floats(1e-3, 10), st.floats(10, 1e4))
def test_the_wait_grows_and_has_a_bound(failures: int, first: float, longest: float) -> None:
    tasks = BackgroundTasks(first_delay=first, longest_delay=longest)
    delays = [tasks._delay(failures), tasks._delay(failures + 1)]
    assert first <= delays[0] <= delays[1] <= longest
    assert delays[1] == longest or delays[1] == 2 * delays[0]
