"""A remembered file is a small file's parsed content, kept until the file changes. It does not know the format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
_Seen = tuple[int, int, int]
_MOST = 1024


class Remembered(Generic[T]):
    """Keeps `make` of a file's content. It makes the value again if the file is another one, or has another size or
    time, as after every change by this package. The value is shared and must not be mutated. Safe from any thread."""

    def __init__(self, make: Callable[[bytes], T]) -> None:
        self._make = make
        self._known: dict[Path, tuple[_Seen, T]] = {}

    def of(self, path: Path) -> T:
        """Returns the value. Raises FileNotFoundError, and errors of `make`, which are not remembered."""
        stat = path.stat()
        seen = stat.st_ino, stat.st_size, stat.st_mtime_ns
        known = self._known.get(path)
        if known is not None and known[0] == seen:
            return known[1]
        made = self._make(path.read_bytes())  # of this moment or of a later one, which the next look tells
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[path] = seen, made
        return made
