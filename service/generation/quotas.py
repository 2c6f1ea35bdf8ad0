"""Quotas bound what the bearers of a key use: requests and tokens a minute and a day, and how many requests run at once
on this instance.

A minute is a sliding window counter: the share of the last whole minute that the window still covers, and all of this
one. Two numbers say how long a refused caller must wait; a list of moments would grow with the limit. A day is one of
the calendar, in UTC: what people mean by it, and what `GET /v1/usage` shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from service.errors import RateLimited
from service.generation.usage import Known, Usage
from service.storage.keys import KeyLimits
from service.storage.usage import DAY, MINUTE, TOKENS

REQUESTS: Final = ("requests",)
LIMITS: Final = {
    "requests_per_minute": (MINUTE, REQUESTS),
    "tokens_per_minute": (MINUTE, TOKENS),
    "requests_per_day": (DAY, REQUESTS),
    "tokens_per_day": (DAY, TOKENS),
}
"""What each limit counts, and in which period."""
_SHARE_OF_LAST: Final = 0.25
"""How much the last request counts in the mean of their seconds."""
_ROUNDING: Final = 1e-6


class Quotas:
    """The event loop owns Quotas. Owners without limits leave no trace here. `clock` times requests, and no step of
    the system's clock moves it."""

    def __init__(self, usage: Usage, clock: Callable[[], float] = time.monotonic) -> None:
        self._usage, self._clock = usage, clock

    async def enter(self, owner: str, limits: KeyLimits) -> Callable[[], None]:
        """Counts a request, and returns what is called at its end. Raises RateLimited, with a `retry_after` after which
        the request passes if the owner sends no other, and then counts nothing."""
        known, now = await self._usage.known(owner), self._clock()
        if (refusal := self.refusal(owner, limits)) is not None:
            raise refusal
        self._usage.entered(owner)
        known.begun.append(now)

        def leave() -> None:
            known.begun.remove(now)
            known.seconds += _SHARE_OF_LAST * (self._clock() - now - known.seconds)

        return leave

    def refusal(self, owner: str, limits: KeyLimits) -> RateLimited | None:
        """Returns what `enter` would raise, counted; None also for an owner that is not known yet."""
        known = self._usage.known_owners.get(owner)
        if known is None:
            return None
        waits = {name: self.wait(owner, name, getattr(limits, name)) for name in LIMITS}
        waits["concurrent"] = _until_fewer(known, self._clock(), limits.concurrent)
        name = max(waits, key=lambda each: waits[each])
        if not waits[name]:
            return None
        self._usage.refused(owner)
        most = getattr(limits, name)
        return RateLimited(
            f"This key has used its `{name}` of {most}: send the request again after Retry-After",
            retry_after=waits[name],
            **{name: most},
        )

    def wait(self, owner: str, name: str, most: int | None) -> float:
        """Returns the seconds until one more is within a limit of `most`, where nothing is added meanwhile; 0.0 for
        now. The owner must be known."""
        if most is None:
            return 0.0
        (period, counted), moment = LIMITS[name], self._usage.clock()
        slides, into, room = period == MINUTE, moment % period, most - 1
        now, before = (
            sum(self._usage.spent(owner, period, at)[each] for each in counted) for at in (moment, moment - period)
        )
        if now <= room:
            left = max(0.0, _gone_to(before, room - now) - into) if slides else 0.0
        else:
            left = period - into + (_gone_to(now, room) if slides else 0.0)
        return left if left > _ROUNDING else 0.0


def _gone_to(count: int, room: int) -> float:
    """Returns the second of a minute by which no more than `room` of the minute before are in the window."""
    return MINUTE * (1 - room / count) if count > room else 0.0


def _until_fewer(known: Known, now: float, most: int | None) -> float:
    """Returns the seconds until a request has probably ended, as long as they took lately; 0.0 where one more fits."""
    if most is None or len(known.begun) < most:
        return 0.0
    return max(1.0, known.seconds - (now - known.begun[0]))
