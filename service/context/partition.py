"""A partition says, in numbers, which messages of a chat were sent; the lists of names that a client reads come from
it.

    positions      0   1   2   3   4   5   6   7   8
                   kept    dropped         kept ···      kept: (0, 2), (6, 9)    cut: 6

A stored receipt holds only these numbers, so that it does not grow with its chat. The module knows no tokens and no
store.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

NEAREST: Final = 512
"""The most messages that the lists of one receipt name: the ones nearest to the cut."""
SYSTEM_POSITION: Final = -1
"""The position of a session's system prompt."""
Range = tuple[int, int]
Named = tuple[int, str]
"""A message's position and its name."""


@dataclass(frozen=True, slots=True)
class Counts:
    kept: int = 0
    dropped: int = 0
    summarised: int = 0

    def to_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Lists:
    """Names, oldest first. The first three lists together hold at most NEAREST names."""

    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    summarised: tuple[str, ...] = ()
    recalled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """Ranges are half-open, ascending and apart. A message in none of `kept` was left out; it is in the summary where
    its position is below `summarised_before`. `recalled` is a part of `kept`. `cut` is the position of the first of the
    newest turns, None where nothing was cut. `first` is the chat's first position."""

    kept: tuple[Range, ...]
    counts: Counts
    recalled: tuple[Range, ...] = ()
    summarised_before: int = 0
    cut: int | None = None
    first: int = 0

    def lists(self, named: Sequence[Named]) -> Lists:
        """Returns the lists of names. `named`: the chat's messages in order; of a long chat at least the NEAREST before
        the cut and behind it."""
        near = nearest([each for each in named if each[0] >= self.first], self.cut)
        left_out = [each for each in near if not _holds(self.kept, each[0])]
        return Lists(
            tuple(name for at, name in near if _holds(self.kept, at)),
            tuple(name for at, name in left_out if at >= self.summarised_before),
            tuple(name for at, name in left_out if at < self.summarised_before),
            tuple(name for at, name in near if _holds(self.recalled, at)),
        )

    def moved(self, place: Callable[[int], int]) -> Partition:
        """Returns the partition of the same messages at other positions, in the same order: `place` returns how many
        messages stand before the given position."""

        def all_of(ranges: Iterable[Range]) -> tuple[Range, ...]:
            return joined((place(first), place(stop)) for first, stop in ranges)

        cut = None if self.cut is None else place(self.cut)
        before, first = place(self.summarised_before), place(self.first)
        return Partition(all_of(self.kept), self.counts, all_of(self.recalled), before, cut, first)


def nearest(named: Sequence[Named], cut: int | None) -> Sequence[Named]:
    """Returns the NEAREST messages to the cut, half of them on each side where the chat has that many; without a cut
    the newest."""
    middle = len(named) if cut is None else bisect_left(named, cut, key=lambda each: each[0])
    first = max(0, min(middle - NEAREST // 2, len(named) - NEAREST))
    return named[first : first + NEAREST]


def ranges_of(positions: Iterable[int]) -> tuple[Range, ...]:
    """Returns the ranges of `positions`, which ascend."""
    return joined((at, at + 1) for at in positions)


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Returns ascending ranges without empty ones; ranges that touch become one."""
    found: list[Range] = []
    for first, stop in ranges:
        if first >= stop:
            continue
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((first, stop))
    return tuple(found)


def _holds(ranges: Sequence[Range], position: int) -> bool:
    index = bisect_right(ranges, position, key=lambda each: each[0]) - 1
    return index >= 0 and position < ranges[index][1]
