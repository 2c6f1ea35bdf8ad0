"""A partition says, in numbers, which messages of a chat were sent; the lists of names that a client reads come from
it.

    positions      0   1   2   3   4   5   6   7   8
                   kept    dropped         kept ···      kept: (0, 2), (6, 9)    cut: 6

A stored receipt holds only these numbers, so that it does not grow with its chat. The module knows no tokens and no
store.

A receipt's stored form has its partition in place of the lists of names:

    wire    {…, "kept": ["m_1", "m_8"], "dropped": ["m_2"], "cut": {"at": "m_8", …}, …}
    stored  {…, "cut": {…}, "positions": {"kept": [[0, 1], [7, 8]], "cut": 7, "counts": {…}, …}}
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
    merged: list[Range] = []
    for first, stop in ranges:
        if first >= stop:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((first, stop))
    return tuple(merged)


def _holds(ranges: Sequence[Range], position: int) -> bool:
    index = bisect_right(ranges, position, key=lambda each: each[0]) - 1
    return index >= 0 and position < ranges[index][1]


Json = Mapping[str, object]
SYSTEM: Final = "system"
"""The name of a session's system prompt in receipts."""
POSITIONS: Final = "positions"
_LISTS: Final = ("kept", "dropped", "summarised", "recalled")


def stored_form(wire: Json, partition: Partition) -> dict[str, object]:
    """Returns `wire` with `partition` in place of its names."""
    stored = {key: value for key, value in wire.items() if key not in (*_LISTS, "counts")}
    if isinstance(cut := stored.get("cut"), Mapping):
        stored["cut"] = {key: value for key, value in cut.items() if key != "at"}
    return {**stored, POSITIONS: _numbers(partition)}


def wire_form(stored: Json, named: Sequence[Named]) -> dict[str, object]:
    """Returns the wire's form. `named` is what `Partition.lists` wants. An object that is no stored form comes back
    unchanged. Counts and lists stand in the same order as in a new receipt."""
    partition = partition_of(stored)
    if partition is None:
        return dict(stored)
    lists, wire = partition.lists(named), dict[str, object]()
    for key, value in stored.items():
        if key == "dropped_tokens":
            wire |= {name: list(getattr(lists, name)) for name in _LISTS[:3]}
            wire["counts"] = partition.counts.to_dict()
        if key != POSITIONS:
            wire[key] = value
    if isinstance(cut := stored.get("cut"), Mapping):
        at = next((name for position, name in named if position == partition.cut), None)
        wire["cut"] = {"at": at, **cut}
    if lists.recalled:
        wire["recalled"] = list(lists.recalled)
    return wire


def renumbered(stored: Json, place: Callable[[int], int]) -> Json:
    """Returns the same receipt with its messages at other positions: see `Partition.moved`."""
    partition = partition_of(stored)
    return stored if partition is None else {**stored, POSITIONS: _numbers(partition.moved(place))}


def numbered(wire: Json, positions: Mapping[str, int]) -> Json:
    """Returns the store's form of a receipt that names all its messages: revisions up to 0002 of the database stored
    that form. Names without a position are of messages that were deleted since."""
    if not all(isinstance(wire.get(name), list) for name in _LISTS[:3]):
        return wire
    known = {SYSTEM: SYSTEM_POSITION, **positions}

    def places(name: str) -> list[int]:
        names: Any = wire.get(name) or []
        return sorted(known[each] for each in names if isinstance(each, str) and each in known)

    counts: Any = [len(wire[name]) for name in _LISTS[:3]]  # type: ignore[arg-type]
    cut = wire.get("cut")
    partition = Partition(
        ranges_of(places("kept")),
        Counts(*counts),
        ranges_of(places("recalled")),
        max((at + 1 for at in places("summarised")), default=0),
        known.get(str(cut.get("at"))) if isinstance(cut, Mapping) else None,
        SYSTEM_POSITION if any(SYSTEM in wire[name] for name in _LISTS[:3]) else 0,  # type: ignore[operator]
    )
    return stored_form(wire, partition)


def partition_of(stored: Json) -> Partition | None:
    """Returns the partition, or None where there is no valid one."""
    partition: Any = stored.get(POSITIONS)
    try:
        return Partition(
            _read_ranges(partition["kept"]),
            Counts(**{name: _number(value) for name, value in partition["counts"].items()}),
            _read_ranges(partition["recalled"]),
            _number(partition["summarised_before"]),
            None if partition["cut"] is None else _number(partition["cut"]),
            _number(partition["first"]),
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


def _read_ranges(value: Any) -> tuple[tuple[int, int], ...]:
    return tuple((_number(first), _number(stop)) for first, stop in value)


def _number(value: object) -> int:
    if type(value) is not int:
        raise ValueError(value)
    return value


def _numbers(partition: Partition) -> dict[str, object]:
    return {
        "kept": [list(each) for each in partition.kept],
        "recalled": [list(each) for each in partition.recalled],
        "summarised_before": partition.summarised_before,
        "cut": partition.cut,
        "first": partition.first,
        "counts": partition.counts.to_dict(),
    }
