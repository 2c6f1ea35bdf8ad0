"""A chain of audit rows: each row carries the hash of the row before, and one of all that the row itself says. So a row
that was changed, removed, added or moved does not fit any more. This module knows no database.

Whoever can write the database can make a whole chain anew. What shows that is an anchor: a row's number and hash, which
lie somewhere else, as in the server's log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

import msgspec

Outcome = Literal["begun", "done", "refused", "failed"]
CUT: Final = "audit.cut"
"""The action of a row that says which old rows an operator has cut: its subject is the last of them, its detail has
their last hash."""
LONGEST: Final = 200
"""Characters that a row keeps of a text."""
_MOST_PROBLEMS: Final = 20


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody did. `owner` is the key's id, `name` the key's, `at` microseconds since 1970. `detail` is JSON of
    fields that hold no secret and no text of a chat."""

    at: int
    action: str
    outcome: Outcome
    subject: str = ""
    owner: str = ""
    name: str = ""
    peer: str = ""
    instance: str = ""
    request_id: str = ""
    detail: str = "{}"


class Row(NamedTuple):
    """An entry in its place. `previous` is the hash of the row before; "" for the first."""

    number: int
    entry: Entry
    previous: str
    hash: str

    def shown(self) -> dict[str, Any]:
        """Returns the row as clients and exports have it."""
        entry = self.entry
        texts = {name: getattr(entry, name) for name in Entry.__struct_fields__ if name not in ("at", "detail")}
        at = datetime.fromtimestamp(entry.at / 1e6, UTC).isoformat(timespec="microseconds")
        detail = msgspec.Raw(entry.detail.encode())
        return {
            "number": self.number,
            "at": at,
            **texts,
            "detail": detail,
            "previous": self.previous,
            "hash": self.hash,
        }


class _CutDetail(msgspec.Struct):
    hash: str


class Head(NamedTuple):
    """The last row, as its writer noted it beside the rows."""

    number: int
    hash: str


def entry(action: str, outcome: Outcome, detail: Mapping[str, object] | None = None, **texts: str) -> Entry:
    """Returns an entry of this moment, with texts that any database takes."""
    kept = {name: _clean(text) for name, text in texts.items()}
    shown = msgspec.json.encode(detail or {}).decode()
    return Entry(at=int(datetime.now(UTC).timestamp() * 1e6), action=action, outcome=outcome, detail=shown, **kept)


def after(head: Head, entries: Iterable[Entry]) -> Iterator[Row]:
    """Yields the rows that go on from the last one."""
    for each in entries:
        number = head.number + 1
        row = Row(number, each, head.hash, hash_of(number, each, head.hash))
        yield row
        head = Head(number, row.hash)


def hash_of(number: int, entry: Entry, previous: str) -> str:
    """Returns the SHA-256 of the JSON list [number, previous, …] of the entry's fields, in hexadecimal."""
    fields = (getattr(entry, name) for name in Entry.__struct_fields__)
    return sha256(msgspec.json.encode([number, previous, *fields])).hexdigest()


class Walk:
    """Reads a chain from its first row to its last. `problems` says what does not fit, `cut` which rows are cut and by
    whom; `rows` is how many there are, `compared` how many of them an anchor names."""

    def __init__(self, anchors: Mapping[int, str] | None = None) -> None:
        """`anchors` are hashes by row, as the log or another copy has them."""
        self.rows = self.compared = 0
        self.cut = ""
        self.problems: list[str] = []
        self.last: Row | None = None
        self._anchors = dict(anchors or {})
        self._begin: Head | None = None
        self._cuts: dict[str, Row] = {}
        self._is_whole = True

    def take(self, row: Row) -> None:
        is_whole = row.hash == hash_of(row.number, row.entry, row.previous)
        if not is_whole:
            self._add(f"Row {row.number} was changed or moved: it does not fit its hash")
        self._link(row, is_whole)
        self.compared += row.number in self._anchors
        anchor = self._anchors.pop(row.number, row.hash)
        if anchor != row.hash:
            self._add(f"Row {row.number} is not the one that the anchor names: it or a row before was written anew")
        if row.entry.action == CUT:
            self._cuts[row.entry.subject] = row
        self.rows, self.last, self._is_whole = self.rows + 1, row, is_whole

    def end(self, head: Head) -> None:
        """Checks both ends: the first row is the first, or follows a cut that a row tells; the last is the `head`."""
        first, last = self._begin or Head(0, ""), Head(self.last.number, self.last.hash) if self.last else Head(0, "")
        cut = self._cuts.get(str(first.number))
        if cut is not None:
            self._tell_cut(first, cut)
        if (_cut_hash(cut) if cut else "") != first.hash:
            begin = f"{_rows(1, first.number)} missing, and no row says that they were cut"
            self._add(begin if first.number else "Row 1 was changed with its hash: it follows another one")
        for number in sorted(self._anchors):
            if number > max(last.number, head.number):
                self._add(f"{_rows(last.number + 1, number)} missing at the end: an anchor names row {number}")
        if head.number > last.number:
            self._add(f"{_rows(last.number + 1, head.number)} missing at the end")
        elif head.number < last.number:
            self._add(f"{_rows(head.number + 1, last.number, 'was', 'were')} added past the last one that was written")
        elif head.hash != last.hash:
            self._add(f"Row {last.number} is not the last one that was written: it was changed with its hash")

    def _tell_cut(self, first: Head, cut: Row) -> None:
        """Says who cut. Whoever can write the database can write such a row too, so people must read it."""
        at = datetime.fromtimestamp(cut.entry.at / 1e6, UTC).isoformat(timespec="seconds")
        whose = cut.entry.owner or cut.entry.instance or "nobody"
        self.cut = f"{_rows(1, first.number)} cut, says row {cut.number}, by {whose} at {at}"
        if self._anchors.get(first.number, first.hash) != first.hash:
            self._add(
                f"Row {cut.number} cut another row {first.number} than the anchor names: the rows were written anew"
            )

    def _link(self, row: Row, is_whole: bool) -> None:
        last = self.last
        if last is None:
            self._begin = Head(row.number - 1, row.previous)
        elif row.number != last.number + 1:
            self._add(f"{_rows(last.number + 1, row.number - 1)} missing")
        elif row.previous != last.hash and is_whole and self._is_whole:
            self._add(f"Row {last.number} was changed with its hash: row {row.number} follows another one")

    def _add(self, problem: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)


def _cut_hash(cut: Row) -> str:
    """Returns the hash of the last row that was cut; "?" where the row does not say it."""
    try:
        return msgspec.json.decode(cut.entry.detail, type=_CutDetail).hash
    except msgspec.MsgspecError:
        return "?"


def _rows(first: int, last: int, one: str = "is", many: str = "are") -> str:
    return f"Row {first} {one}" if first == last else f"Rows {first} to {last} {many}"


def _clean(text: str) -> str:
    return text[:LONGEST].encode("utf-8", "replace").decode().replace("\x00", "")
