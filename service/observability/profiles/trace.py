"""A trace is the pieces of one profile as one Chrome trace, and the operators summed from its events. No torch here.

    piece-0000.json, piece-0000.marks ─▶ operators, and events for trace.json.gz
    piece-0001.json, …                ─▶

One piece is in memory at a time. An event's own seconds are its duration less that of the events that lie directly
in it on the same thread. Kernels of a GPU run beside the threads: their own seconds are their durations.
"""

from __future__ import annotations

import gzip
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

NESTED: Final = frozenset({"cpu_op", "user_annotation"})
FLAT: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
MEMORY: Final = "[memory]"
MICRO: Final = 1e-6
FRESH_EVENTS: Final = b', "traceEvents": ['
LEVEL: Final = 3
"""gzip's: a tenth of the bytes, in a third of the time of the default level."""


class Operator(msgspec.Struct, frozen=True):
    """`self_bytes` is the memory that it allocated itself; None where the profile did not look."""

    name: str
    calls: int
    self_seconds: float
    self_bytes: int | None = None


class Measured(msgspec.Struct, frozen=True):
    """The operators of a profile, and its steps."""

    operators: Sequence[Operator]
    steps: int

    def per_step(self) -> dict[str, tuple[float, float]]:
        """Returns seconds and calls a step, by name."""
        steps = max(1, self.steps)
        return {each.name: (each.self_seconds / steps, each.calls / steps) for each in self.operators}


class Difference(msgspec.Struct, frozen=True):
    """One operator of two profiles; 0 where it is not in one of them. The difference is b less a."""

    name: str
    a_seconds_per_step: float
    b_seconds_per_step: float
    difference_seconds_per_step: float
    a_calls_per_step: float
    b_calls_per_step: float


def differences(a: Measured, b: Measured) -> list[Difference]:
    """Returns every operator of the two, the largest difference first, slower or faster."""
    first, second = a.per_step(), b.per_step()
    found = []
    for name in sorted(first.keys() | second.keys()):
        (seconds, calls), (other_seconds, other_calls) = first.get(name, (0.0, 0.0)), second.get(name, (0.0, 0.0))
        found.append(Difference(name, seconds, other_seconds, other_seconds - seconds, calls, other_calls))
    return sorted(found, key=lambda each: -abs(each.difference_seconds_per_step))


class Arguments(msgspec.Struct):
    bytes: int = msgspec.field(name="Bytes", default=0)


class Event(msgspec.Struct):
    """As much of an event as the sums need; times in microseconds behind the trace's base."""

    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Arguments = msgspec.field(default_factory=Arguments)

    @property
    def end(self) -> float:
        return self.ts + self.dur


class Piece(msgspec.Struct):
    """One file of the recorder."""

    events: list[msgspec.Raw] = msgspec.field(name="traceEvents")
    base: int = msgspec.field(name="baseTimeNanoseconds", default=0)
    devices: msgspec.Raw = msgspec.field(name="deviceProperties", default_factory=lambda: msgspec.Raw(b"[]"))


_piece = msgspec.json.Decoder(Piece)
_event = msgspec.json.Decoder(Event)


class Sums:
    """Adds up calls, seconds and bytes by name."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._micro: dict[str, float] = {}
        self._bytes: dict[str, int] = {}
        self._saw_memory = False

    def add(self, events: Iterable[Event]) -> None:
        """Adds the events of one piece; no event may lie in one of another piece."""
        counted = [each for each in events if each.cat in NESTED or each.cat in FLAT or each.name == MEMORY]
        open_: list[Event] = []
        for event in sorted(counted, key=lambda each: (str(each.tid), each.ts, -each.dur)):
            if event.cat in FLAT:
                self._count(event)
                continue
            while open_ and (open_[-1].tid != event.tid or open_[-1].end <= event.ts):
                open_.pop()
            around = open_[-1] if open_ else None
            if event.name == MEMORY:
                self._allocate(event, around)
                continue
            self._count(event)
            if around is not None:
                self._micro[around.name] -= min(event.end, around.end) - event.ts
            open_.append(event)

    def _count(self, event: Event) -> None:
        self._calls[event.name] = self._calls.get(event.name, 0) + 1
        self._micro[event.name] = self._micro.get(event.name, 0.0) + event.dur

    def _allocate(self, event: Event, around: Event | None) -> None:
        self._saw_memory = True
        if around is not None and event.args.bytes > 0:
            self._bytes[around.name] = self._bytes.get(around.name, 0) + event.args.bytes

    def operators(self) -> list[Operator]:
        """Returns the operators, the most seconds first."""
        found = [
            Operator(name, calls, max(0.0, self._micro[name] * MICRO), self._bytes_of(name))
            for name, calls in self._calls.items()
        ]
        return sorted(found, key=lambda each: (-each.self_seconds, each.name))

    def _bytes_of(self, name: str) -> int | None:
        return self._bytes.get(name, 0) if self._saw_memory else None


def join(directory: Path, to: Path) -> list[Operator]:
    """Writes the trace of a directory's pieces, compressed, and returns its operators. Raises OSError, and ValueError
    for pieces that are not whole."""
    sums, base = Sums(), None
    with gzip.open(to, "wb", LEVEL) as out:
        for path in sorted(directory.glob("piece-*.json")):
            piece = _piece.decode(path.read_bytes())
            if base is None:
                base = piece.base
                out.write(_head(piece))
            elif base != piece.base:
                raise ValueError("the trace's clock began anew while it was recorded")
            else:
                out.write(b",")
            events = [_event.decode(raw) for raw in piece.events]
            phases = list(_phases(path.with_suffix(".marks"), events, base))
            sums.add([*events, *phases])
            out.write(b",\n".join([*map(bytes, piece.events), *map(msgspec.json.encode, phases)]))
        if base is None:
            raise ValueError("nothing was recorded")
        out.write(b"]}")
    return sums.operators()


def _head(piece: Piece) -> bytes:
    fields = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": piece.base}
    devices = b', "deviceProperties": ' + bytes(piece.devices)
    return msgspec.json.encode(fields)[:-1] + devices + FRESH_EVENTS


def _phases(path: Path, events: Sequence[Event], base: int) -> Iterator[Event]:
    """Yields the native decoder's phases as operators of the recorded thread."""
    thread = next((each for each in events if each.cat in NESTED), None)
    head, _, rest = path.read_bytes().partition(b"\n")
    names, marks = msgspec.json.decode(head, type=list[str]), array("q", rest)
    if thread is None:
        return
    began = 0.0
    for at in range(0, len(marks), 2):
        name, ended = names[marks[at]], (marks[at + 1] - base) / 1000
        if name:
            yield Event("X", name, "cpu_op", thread.pid, thread.tid, began, max(0.0, ended - began))
        began = ended
