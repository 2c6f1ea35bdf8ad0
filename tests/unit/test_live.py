"""The live feed and its figures without a server, by a clock of the test: one task for all listeners; windows,
rates, and counters that begin again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from service.deployments.deployments import Deployments
from service.engine.client.engine import Engine
from service.engine.protocol.messages import EngineStats, StepRecord
from service.observability.live import feed as feeds
from service.observability.live.feed import Feed, Listener
from service.observability.live.figures import MOST_STEPS, Figures
from service.observability.metrics import Metrics
from service.tasks import BackgroundTasks
from tests.fake_service import ScriptedEngine, serving
from tests.fakes import FakeClock
from tests.waiting import until


@dataclass
class Numbers:
    """A source that counts: its samples are 1, 2, 3, …"""

    calls: list[str] = field(default_factory=list)
    made: int = 0
    failure: Exception | None = None

    def begin(self) -> None:
        self.calls.append("begin")

    def sample(self) -> int:
        if self.failure is not None:
            raise self.failure
        self.made += 1
        return self.made

    def end(self) -> None:
        self.calls.append("end")


class World:
    """A feed whose time passes when the test says so."""

    def __init__(self) -> None:
        self.clock, self.source, self.stopping = FakeClock(), Numbers(), False
        self.tasks = BackgroundTasks()
        self.slept = list[float]()
        self._sleep_ends = asyncio.Event()
        self._asleep = False
        self.feed = Feed(self.source, self._encode, self.tasks, lambda: self.stopping, self.clock, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._asleep, self._sleep_ends = True, asyncio.Event()
        try:
            await self._sleep_ends.wait()
        finally:
            self._asleep = False
        self.clock.advance(seconds)

    async def wake(self) -> None:
        """Ends the sleep of the feed's task, and waits for its next one or for its end."""
        await until(lambda: self._asleep)
        ended = self._sleep_ends
        ended.set()
        await until(lambda: (self._asleep and self._sleep_ends is not ended) or not self.running)

    async def second(self) -> None:
        before = self.clock()
        while self.clock() < before + 1:
            await self.wake()

    @staticmethod
    def _encode(value: Any) -> bytes:
        return str(value).encode()

    @property
    def running(self) -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == feeds.TASK]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.tasks.stop()


async def read(listener: Listener, count: int) -> list[bytes]:
    events = listener.events()
    return [await anext(events) for _ in range(count)]


async def test_a_listener_that_comes_as_the_last_one_leaves_gets_events(world: World) -> None:
    """The task that was cancelled must not end what began after it."""
    first = world.feed.listen()
    await world.second()
    world.feed.leave(first)
    second = world.feed.listen()
    await until(lambda: len(world.running) == 1)
    await world.second()
    assert (await read(second, 1), world.source.calls) == ([b"2"], ["begin", "end", "begin"])


async def test_a_slow_listener_gets_the_newest_event_only(world: World) -> None:
    slow = world.feed.listen()
    for _ in range(5):
        await world.second()
    events = slow.events()
    assert await anext(events) == b"5"
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert not waiting.done()
    await world.second()
    assert await waiting == b"6"


async def read_all(listener: Listener) -> list[bytes]:
    return [event async for event in listener.events()]


async def test_the_end_of_the_background_tasks_ends_the_listeners(world: World) -> None:
    listener = world.feed.listen()
    ended = asyncio.create_task(read_all(listener))
    await world.second()
    await world.tasks.stop()
    assert await ended == [b"1"]
    assert not listener.has_failed


async def test_a_sample_that_fails_ends_the_listeners_and_the_next_one_begins_anew(world: World) -> None:
    listener = world.feed.listen()
    world.source.failure = RuntimeError("a defect")
    for _ in range(4):
        await world.wake()
    assert await read_all(listener) == []
    assert listener.has_failed
    world.feed.leave(listener)
    world.source.failure = None
    listener = world.feed.listen()
    await world.second()
    assert (await read(listener, 1), world.source.calls) == ([b"1"], ["begin", "end", "begin"])


async def test_a_delay_is_not_made_up_for(world: World) -> None:
    world.feed.listen()
    await world.second()
    world.clock.advance(30)
    await world.wake()
    made = world.source.made
    assert made == 2, "one, which no other follows at once"
    await world.second()
    assert world.source.made == made + 1


