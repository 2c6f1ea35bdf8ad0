"""This module puts a scenario's load on one engine for some seconds and observes every token. It judges nothing.

    0 ──── warm-up ────┬──────────── counted ────────────┬ end: all that runs is aborted
                       └ tokens, first tokens, gaps and ends count by the time at which they come

A request that still waits for its first token at the end counts with its wait so far where that is longer than the
median: it would be the slowest, and without it a candidate would look good by answering nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import aclosing
from random import Random
from typing import Any, Final

from service.engine.client.engine import Engine
from service.engine.protocol.messages import FinishReason, Request, SamplingParams
from service.errors import DosirakError
from service.evaluation.scenarios.figures import NotMeasured, percentile
from service.evaluation.scenarios.requests import Drawn, due_times, one_request
from service.evaluation.scenarios.scenario import ClosedLoop, OpenLoop
from service.evaluation.tuning.objective import Slice
from service.evaluation.tuning.workload import Workload

WARMUP: Final = 0.25
"""The share of a slice that does not count."""
SETTLE_SECONDS: Final = 10.0
WHOLE: Final = (FinishReason.LENGTH, FinishReason.STOP)


class Broken(Exception):
    """The candidate cannot serve the load; the message is a clause that says why."""


async def drive(engine: Engine, workload: Workload, number: int, seconds: float, enough: int = 0) -> Slice:
    """Returns what the engine did in pass `number`: the same requests for every engine. Ends earlier after `enough`
    answers. Raises Broken, or NotMeasured for requests that no engine could take."""
    restarts = engine.restarts
    run = _Drive(engine, workload, number, seconds, enough)
    try:
        await run.run()
        async with asyncio.timeout(SETTLE_SECONDS):
            await _settled(engine, workload)
    except NotMeasured:
        raise
    except TimeoutError:
        raise Broken(f"its engine was not idle {SETTLE_SECONDS:g} s after the load") from None
    except DosirakError as error:
        raise Broken(str(error)) from None
    if engine.restarts != restarts:
        raise Broken("its engine process ended while it was measured")
    return run.measured


async def _settled(engine: Engine, workload: Workload) -> None:
    """Waits until aborted requests are gone: the engine takes orders in turn, so this one's end is theirs."""
    request = Request(f"settled-{time.monotonic_ns()}", (0, 0), SamplingParams(1), adapter=workload.adapter)
    async with aclosing(engine.generate(request)) as outputs:
        async for _ in outputs:
            pass


