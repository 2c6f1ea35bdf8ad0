"""The live feed without a server: one task for all listeners, by a clock of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from service.observability.live import feed as feeds
from service.observability.live.feed import Feed, Listener
from service.tasks import BackgroundTasks
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
    assert made <= 3
    await world.second()
    assert world.source.made == made + 1
