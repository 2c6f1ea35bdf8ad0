"""Replicas are several engine processes of one version behind the interface of one engine, with one queue.

    request ─▶ queue ─▶ the replica that knows its beginning, unless that is much busier ─▶ EngineClient
                        else the least busy

A replica takes as many requests at once as its running set holds. So the first free replica serves a waiting request:
of the highest priority, aged as in an engine's own queue, the one of the owner with the fewest requests in the
replicas, then the one that came first. Background work is behind all of them.
While a replica is started again, the ready replicas get the requests. The first replica packs the weights. Each other
one, and each that is started again, maps those of a ready replica. This module knows token ids only.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Final, Protocol

from service.engine.client.engine import ALIVE, Engine, EngineState, require_alive
from service.engine.client.prefix_router import PrefixRouter
from service.engine.client.supervisor import PackedWeights
from service.engine.protocol.messages import (
    EngineInfo,
    EngineStats,
    FinishReason,
    Profile,
    Profiled,
    Request,
    StepOutput,
    StepRecord,
    aged,
)

SILENT_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.5
"""A queued request checks the replicas' states at this interval."""


class Replica(Engine, Protocol):
    """The engine of one process."""

    def lacks(self, adapter: str) -> str:
        """Returns why it cannot compute now with an adapter that it has had; "" if it can, or has not had it."""
        ...


