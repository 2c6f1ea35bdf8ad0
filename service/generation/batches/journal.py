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
        self._places: dict[int, _Place] = {}
        self._counts = {True: 0, False: 0}
        try:
            self._lock()
            self._end = self._read()
            self._file.truncate(self._end)
            os.fsync(self._file.fileno())
            sync(path.parent)
        except BaseException:
            self._file.close()
            raise

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def count(self, *, succeeded: bool) -> int:
        """Returns how many lines have succeeded, or failed. Any thread may call it."""
        return self._counts[succeeded]

    @property
    def size(self) -> int:
        """Returns the bytes of the whole records."""
        return self._end

    def append(self, entries: Iterable[Entry]) -> None:
        """Keeps the entries, durably when it returns; none of them counts before. After a failure the journal takes no
        more: open it anew."""
        places, end = list[tuple[int, _Place]](), self._end
        for entry in entries:
            head = b"%d %d " % (entry.number, entry.succeeded)
            self._file.write(b"%08x %s%s" % (zlib.crc32(head + entry.output), head, entry.output))
            start = end + _CRC_DIGITS + 1 + len(head)
            places.append((entry.number, _Place(start, len(entry.output), entry.succeeded)))
            end = start + len(entry.output)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._end = end
        for number, place in places:
            self._take(number, place)

    def outputs(self, *, succeeded: bool) -> Iterator[tuple[int, bytes]]:
        """Yields number and output of the lines that succeeded, or of those that did not, in their order."""
        for number, place in sorted(self._places.items()):
            if place.succeeded is succeeded:
                yield number, os.pread(self._file.fileno(), place.size, place.start)

    def close(self) -> None:
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalInUse from None

    def _read(self) -> int:
        """Takes in the whole records. Returns where they end."""
        self._file.seek(0)
        end = 0
        for record in self._file:
            place = _place(record, end)
            if place is None:
                break
            self._take(*place)
            end += len(record)
        return end

    def _take(self, number: int, place: _Place) -> None:
        if number not in self._places:
            self._places[number] = place
            self._counts[place.succeeded] += 1


def _place(record: bytes, at: int) -> tuple[int, _Place] | None:
    """Returns the number and the place of a record's output; None for a record that is not whole."""
    crc, _, rest = record.partition(b" ")
    if not record.endswith(b"\n") or len(crc) != _CRC_DIGITS or crc != b"%08x" % zlib.crc32(rest):
        return None
    number, succeeded, output = rest.split(b" ", 2)
    return int(number), _Place(at + len(record) - len(output), len(output), succeeded == b"1")
