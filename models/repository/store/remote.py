"""A remote keeps objects under paths, in a directory or a bucket. It knows no versions.

Everything that many instances share rests on `create`: of two that create one path at once, one alone succeeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

IDENTITY: Final = "dosirak.json"
"""The object that marks a store as one of ours; without it a directory takes no other object."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's path, its size in bytes, when it was written, in seconds since 1970 by the store's own clock, and a
    tag that another content does not have."""

    path: str
    size: int
    modified: float
    tag: str


class Remote(Protocol):
    """Objects by path: names with `/` between. Every write is whole or absent, and on disk when its method returns.
    Every method raises StoreUnavailable where the store does not answer. Safe to use from many threads."""

    url: str

    def get(self, path: str) -> bytes | None:
        """Returns a small object's content, or None."""

    def read(self, path: str, start: int, end: int) -> memoryview:
        """Returns the bytes from `start` to before `end`; fewer where the object is shorter. Raises NotFound."""

    def file(self, path: str) -> Path | None:
        """Returns where an object lies as a file of this machine, or would lie; None where objects are no files."""

    def put(self, path: str, data: bytes) -> None:
        """Writes an object, in place of an earlier one."""

    def create(self, path: str, data: bytes) -> bool:
        """Writes an object that is not there; returns False, and writes nothing, where it is there already."""

    def upload(self, path: str, file: Path) -> None:
        """Writes a file's content, in place of an earlier object."""

    def head(self, path: str) -> StoredObject | None:
        """Returns what is known of an object without reading it, or None."""

    def list(self, prefix: str) -> list[StoredObject]:
        """Returns the objects whose path begins with `prefix`, which ends with `/`."""

    def delete(self, path: str) -> None:
        """Removes an object; nothing happens where there is none."""
