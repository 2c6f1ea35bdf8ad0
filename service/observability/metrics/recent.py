"""Recent observations are the tokens of one version as they are handed out: how many, and exact percentiles of the
last minute's latencies. They are kept only while somebody listens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

WINDOW_SECONDS: Final = 60.0
MOST_OBSERVATIONS: Final = 8192
"""The newest that a window holds: sorting them takes under 2 ms."""
DIGITS: Final = 6
Percentiles = dict[str, float | int | None]


class Window:
    """The observations of the last `seconds`, the newest `most` of them. Times never decrease."""

    __slots__ = ("_kept", "_seconds")

    def __init__(self, seconds: float = WINDOW_SECONDS, most: int = MOST_OBSERVATIONS) -> None:
        self._seconds = seconds
        self._kept = deque[tuple[float, float]](maxlen=most)

    def add(self, at: float, value: float) -> None:
        self._kept.append((at, value))

    def percentiles(self, now: float) -> Percentiles:
        """Returns `p50` and `p95`, None where nothing was observed, and `count`, the observations behind them."""
        kept = self._kept
        while kept and kept[0][0] <= now - self._seconds:
            kept.popleft()
        ordered = sorted(value for _, value in kept)
        found = {
            f"p{percent}": round(percentile(ordered, percent), DIGITS) if ordered else None for percent in (50, 95)
        }
        return {**found, "count": len(ordered)}


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Returns the nearest rank of sorted observations, of which there is at least one: the least of them that
    `percent` per cent of them do not exceed."""
    return ordered[-(-percent * len(ordered) // 100) - 1]


class Recent:
    """`tokens` counts from this object's beginning."""

    __slots__ = ("itl", "tokens", "ttft")

    def __init__(self) -> None:
        self.tokens = 0
        self.ttft = Window()
        self.itl = Window()

    def add(self, at: float, tokens: int, first: float | None, gap: float | None) -> None:
        """Adds `tokens` handed out `at` this time, with the seconds that the metrics observed of them."""
        self.tokens += tokens
        if gap is not None:
            self.itl.add(at, gap)
        elif first is not None:
            self.ttft.add(at, first)
