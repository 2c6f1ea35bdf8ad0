"""This module turns a receipt into its stored form and back: numbers replace the lists of names. It knows plain objects
and positions; no tokens and no database.

    wire    {…, "kept": ["m_1", "m_8"], "dropped": ["m_2"], "cut": {"at": "m_8", …}, …}
    stored  {…, "cut": {…}, "positions": {"kept": [[0, 1], [7, 8]], "cut": 7, "counts": {…}, …}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from service.context.partition import SYSTEM_POSITION, Counts, Named, Partition, ranges_of

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
    found: Any = stored.get(POSITIONS)
    try:
        return Partition(
            _ranges(found["kept"]),
            Counts(**{name: _number(value) for name, value in found["counts"].items()}),
            _ranges(found["recalled"]),
            _number(found["summarised_before"]),
            None if found["cut"] is None else _number(found["cut"]),
            _number(found["first"]),
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


def _ranges(value: Any) -> tuple[tuple[int, int], ...]:
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
