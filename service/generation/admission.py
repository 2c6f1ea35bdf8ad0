"""Admission decides which requests enter, and when a refused client should come back. It knows forecasts as numbers; no
engine and no text."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from service.engine.protocol.messages import EngineStats
from service.errors import InvalidRequest, Overloaded, Unavailable
from service.generation.refusals import refuse_late
from service.generation.request import GenerationRequest

LONGEST_WAIT_SECONDS: Final = 300.0
"""How long a request waits for something that takes no place of running sequences."""
NOT_LOADED: Final = "The version was still loading or draining after minutes: send the request again"
MEASURED_ENDS: Final = 256
MEASURED_SECONDS: Final = 60.0
UNMEASURED_RETRY_SECONDS: Final = 5
LONGEST_RETRY_SECONDS: Final = 60
"""OpenAI's clients take a longer `Retry-After` for none, and are back within seconds."""
LEFT_TO_OTHERS: Final = 1 / 8
"""How much of the places is for owners who have less than an equal part of them, once there is more than one."""
CROWDED_SECONDS: Final = 1.0
HEADROOM: Final = 0.1
NEWCOMERS_ROOM: Final = 0.5
"""How much of a queue's longest wait newcomers may fill while others come back who were refused."""
MOST_REMEMBERED: Final = 10_000
"""So many refused requests are known again,"""
MOST_ALIKE: Final = 16
"""and so many of each that are the same."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What is counted, and the setting that raises its number."""

    unit: str
    setting: str
    number: str


PLACES: Final = Bound("places", "DOSIRAK_MAX_IN_PROGRESS", "in_progress")
TOKENS: Final = Bound("prompt tokens", "DOSIRAK_MAX_TOKENS_IN_PROGRESS", "tokens_in_progress")


