"""The journal of a batch keeps its answers, each durable before it counts: a killed server goes on where it was.

    crc32 in hex, number of the line, 1 or 0 for answered or failed, the output line, LF        one record each

A reader takes whole records and cuts off what comes behind the last one: the torn end that a crash leaves. Of two
records about one line the first counts. One process at a time has a journal open.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from models.repository.disk.durable import make_directory, sync

_CRC_DIGITS: Final = 8


class JournalInUse(Exception):
    """Another process has the journal open."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The output of the line `number`, as one line of JSON with its end."""

    number: int
    succeeded: bool
    output: bytes


@dataclass(frozen=True, slots=True)
class _Place:
    start: int
    size: int
    succeeded: bool


class Journal:
    """`append` and `outputs` block; one thread at a time uses a journal."""

    def __init__(self, path: Path) -> None:
        """Opens the journal, or makes it. Raises JournalInUse."""
        make_directory(path.parent)
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise JournalInUse from None
        self._places: dict[int, _Place] = {}
        self._end = self._read()
        self._file.truncate(self._end)
        os.fsync(self._file.fileno())
        sync(path.parent)

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def count(self, *, succeeded: bool) -> int:
        return sum(place.succeeded is succeeded for place in self._places.values())

    def append(self, entries: Iterable[Entry]) -> None:
        """Keeps the entries, durably when it returns."""
        for entry in entries:
            head = b"%d %d " % (entry.number, entry.succeeded)
            self._file.write(b"%08x %s%s" % (zlib.crc32(head + entry.output), head, entry.output))
            start = self._end + _CRC_DIGITS + 1 + len(head)
            self._places.setdefault(entry.number, _Place(start, len(entry.output), entry.succeeded))
            self._end = start + len(entry.output)
        self._file.flush()
        os.fsync(self._file.fileno())

    def outputs(self, *, succeeded: bool) -> Iterator[tuple[int, bytes]]:
        """Yields number and output of the lines that succeeded, or of those that did not, in their order."""
        for number, place in sorted(self._places.items()):
            if place.succeeded is succeeded:
                yield number, os.pread(self._file.fileno(), place.size, place.start)

    def close(self) -> None:
        self._file.close()

    def _read(self) -> int:
        """Takes in the whole records. Returns where they end."""
        self._file.seek(0)
        end = 0
        for record in self._file:
            place = _place(record, end)
            if place is None:
                break
            self._places.setdefault(place[0], place[1])
            end += len(record)
        return end


def _place(record: bytes, at: int) -> tuple[int, _Place] | None:
    """Returns the number and the place of a record's output; None for a record that is not whole."""
    crc, _, rest = record.partition(b" ")
    if not record.endswith(b"\n") or len(crc) != _CRC_DIGITS or crc != b"%08x" % zlib.crc32(rest):
        return None
    number, succeeded, output = rest.split(b" ", 2)
    return int(number), _Place(at + len(record) - len(output), len(output), succeeded == b"1")
