"""Profiles for tests: pieces as the recorder writes them, and a recorder that needs no torch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.engine.protocol.profiling import NamedPart, Span

BASE = 1_790_857_026_000_000_000


def event(name: str, begin: float, end: float, **fields: Any) -> dict[str, Any]:
    shape = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 7, "ts": begin, "dur": end - begin}
    return shape | fields


def write_piece(
    directory: Path,
    events: Sequence[Mapping[str, Any]],
    marks: Sequence[tuple[int, int]] = (),
    number: int = 0,
    base: int = BASE,
) -> Path:
    """`marks` are (phase, nanoseconds behind the base); the phases are named begin, one, two."""
    path = directory / f"piece-{number:04d}.json"
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": base, "traceEvents": events}))
    pairs = b"".join(each.to_bytes(8, "little") for phase, at in marks for each in (phase, base + at))
    path.with_suffix(".marks").write_bytes(json.dumps(["", "native::one", "native::two"]).encode() + b"\n" + pairs)
    return path


def files_of(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


class FakeRecorder:
    """Records its spans. `fails` is raised by the next call; `piece_bytes` is what a piece seems to have."""

    def __init__(self, kind: str = "operators", piece_bytes: int = 1000) -> None:
        self.kind = kind
        self.calls: list[str] = []
        self.span: Span = self._span
        self.parts: tuple[NamedPart, ...] = ()
        self.fails: Exception | None = None
        self.piece_bytes = piece_bytes
        self._events: list[dict[str, Any]] = []

    def begin(self) -> None:
        self._call("begin")
        self._events = []

    def stepped(self) -> None:
        self._call("stepped")

    def end(self, piece: Path | None) -> int:
        self._call("drop" if piece is None else piece.name)
        if piece is not None and piece.parent.is_dir():
            write_piece(piece.parent, self._events, number=int(piece.name[-4:]))
        return self.piece_bytes

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.fails is not None:
            raise self.fails

    @contextmanager
    def _span(self, name: str) -> Iterator[None]:
        began = time.time_ns()
        try:
            yield
        finally:
            self._events.append(event(name, (began - BASE) / 1000, (time.time_ns() - BASE) / 1000))
