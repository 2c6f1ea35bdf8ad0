"""BackgroundTasks owns the background tasks of one server: it names them, logs and counts their errors, retries and
ends them.

    keep    a service: one pass after the other for ever, as `follow aliases once a second`
    retry   a piece of work that must be done: again until it returns, as `prepare the repository`
    run     a piece of work that may fail: once, as `make a summary`

After a failure `keep` and `retry` wait, twice as long each time. `Unbroken` is for a caller's own work that a
cancellation must not cut. The module knows no work and no metrics: it reports to `observe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog

log = structlog.get_logger(__name__)

FIRST_DELAY_SECONDS: Final = 1.0
LONGEST_DELAY_SECONDS: Final = 60.0
MOST_DOUBLINGS: Final = 64
END_SECONDS: Final = 1.0
"""The time that a cancelled task has for its clean-up, before it is cancelled again."""
FAILING_AFTER: Final = 5
"""Failures in a row, about half a minute of them, after which a task counts as failing."""

Result = TypeVar("Result")
Work = Callable[[], Awaitable[object]]
Observe = Callable[[str, int], None]
"""Gets a task's name and its number of failures in a row: 0 at its start and when it goes on again."""


@dataclass(slots=True)
class KeptTask:
    """A task that is tried again. `failures` counts the failures in a row; `logged` is the last one that was logged."""

    name: str
    failures: int = 0
    logged: tuple[type[BaseException], str] | None = None

    @property
    def is_failing(self) -> bool:
        """Returns whether the server must stop promising what depends on the task."""
        return self.failures >= FAILING_AFTER


class BackgroundTasks:
    """The event loop owns this object. Names are of a few kinds, never of a request: they label metrics."""

    def __init__(
        self,
        observe: Observe = lambda name, failures: None,
        first_delay: float = FIRST_DELAY_SECONDS,
        longest_delay: float = LONGEST_DELAY_SECONDS,
    ) -> None:
        self._observe = observe
        self._first_delay = first_delay
        self._longest_delay = longest_delay
        self._running: dict[asyncio.Task[None], str] = {}

    def keep(self, name: str, work: Work, every: float = 0.0) -> KeptTask:
        """Does one pass of `work` after the other, each after `every` seconds; one that failed is tried again sooner.
        With 0 each pass must wait for something; otherwise it holds the event loop."""
        kept = KeptTask(name)
        self._begin(name, self._keep(kept, work, every))
        return kept

    def retry(self, name: str, work: Work) -> KeptTask:
        """Does `work` until it returns."""
        kept = KeptTask(name)
        self._begin(name, self._retry(kept, work))
        return kept

    def run(self, name: str, work: Work) -> asyncio.Task[None]:
        """Does `work` once. The task raises none of the work's errors; cancelling the task cancels the work."""
        return self._begin(name, self._run(name, work))

    async def stop(self, names: Iterable[str] | None = None) -> None:
        """Cancels the tasks of these names, or all tasks where `names` is None, and waits for their end."""
        chosen = None if names is None else frozenset(names)
        tasks = [task for task, name in self._running.items() if chosen is None or name in chosen]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=END_SECONDS)
        await cancelled(tasks)

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._running[task] = name  # asyncio keeps only weak references to tasks
        task.add_done_callback(self._running.pop)
        self._observe(name, 0)
        return task

    async def _keep(self, kept: KeptTask, work: Work, every: float) -> None:
        while True:
            if every:
                await asyncio.sleep(every)
            await self._retry(kept, work)

    async def _retry(self, kept: KeptTask, work: Work) -> None:
        while not await self._succeeds(kept, work):  # noqa: ASYNC110 - it waits for nobody
            await asyncio.sleep(self._delay(kept.failures))
        if kept.failures:
            log.info("background_task_goes_on", task=kept.name, failures=kept.failures)
            kept.failures, kept.logged = 0, None
            self._observe(kept.name, 0)

    def _delay(self, failures: int) -> float:
        doublings = min(failures - 1, MOST_DOUBLINGS)
        return min(self._first_delay * 2.0**doublings, self._longest_delay)

    async def _run(self, name: str, work: Work) -> None:
        await self._succeeds(KeptTask(name), work)

    async def _succeeds(self, kept: KeptTask, work: Work) -> bool:
        """Tries once. Counts and reports a failure; logs one that is not the last one again."""
        try:
            await work()
            return True
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise
            self._failed(kept, error)  # a task that it awaited was cancelled
        except Exception as error:
            self._failed(kept, error)
        return False

    def _failed(self, kept: KeptTask, error: BaseException) -> None:
        kept.failures += 1
        if kept.logged != (failure := (type(error), str(error))):
            kept.logged = failure
            log.exception("background_task_failed", task=kept.name, failures=kept.failures)
        self._observe(kept.name, kept.failures)


def _is_being_cancelled() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


class Unbroken:
    """Work that goes on to its end when its caller is cancelled, as a write that puts back what it could not write."""

    def __init__(self) -> None:
        self._running = set[asyncio.Task[Any]]()

    async def finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns what the work returns, and raises its error."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._end)
        return await asyncio.shield(task)

    async def ended(self) -> None:
        """Waits until no work goes on."""
        await asyncio.gather(*self._running, return_exceptions=True)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has the error, or is gone


AGAIN_SECONDS: Final = 0.05


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels and awaits all tasks; drops their results and errors.

    It cancels again until they end: `asyncio.wait_for` before Python 3.12 loses a cancellation that comes together with
    the result it waits for (python/cpython#86296). A task that then goes on may wait for the task that awaits it here.
    """
    every = tuple(tasks)
    left = {task for task in every if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_SECONDS)
    for task in every:
        with suppress(asyncio.CancelledError):
            task.exception()  # read, so that asyncio logs it not as never retrieved, and does not keep a cancellation
