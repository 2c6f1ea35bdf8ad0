"""The journal of one model records each change of its aliases, with time and reason, and each deleted version.

It is append-only. A replay of the entries gives the state; nothing else is stored. It does not know the versions.

    {"action": "promote",  "alias": "production", "version": "2",  "previous": "1",  "reason", "actor", "time",
     "overridden": []}
    {"action": "rollback", "alias": "production", "version": "1",  "previous": "2",  ...}
    {"action": "remove",   "alias": "production", "version": null, "previous": "1",  ...}
    {"action": "delete",   "alias": null,         "version": "2",  "previous": null, ...}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from models.errors import Corrupt
from models.repository.disk import durable

Action = Literal["promote", "rollback", "remove", "delete"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One change. `time` is UTC in ISO 8601 with microseconds and a `Z`, so that text order is time order; `overridden`
    says which limits of the gate the version broke when it was promoted all the same; `actor` is the person who asked
    for it, empty in entries from before actors were kept."""

    action: Action
    alias: str | None
    version: str | None
    previous: str | None
    reason: str
    actor: str
    time: str
    overridden: tuple[str, ...] = ()


_KEYS = {field.name for field in fields(Entry)}
_SINCE_THE_GATE = {"overridden"}  # entries written before it lack these


@dataclass(frozen=True, slots=True)
class History:
    """The content of a journal: all entries, oldest first, and the present version of every alias."""

    entries: tuple[Entry, ...]
    aliases: Mapping[str, str]
    deleted: frozenset[str]
    """Versions that were deleted; their numbers are never used again, so that history stays readable."""

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Reads a journal. The torn last line of a crash is no entry. Raises Corrupt for other damage."""
        return cls.of(tuple(_entry(number, line) for number, line in enumerate(content.split(b"\n")[:-1], 1)))

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Self:
        """Makes the history of these entries, oldest first."""
        return cls(tuple(entries), aliases(entries), frozenset(deleted(entries)))


def append(path: Path, entry: Entry) -> None:
    """Durably add `entry` to a journal, whole or not at all; a torn last line is repaired first. The caller holds the
    model's lock; reading needs none."""
    durable.append_line(path, line_of(entry))


def line_of(entry: Entry) -> bytes:
    """Returns an entry as one line of JSON, without its end."""
    return json.dumps(asdict(entry), ensure_ascii=False).encode()


def _entry(number: int, line: bytes) -> Entry:
    try:
        raw = json.loads(line)
    except ValueError:
        raw = None
    if not isinstance(raw, dict) or raw.keys() | _SINCE_THE_GATE != _KEYS:
        raise Corrupt(
            f"Line {number} of the journal is damaged, or a newer release wrote it; run that release, or restore the "
            "line or cut it out"
        )
    return Entry(**{**raw, "overridden": tuple(raw.get("overridden", ()))})


def aliases(entries: Sequence[Entry]) -> dict[str, str]:
    """Alias to version after replaying `entries`."""
    current: dict[str, str] = {}
    for entry in entries:
        if entry.alias is None:
            continue
        if entry.version is None:
            current.pop(entry.alias, None)
        else:
            current[entry.alias] = entry.version
    return current


def undo_stack(entries: Sequence[Entry], alias: str) -> list[str]:
    """Versions that rollbacks of `alias` would return to, the nearest last; the present one is not among them.

    A promotion pushes what was there before and a rollback pops, so that rolling back twice goes two promotions back
    and not to and fro. A removal is a change like a promotion: rolling back after it restores the alias.
    """
    stack: list[str] = []
    for entry in entries:
        if entry.alias != alias:
            continue
        if entry.action == "rollback":
            while stack and stack.pop() != entry.version:
                pass
        elif entry.previous is not None:
            stack.append(entry.previous)
    return stack


def deleted(entries: Sequence[Entry]) -> set[str]:
    """Versions that were deleted."""
    return {entry.version for entry in entries if entry.action == "delete" and entry.version is not None}


def timestamp(moment: datetime) -> str:
    """A zone-aware moment as the journal and the manifests write it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
