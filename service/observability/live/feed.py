"""A feed gives one event a second to all its listeners. One task makes the events. It begins with the first listener
and ends with the last; without a listener there is no task and no timer. The module knows no HTTP and not what an event
says.

    source ─▶ sample ─▶ encode, once ─▶ each listener's newest event ─▶ its client

A listener that reads slowly misses events; it always gets the newest one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, Protocol

from service.errors import Overloaded
from service.tasks import BackgroundTasks

INTERVAL_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.25
"""While somebody listens, the feed looks so often whether the server is ending."""
MOST_LISTENERS: Final = 64
RETRY_SECONDS: Final = 10
TASK: Final = "live"


class Source(Protocol):
    """What the events are made of."""

    def begin(self) -> None:
        """Called before the first sample."""
        ...

    def sample(self) -> object:
        """Returns the next event's data."""
        ...

    def end(self) -> None:
        """Called after the last sample."""
        ...


class Listener:
    """One reader of a feed. It holds the newest event that was not read. `has_failed`: no more events can be made."""

    def __init__(self) -> None:
        self.has_failed = False
        self._newest: bytes | None = None
        self._news = asyncio.Event()
        self._is_ended = False

    def offer(self, event: bytes) -> None:
        """Replaces the event that was not read."""
        self._newest = event
        self._news.set()

    def end(self) -> None:
        self._is_ended = True
        self._news.set()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yields the events, until the feed or `Feed.leave` ends them."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._is_ended:
                return
            if self._newest is not None:
                newest, self._newest = self._newest, None
                yield newest


class Feed:
    """The event loop owns it. `is_stopping` says that the server waits for its responses to end: then all listeners
    end."""

    def __init__(
        self,
        source: Source,
        encode: Callable[[object], bytes],
        tasks: BackgroundTasks,
        is_stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._encode = encode
        self._tasks = tasks
        self._is_stopping = is_stopping
        self._clock = clock
        self._sleep = sleep
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def num_listeners(self) -> int:
        return len(self._listeners)

    def listen(self) -> Listener:
        """Adds a listener, which must leave. Raises Overloaded where there are MOST_LISTENERS."""
        if len(self._listeners) >= MOST_LISTENERS:
            raise Overloaded(
                f"{MOST_LISTENERS} clients listen to the live figures, and there may be no more: end one of them, or "
                "read /metrics instead",
                retry_after=RETRY_SECONDS,
            )
        if self._task is None:
            self._source.begin()
            self._task = self._tasks.run(TASK, self._sample)
            self._task.add_done_callback(self._ended)
        listener = Listener()
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Removes a listener; no-op for one that has left. The last one ends the task."""
        listener.end()
        self._listeners.discard(listener)
        if self._listeners or self._task is None:
            return
        self._task.cancel()
        self._finish()

    async def _sample(self) -> None:
        """Makes events until it is cancelled or the server is ending. After a delay it goes on from there: events are
        never made faster to catch up, for a listener that had no time to read one would lose it."""
        due = self._clock() + INTERVAL_SECONDS
        while True:
            while (left := due - self._clock()) > 0:
                if self._is_stopping():
                    return
                await self._sleep(min(left, LOOK_SECONDS))
            event = self._encode(self._source.sample())
            for listener in self._listeners:
                listener.offer(event)
            now = self._clock()
            due = (due if now - due < INTERVAL_SECONDS / 2 else now) + INTERVAL_SECONDS

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Ends all listeners where `leave` has not ended the task: the server is ending, or a sample failed."""
        if task is not self._task:
            return
        self._finish()
        for listener in self._listeners:
            listener.has_failed = not (task.cancelled() or self._is_stopping())
            listener.end()

    def _finish(self) -> None:
        self._task = None
        self._source.end()