class Admission:
    """Admission bounds how many of a kind are in progress by a fixed number of places: sequences that wait or run,
    requests that wait for something else, or tokens of prompts. What is alone enters, whatever its size. A refusal's
    `retry_after` is the time until a tenth of the places is free at the present rate, so that clients that come back
    together find room.

    Places of several owners: who has an equal part of the places leaves the last eighth to those who have less. So no
    owner takes all of them, however many requests it has waiting."""

    def __init__(
        self,
        places: int,
        clock: Callable[[], float] = time.monotonic,
        refused: Callable[[str], None] = lambda reason: None,
        longest_queue_seconds: float = math.inf,
        bound: Bound = PLACES,
    ) -> None:
        """A request without a deadline that would wait for a free place of its engine's batch for more than
        `longest_queue_seconds` is refused. `refused` is called with the error's code for each refusal."""
        self.places = places
        self._bound = bound
        self._longest_queue_seconds = longest_queue_seconds
        self._queues: dict[str, Counter[str]] = {}
        self._lines: dict[tuple[str, str], float] = {}
        """By engine and owner: when the last of those who were told to come back is due."""
        self._told: OrderedDict[int, tuple[float, ...]] = OrderedDict()
        """When those who sent the same request were told to come back, the first who was told first. Tuples: ten
        thousand deques take 8 MB."""
        self._crowded_until = -math.inf
        self._refused = refused
        self.in_progress = 0
        self._held: Counter[str] = Counter()
        self._first_owner: str | None = None
        self._is_shared = False
        self._clock = clock
        self._busy_since = clock()
        self._ends: deque[tuple[float, int]] = deque(maxlen=MEASURED_ENDS)

    @contextmanager
    def entered(self, count: int, owner: str = "") -> Iterator[None]:
        """Holds `count` places for `owner` until the block ends. Raises Overloaded, and then takes none."""
        self.enter(count, owner)
        try:
            yield
        finally:
            self.leave(count, owner)

    @asynccontextmanager
    async def waiting(self, late: str, owner: str = "") -> AsyncIterator[None]:
        """Holds one place as `entered` does, and has `patience`."""
        with self.entered(1, owner):
            async with self.patience(late):
                yield

    @asynccontextmanager
    async def patience(self, late: str) -> AsyncIterator[None]:
        """Raises Unavailable with the sentence `late` where the block takes longer than LONGEST_WAIT_SECONDS."""
        try:
            async with asyncio.timeout(LONGEST_WAIT_SECONDS) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise Unavailable(late, retry_after=self.retry_after(1)) from None

    def enter(self, count: int, owner: str = "") -> None:
        """Takes `count` places; `leave` gives them back. Raises Overloaded, and then takes none."""
        self.require(count, owner)
        if not self.in_progress:
            self._busy_since = self._clock()
        self.in_progress += count
        self._held[owner] += count

    def require(self, count: int, owner: str = "") -> None:
        """Raises Overloaded where `count` places are not free for `owner` now."""
        self._raise(self._too_many(count, owner))

    @property
    def is_crowded(self) -> bool:
        """Returns whether a request was refused a moment ago, so that it is worth to look closely at the next one."""
        return self._clock() < self._crowded_until

    def refusal(self, engine: str, owner: str, stats: EngineStats, sent: bytes) -> Overloaded | None:
        """Returns what this request of `owner` without a deadline is refused with, and counts it; None where it could
        enter. `sent` is the request as it came: who was refused with it and comes back as told finds room that
        newcomers leave. The other arguments are those of `queued`."""
        request, now = hash((engine, owner, sent)), self._clock()
        told = self._told.get(request, ())
        is_back = bool(told) and told[0] <= now
        room = self._longest_queue_seconds * (1 if is_back else NEWCOMERS_ROOM)
        refusal = self._too_many(1, owner) or self._too_long(engine, owner, 1, stats, room)
        told = told[1:] if is_back else told
        if refusal is not None:
            self._count(refusal)
            told = (*told, now + (refusal.retry_after or 0))[-MOST_ALIKE:]
        self._remember(request, told)
        return refusal

    def _remember(self, request: int, told: tuple[float, ...]) -> None:
        self._told.pop(request, None)
        if told:
            self._told[request] = told
        if len(self._told) > MOST_REMEMBERED:
            self._told.popitem(last=False)

    def _too_many(self, count: int, owner: str) -> Overloaded | None:
        left_over = self._left_to_others(count, owner)
        if not self.in_progress or self.in_progress + count <= self.places - left_over:
            return None
        bound = self._bound
        numbers: dict[str, Any] = {bound.number: self.in_progress, f"max_{bound.number}": self.places}
        others = f", {left_over} are for those who have fewer," if left_over else ""
        return Overloaded(
            f"{self.in_progress} of {self.places} {bound.unit} are taken{others} and this request needs {count}: "
            f"send it again after Retry-After, or set {bound.setting} higher",
            retry_after=self.retry_after(count),
            **numbers,
        )

    def _left_to_others(self, count: int, owner: str) -> int:
        """Returns how many places `owner` leaves free with `count` more. An equal part is that of all who are there and
        of one more."""
        if self._first_owner is None:
            self._first_owner = owner
        self._is_shared |= owner != self._first_owner
        if not self._is_shared:
            return 0
        owners = len(self._held) + (owner not in self._held) + 1
        has_less = (self._held[owner] + count) * owners <= self.places
        return 0 if has_less else int(self.places * LEFT_TO_OTHERS)

    def _raise(self, refusal: Overloaded | None) -> None:
        if refusal is not None:
            self._count(refusal)
            raise refusal

    def _count(self, refusal: Overloaded) -> None:
        self._crowded_until = self._clock() + CROWDED_SECONDS
        self._refused(refusal.code)

    def refuse_more_than_all(self, count: int) -> None:
        """Raises InvalidRequest for a request that never finds its `count` places."""
        if count > self.places:
            raise InvalidRequest(
                f"This request is {count} sequences at once, and this server runs at most {self.places}: ask for fewer "
                "prompts, `n` or `best_of`, or set DOSIRAK_MAX_IN_PROGRESS higher",
                max_in_progress=self.places,
            )

    @contextmanager
    def queued(self, engine: str, request: GenerationRequest, count: int, stats: EngineStats) -> Iterator[None]:
        """Holds `count` sequences of the request's owner in the queue of an engine until the block ends; its `stats`
        may be a step old. Raises DeadlineExceeded where the deadline passes before the first token even if the forecast
        is wrong by its usual error, and Overloaded where there is no deadline and the batch is full for too long. The
        engine adds the prompt's own time: it knows how much is cached."""
        owners = self._queues.get(engine, Counter())
        backlog_seconds = stats.backlog_seconds * _share(owners, request.owner, count)
        refuse_late(request, backlog_seconds, stats.cost_error, self._clock())
        if request.deadline is None:
            self._raise(self._too_long(engine, request.owner, count, stats, self._longest_queue_seconds))
        owners[request.owner] += count
        self._queues[engine] = owners
        try:
            yield
        finally:
            owners[request.owner] -= count
            if not owners[request.owner]:
                del owners[request.owner]
            if not owners:
                del self._queues[engine]

    def _too_long(
        self, engine: str, owner: str, count: int, stats: EngineStats, longest_seconds: float
    ) -> Overloaded | None:
        """An owner waits for the others' sequences only as far as they take turns with its own."""
        owners = self._queues.get(engine, _NOBODY)
        unseated = max(0, owners.total() + count - stats.seats)
        seconds = unseated * stats.seat_seconds * _share(owners, owner, count)
        if seconds <= longest_seconds:
            return None
        turn = stats.seat_seconds * (len(owners) + (owner not in owners))
        return Overloaded(
            f"The batch is full, and this request would wait about {seconds:.0f} s for a place in it: send it "
            "again after Retry-After, or send `deadline_ms` to wait for longer",
            retry_after=self._due((engine, owner), max(0.0, seconds - self._longest_queue_seconds), count * turn),
            queue_seconds=round(seconds, 1),
            max_queue_seconds=self._longest_queue_seconds,
        )

    def _due(self, line: tuple[str, str], room: float, turn: float) -> float:
        """Returns the seconds after which a refused request finds a place, where the queue has room in `room` seconds:
        a `turn` behind the one that was refused before it, so that not all come back at once."""
        now = self._clock()
        if line not in self._lines:
            self._lines = {each: due for each, due in self._lines.items() if due > now}
        due = min(max(now + room, self._lines.get(line, now)) + turn, now + LONGEST_RETRY_SECONDS)
        self._lines[line] = due
        return due - now

    def leave(self, count: int, owner: str = "") -> None:
        self.in_progress -= count
        self._held[owner] -= count
        if self._held[owner] <= 0:
            del self._held[owner]
        self._ends.append((self._clock(), count))

    def retry_after(self, count: int) -> int:
        """Returns the whole seconds until `count` places and the headroom are free, at the rate at which they were
        given back in the last minute. Where none or one was, nothing moves, as while an engine loads: the next may take
        as long again."""
        now = self._clock()
        recent = [end for end in self._ends if now - end[0] <= MEASURED_SECONDS]
        if len(recent) < 2 or now <= recent[0][0]:
            quiet = now - max(self._busy_since, self._ends[-1][0] if self._ends else -math.inf)
            return min(LONGEST_RETRY_SECONDS, max(UNMEASURED_RETRY_SECONDS, math.ceil(quiet)))
        rate = sum(freed for _, freed in recent) / (now - recent[0][0])
        needed = max(count, self.in_progress + count - self.places * (1 - HEADROOM))
        return min(LONGEST_RETRY_SECONDS, max(1, math.ceil(needed / rate)))


_NOBODY: Final[Counter[str]] = Counter()


def _share(owners: Counter[str], owner: str, count: int) -> float:
    """Returns how much of a queue is before `count` more sequences of `owner`, where owners take turns: all of it where
    there is no other owner."""
    others = len(owners) + (owner not in owners)
    return min(1.0, (owners[owner] + count) * others / max(1, owners.total() + count))