@dataclass
class Served:
    figures: Figures
    clock: FakeClock
    engine: ScriptedEngine
    metrics: Metrics

    def after(self, seconds: float = 1.0) -> dict[str, Any]:
        """The figures of the one version, so much later."""
        self.clock.advance(seconds)
        sample: Any = self.figures.sample()
        assert (sample["at"], sample["interval_seconds"]) == (1700000000.123, seconds)
        [version] = sample["versions"]
        return dict(version)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as world:
        clock = FakeClock(100.0)
        deployments: Deployments = world.deployments
        figures = Figures(deployments, world.metrics, clock, lambda: 1700000000.1234)
        world.engine.stats = replace(world.engine.stats, steps_total=50, prefill_tokens_total=900)
        figures.begin()
        yield Served(figures, clock, world.engine, world.metrics)


def records(*numbers: int) -> list[StepRecord]:
    return [StepRecord(number, 1, number / 10, number / 5) for number in numbers]


async def test_figures_are_of_the_time_since_the_sample_before(served: Served) -> None:
    shown = served.after()
    assert (shown["model"], shown["state"], shown["steps"]) == ("demo:1", "ready", [])
    assert (shown["tokens_per_second"], shown["prompt_tokens_per_second"]) == (0, 0), "not the totals of before"
    stats = served.engine.stats
    served.engine.stats = replace(
        stats, running=2, waiting=1, steps_total=52, prefill_tokens_total=1000, cost=(0.1, 0.2, 0.3, 0.4)
    )
    served.engine.recent_steps.extend(records(1, 2, 3))
    recent = served.metrics.model("demo", "1")
    recent.handed_out(101.0, 1, 0.5, None)
    recent.handed_out(101.5, 1, None, 0.01)
    recent.handed_out(102.0, 1, None, 0.03)
    shown = served.after(2.0)
    assert (shown["running"], shown["waiting"]) == (2, 1)
    assert (shown["tokens_per_second"], shown["prompt_tokens_per_second"]) == (1.5, 50.0)
    assert shown["steps"] == [
        {"tokens": number, "sequences": 1, "predicted_seconds": number / 10, "seconds": number / 5} for number in (2, 3)
    ]
    assert shown["ttft_seconds"] == {"p50": 0.5, "p95": 0.5, "count": 1}
    assert shown["itl_seconds"] == {"p50": 0.01, "p95": 0.03, "count": 2}
    assert shown["cost"]["seconds_per_kv_token"] == 0.3
    shown = served.after()
    assert (shown["tokens_per_second"], shown["steps"], shown["itl_seconds"]["count"]) == (0, [], 2)
    assert served.after(60.0)["itl_seconds"]["count"] == 0


async def test_prefix_hits_are_of_the_window(served: Served) -> None:
    stats = served.engine.stats
    for queried, hit in ((100, 60), (150, 60)):
        served.engine.stats = replace(stats, prefix_queried_tokens_total=queried, prefix_hit_tokens_total=hit)
        shown = served.after(30.0)
    assert shown["prefix_hits"] == {"cached_tokens": 60, "prompt_tokens": 150}
    assert served.after(30.0)["prefix_hits"] == {"cached_tokens": 0, "prompt_tokens": 50}


async def test_counters_that_begin_again_are_no_negative_rates(served: Served) -> None:
    served.engine.stats = EngineStats(steps_total=3, prefill_tokens_total=20)
    served.engine.recent_steps.extend(records(*range(9)))
    shown = served.after()
    assert (shown["prompt_tokens_per_second"], len(shown["steps"])) == (20, 3)
    served.engine.stats = EngineStats()
    assert served.after()["kv_blocks"] == {"total": 0, "free": 0, "cached": 0}


async def test_replicas_are_counted_one_by_one(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that begins again takes nothing from the others."""
    first, second = (ScriptedEngine(served.engine.tokenizer) for _ in range(2))
    replicas: list[Engine] = [first]
    monkeypatch.setattr(ScriptedEngine, "replicas", property(lambda self: tuple(replicas)))
    first.stats = EngineStats(steps_total=90, prefill_tokens_total=500)
    served.after()
    replicas.append(second)
    first.stats, second.stats = EngineStats(steps_total=1, prefill_tokens_total=10), EngineStats(40, steps_total=40)
    first.recent_steps.extend(records(1))
    second.recent_steps.extend(records(*range(32)))
    shown = served.after()
    assert (shown["prompt_tokens_per_second"], len(shown["steps"])) == (10, MOST_STEPS)


async def test_nothing_is_kept_without_a_listener(served: Served) -> None:
    model = served.metrics.model("demo", "1")
    assert model.recent is not None and served.metrics.model("demo", "2").recent is not None
    served.figures.end()
    assert model.recent is None and served.metrics.model("demo", "3").recent is None
    model.handed_out(0.0, 1, None, 0.1)
