"""Quotas bound what the bearers of a key use of this instance: requests and tokens a minute, and requests at a time.

A minute is a sliding window counter: the share of the last whole minute that the window still covers, and all of this
one. Two numbers say how long a refused caller must wait; a list of moments would grow with the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from service.errors import RateLimited
from service.storage.keys import KeyLimits

MINUTE: Final = 60.0
_SHARE_OF_LAST: Final = 0.25
"""How much the last request counts in the mean of their seconds."""
_ROUNDING: Final = 1e-6


@dataclass(slots=True)
class Window:
    """Counts of this minute and of the one before."""

    _minute: int = 0
    _now: int = 0
    _before: int = 0

    def add(self, moment: float, count: int) -> None:
        self._turn(moment)
        self._now += count

    def wait(self, moment: float, most: int | None) -> float:
        """Returns the seconds until one more is within `most`, where nothing is added meanwhile; 0.0 for now."""
        if most is None:
            return 0.0
        self._turn(moment)
        into = moment % MINUTE
        room = most - 1
        if self._now <= room:
            left = max(0.0, _gone_to(self._before, room - self._now) - into)
        else:
            left = MINUTE - into + _gone_to(self._now, room)
        return left if left > _ROUNDING else 0.0

    def _turn(self, moment: float) -> None:
        passed, self._minute = int(moment // MINUTE) - self._minute, int(moment // MINUTE)
        if passed:
            self._now, self._before = 0, self._now if passed == 1 else 0


def _gone_to(count: int, room: int) -> float:
    """Returns the second of a minute by which no more than `room` of the minute before are in the window."""
    return MINUTE * (1 - room / count) if count > room else 0.0


@dataclass(slots=True)
class _Used:
    requests: Window = field(default_factory=Window)
    tokens: Window = field(default_factory=Window)
    begun: list[float] = field(default_factory=list)
    seconds: float = 1.0


class Quotas:
    """The event loop owns Quotas. Owners without limits leave no trace here."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._used: dict[str, _Used] = {}

    def enter(self, owner: str, limits: KeyLimits) -> Callable[[], None]:
        """Counts a request, and returns what is called at its end. Raises RateLimited, with a `retry_after` after which
        the request passes if the owner sends no other, and then counts nothing."""
        if (refusal := self.refusal(owner, limits)) is not None:
            raise refusal
        used, now = self._used[owner], self._clock()
        used.requests.add(now, 1)
        used.begun.append(now)

        def leave() -> None:
            used.begun.remove(now)
            used.seconds += _SHARE_OF_LAST * (self._clock() - now - used.seconds)

        return leave

    def refusal(self, owner: str, limits: KeyLimits) -> RateLimited | None:
        """Returns what `enter` would raise."""
        used, now = self._used.setdefault(owner, _Used()), self._clock()
        waits = {
            "requests_per_minute": used.requests.wait(now, limits.requests_per_minute),
            "tokens_per_minute": used.tokens.wait(now, limits.tokens_per_minute),
            "concurrent": _until_fewer(used, now, limits.concurrent),
        }
        name = max(waits, key=lambda each: waits[each])
        if not waits[name]:
            return None
        most = getattr(limits, name)
        return RateLimited(
            f"This key has used its `{name}` of {most}: send the request again after Retry-After",
            retry_after=waits[name],
            **{name: most},
        )

    def spend(self, owner: str, tokens: int) -> None:
        """Counts the tokens of an answer that has ended, the prompt's too."""
        if (used := self._used.get(owner)) is not None:
            used.tokens.add(self._clock(), tokens)


def _until_fewer(used: _Used, now: float, most: int | None) -> float:
    """Returns the seconds until a request has probably ended, as long as they took lately; 0.0 where one more fits."""
    if most is None or len(used.begun) < most:
        return 0.0
    return max(1.0, used.seconds - (now - used.begun[0]))