MakeReplica = Callable[[int, PackedWeights], Replica]
"""(number, where a ready replica has the weights packed at the time of the call, "" for nowhere) → a replica, not yet
started."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """One request in the queue; `turn` is set when it may look for a seat."""

    request: Request
    turn: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Seat:
    """One replica and its number of requests."""

    engine: Replica
    in_flight: int = 0


class Replicas:
    """Works as `EngineClient`, over `count` of them. Lives in one event loop."""

    def __init__(
        self, make: MakeReplica, count: int, most_at_once: int, on_queue: Callable[[int], None] = lambda waiting: None
    ) -> None:
        """`on_queue` is called with the number of requests in the queue whenever it changes."""
        self._make = make
        self._on_queue = on_queue
        self._count = count
        self._most_at_once = most_at_once
        self._seats = [_Seat(make(0, self._packed_weights))]
        self._queue: list[_Waiting] = []
        self._owners: Counter[str] = Counter()
        self._router = PrefixRouter[_Seat]()
        self._state = EngineState.NEW

    @property
    def replicas(self) -> Sequence[Engine]:
        return [seat.engine for seat in self._seats]

    @property
    def info(self) -> EngineInfo | None:
        """The first replica's facts."""
        return self._seats[0].engine.info

    @property
    def stats(self) -> EngineStats:
        """Sums over the replicas, and the queue. Figures of the last step, the cost line and forecasts are those of the
        first ready replica that knows how long answers take, or what a step costs: a process that has just started
        knows neither. Seats become free at the rate of all ready replicas, and the queue waits for them."""
        each = [seat.engine.stats for seat in self._seats]
        sums = {name: reduce(add, (getattr(stats, name) for stats in each)) for name in _SUMMED}
        sums["waiting"] += len(self._queue)
        ready = [seat.engine.stats for seat in self._seats if seat.engine.state is EngineState.READY] or each
        known = max(ready, key=lambda stats: (stats.seat_seconds > 0, bool(stats.cost)))
        seat_seconds = known.seat_seconds / len(ready)
        backlog_seconds = max(known.backlog_seconds, len(self._queue) * seat_seconds)
        return replace(known, **sums, seat_seconds=seat_seconds, backlog_seconds=backlog_seconds)

    @property
    def recent_steps(self) -> Sequence[StepRecord]:
        return [step for seat in self._seats for step in seat.engine.recent_steps]

    @property
    def state(self) -> EngineState:
        """READY as long as one replica is."""
        if self._state is not EngineState.READY:
            return self._state
        states = [seat.engine.state for seat in self._seats]
        return next((state for state in (*ALIVE, EngineState.DRAINING) if state in states), states[0])

    @property
    def why_not_ready(self) -> str:
        """The first reason of a replica; "" as long as one replica is ready."""
        if self.state is EngineState.READY:
            return ""
        return next((seat.engine.why_not_ready for seat in self._seats if seat.engine.why_not_ready), "")

    @property
    def pid(self) -> int | None:
        return self._seats[0].engine.pid

    @property
    def restarts(self) -> int:
        return sum(seat.engine.restarts for seat in self._seats)

    @property
    def silent_seconds(self) -> float:
        return max(seat.engine.silent_seconds for seat in self._seats)

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        """Starts the first replica alone, then the others at once. Raises EngineFailed; then all are stopped."""
        self._state = EngineState.LOADING
        try:
            await self._seats[0].engine.start(on_loading)
            self._seats += [_Seat(self._make(number, self._packed_weights)) for number in range(1, self._count)]
            await asyncio.gather(*(seat.engine.start() for seat in self._seats[1:]))
        except BaseException:
            self._state = EngineState.FAILED
            await asyncio.gather(*(seat.engine.stop() for seat in self._seats))
            raise
        self._state = EngineState.READY

    async def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        """Yields the outputs as Engine.generate does. One replica computes all tokens."""
        require_alive(self.state)
        try:
            async with asyncio.timeout(_seconds_left(request)):
                chosen = await self._free_seat(request)
        except TimeoutError:
            yield StepOutput(request.id, finish_reason=FinishReason.DEADLINE)
            return
        with self._seated(chosen, request.owner) as seat:
            async with aclosing(seat.engine.generate(request)) as outputs:
                async for output in outputs:
                    yield output

    async def load_adapter(self, name: str, directory: str) -> None:
        """Loads the adapter in all live replicas, or in none."""
        require_alive(self.state)
        living = [seat.engine for seat in self._seats if seat.engine.state in ALIVE]
        try:
            await asyncio.gather(*(engine.load_adapter(name, directory) for engine in living))
        except BaseException:
            self.unload_adapter(name)
            raise

    def unload_adapter(self, name: str) -> None:
        for seat in self._seats:
            seat.engine.unload_adapter(name)

    async def profile(self, order: Profile) -> Profiled:
        """Records the steps of the first replica."""
        return await self._seats[0].engine.profile(order)

    async def stop(self, grace: float = 0.0) -> None:
        if self._state is not EngineState.FAILED:
            self._state = EngineState.STOPPED
        for waiting in self._queue:
            waiting.turn.set()
        await asyncio.gather(*(seat.engine.stop(grace) for seat in self._seats))

    def _packed_weights(self) -> str:
        """Returns where a ready replica has the packed weights. Who maps them has a place for them too."""
        ready = (seat.engine.info for seat in self._seats if seat.engine.state is EngineState.READY)
        return next((info.packed_weights for info in ready if info and info.packed_weights), "")

    async def _free_seat(self, request: Request) -> _Seat:
        """Waits for a seat. Raises Unavailable as soon as no replica can ever serve."""
        mine = _Waiting(request)
        self._queue.append(mine)
        self._on_queue(len(self._queue))
        try:
            while not (free := self._open(request)) or self._first() is not mine:
                require_alive(self.state)
                mine.turn.clear()
                with suppress(TimeoutError):  # no event says that a replica became ready or ended
                    async with asyncio.timeout(LOOK_SECONDS):
                        await mine.turn.wait()
            return self._router.place(request, free)
        finally:
            self._queue.remove(mine)
            self._on_queue(len(self._queue))
            self._call_next()

    def _first(self) -> _Waiting:
        """Returns who of the queue is next."""
        now = time.monotonic()

        def rank(waiting: _Waiting) -> tuple[float, int]:
            request = waiting.request
            return -aged(request.priority, now - request.arrival), self._owners[request.owner]

        return min(self._queue, key=rank)  # of equals the first, which came first

    def _open(self, request: Request) -> list[_Seat]:
        """Returns the ready replicas with room; one that lacks the adapter, or falls silent, only where all do. If no
        replica is ready, with or without room, returns the restarting ones with room."""
        alive = [seat for seat in self._seats if seat.engine.state in ALIVE]
        having = [seat for seat in alive if not seat.engine.lacks(request.adapter)] or alive
        heard = [seat for seat in having if seat.engine.silent_seconds < SILENT_SECONDS] or having
        living = [(seat, seat.engine.state) for seat in heard]
        best = EngineState.READY if any(state is EngineState.READY for _, state in living) else EngineState.RESTARTING
        return [seat for seat, state in living if state is best and seat.in_flight < self._most_at_once]

    @contextmanager
    def _seated(self, seat: _Seat, owner: str) -> Iterator[_Seat]:
        seat.in_flight += 1
        self._owners[owner] += 1
        try:
            yield seat
        finally:
            seat.in_flight -= 1
            self._owners[owner] -= 1
            if not self._owners[owner]:
                del self._owners[owner]
            self._call_next()

    def _call_next(self) -> None:
        """Wakes the request that is next."""
        if self._queue:
            self._first().turn.set()


def _seconds_left(request: Request) -> float | None:
    return None if request.deadline is None else max(0.0, request.deadline - time.monotonic())


_SUMMED: Final = (
    "running",
    "waiting",
    "seats",
    "blocks_total",
    "blocks_free",
    "blocks_cached",
    "preemptions_total",
    "steps_total",
    "prefix_queried_tokens_total",
    "prefix_hit_tokens_total",
    "hopeless_total",
    "draft_tokens_total",
    "accepted_tokens_total",
    "certain_tokens_total",
    "blocks_offloaded",
    "restored_tokens_total",
    "prefill_tokens_total",
    "prefill",
    "decode",
)