class _Drive:
    """One slice. It lives in one event loop."""

    def __init__(self, engine: Engine, workload: Workload, number: int, seconds: float, enough: int) -> None:
        self.measured = Slice()
        self._engine = engine
        self._workload = workload
        self._load = workload.scenario.load
        self._number = number
        self._seconds = seconds
        self._enough = enough
        self._answers = 0
        self._in_flight = 0
        self._sent = 0
        self._waiting: dict[str, float] = {}
        self._unsent = deque[float]()
        """Times at which requests of a schedule are due, of those that did not arrive yet."""
        self._tasks = set[asyncio.Task[None]]()
        self._over = asyncio.Event()
        self._failure: BaseException | None = None
        self._began = self._counted = self._end = 0.0

    async def run(self) -> None:
        self._began = time.monotonic()
        self._counted = self._began + self._seconds * (0.0 if self._enough else WARMUP)
        self._end = self._began + self._seconds
        for user in self._users():
            self._spawn(user)
        try:
            async with asyncio.timeout(self._seconds):
                await self._over.wait()
        except TimeoutError:
            pass
        finally:
            ended = min(time.monotonic(), self._end)
            await self._cancel()
        if self._failure is not None:
            raise self._failure
        for due in self._unsent:  # a machine that stood still sent them too late
            if due < ended:
                self._arrive(due)
        self.measured.seconds = max(0.0, ended - self._counted)
        self._count_waits(ended)

    def _users(self) -> list[Coroutine[Any, Any, None]]:
        load = self._load
        if isinstance(load, ClosedLoop):
            return [self._closed_user(load, user) for user in range(load.users)]
        return [self._schedule(load)]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._over.set()

    async def _cancel(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _closed_user(self, load: ClosedLoop, user: int) -> None:
        draw = Random(f"{load.seed} pass {self._number} user {user}")
        dialogue = self._workload.dialogue(draw, user)
        await asyncio.sleep(draw.random() * min(load.think_seconds[1], self._seconds * WARMUP))
        while True:
            now = time.monotonic()
            self.measured.arrived += now >= self._counted
            whole, said = await self._answer(dialogue.next_request(), now)
            dialogue.hear(said, whole)
            await asyncio.sleep(draw.uniform(*load.think_seconds))

    async def _schedule(self, load: OpenLoop) -> None:
        changed = {"warmup_seconds": 0.0, "seconds": self._seconds, "seed": load.seed + self._number}
        places = asyncio.Semaphore(load.users)
        dues = due_times(load.model_copy(update=changed))
        self._unsent.extend(self._began + due for due in dues)
        for due in dues:
            drawn = one_request(self._workload.scenario.requests, Random(f"{load.seed} {self._number} {due!r}"))
            await asyncio.sleep(self._began + due - time.monotonic())
            self._spawn(self._scheduled(drawn, self._unsent.popleft(), places))

    def _arrive(self, due: float) -> str:
        """Counts a request that is due, and returns the name under which it waits for a user."""
        self.measured.arrived += due >= self._counted
        self._waiting[name := f"due {due!r}"] = due
        return name

    async def _scheduled(self, drawn: Drawn, due: float, places: asyncio.Semaphore) -> None:
        """Sends a request once one of the users is free. It has arrived before: who waits for a user waits too."""
        name = self._arrive(due)
        async with places:
            self._waiting.pop(name)
            await self._answer(drawn, due)

    async def _answer(self, drawn: Drawn, due: float) -> tuple[bool, str]:
        """Sends one request, observes it, and returns whether its answer is whole, and the text of the first
        sequence."""
        self._sent += 1
        requests = self._workload.requests(drawn, f"p{self._number}-{self._sent}", self._sent, due)
        if not requests:
            return False, ""
        self.measured.longest_prompt = max(self.measured.longest_prompt, *(len(each.token_ids) for each in requests))
        timed = self._workload.is_timed(drawn)
        answers = await asyncio.gather(*(self._sequence(each, due, timed) for each in requests))
        whole = all(reason in WHOLE for reason, _ in answers)
        self._note_end(due, whole)
        needs_text = drawn.kind.turns > 1
        return whole, self._workload.tokenizer.decode(answers[0][1]) if needs_text else ""

    async def _sequence(self, request: Request, due: float, timed: bool) -> tuple[FinishReason | None, list[int]]:
        tokens, last, reason = list[int](), 0.0, None
        self._waiting[request.id] = due
        self._in_flight += 1
        self.measured.most_at_once = max(self.measured.most_at_once, self._in_flight)
        try:
            async with aclosing(self._engine.generate(request)) as outputs:
                async for output in outputs:
                    reason = output.finish_reason
                    if output.token_ids:
                        now = time.monotonic()
                        self._note_tokens(now, due if not tokens else last, len(output.token_ids), not tokens, timed)
                        self._waiting.pop(request.id, None)
                        tokens += output.token_ids
                        last = now
        finally:
            self._in_flight -= 1
        self._waiting.pop(request.id, None)
        return reason, tokens

    def _note_tokens(self, now: float, before: float, count: int, first: bool, timed: bool) -> None:
        """Counts tokens that came at once; a step that verified drafts gives several."""
        if not self._counted <= now < self._end:
            return
        self.measured.tokens += count
        if timed:
            (self.measured.ttft_ms if first else self.measured.itl_ms).append((now - before) * 1e3)
            self.measured.itl_ms += [0.0] * (count - 1)

    def _note_end(self, due: float, whole: bool) -> None:
        now = time.monotonic()
        if self._counted <= now < self._end:
            self.measured.ended += whole
            self.measured.failed += not whole
            if whole:
                self.measured.e2e_ms.append((now - due) * 1e3)
        self._answers += 1
        if self._enough and self._answers >= self._enough:
            self._over.set()

    def _count_waits(self, ended: float) -> None:
        middle = percentile(self.measured.ttft_ms, 50) or 0.0
        waits = [(ended - due) * 1e3 for due in self._waiting.values()]
        self.measured.ttft_ms += [wait for wait in waits if wait > middle]
