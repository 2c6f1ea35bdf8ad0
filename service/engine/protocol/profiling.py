"""Profiling names the parts of an engine's step, and says what records them. It knows no torch, and only engine
processes use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

Span = Callable[[str], AbstractContextManager[object]]
"""Names the part of a step that runs inside it."""


class NamedPart(NamedTuple):
    """A method of an object whose calls a profile names."""

    owner: object
    method: str
    name: str


class Recorder(Protocol):
    """Records what the engine's thread computes. That thread alone calls it."""

    span: Span

    @property
    def parts(self) -> Sequence[NamedPart]:
        """The parts of a step that are the runner's."""
        ...

    def begin(self) -> None:
        """Begins to record."""
        ...

    def stepped(self) -> None:
        """Is called after each step."""
        ...

    def end(self, piece: Path | None) -> int:
        """Stops, and writes what was recorded since `begin` to files whose names begin with `piece`; drops it for None.
        Returns the bytes written. Raises OSError."""
        ...
