"""The cache says which weights of the store lie in the data directory, and makes room for more: what was used longest
ago goes first, and never what has a lease.

A version's directory stays when its weights go, with everything else of it. The directory's time says when the version
was last used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from models.errors import Conflict, RepositoryError
from models.manifest import File, Manifest
from models.repository.disk import leases
from models.repository.disk.blobs import Blobs
from models.repository.disk.layout import Layout
from models.repository.disk.listing import matching

_WEIGHTS = ".safetensors"


def weights_of(manifest: Manifest) -> tuple[File, ...]:
    """Returns the files that are fetched when the version is used; all others come with its manifest."""
    return tuple(file for file in manifest.files if file.path.endswith(_WEIGHTS))


@dataclass(frozen=True, slots=True)
class Cache:
    """The weights in one data directory. `limit` is in bytes; 0 is none. `may_go` says whether the store has all of a
    version's weights."""

    layout: Layout
    limit: int
    may_go: Callable[[Manifest], bool]

    def size(self) -> int:
        """Returns the bytes of all weights; a file that several versions share counts once."""
        sizes: dict[int, int] = {}
        for path in matching(self.layout.models, f"*/*/*{_WEIGHTS}"):
            with suppress(FileNotFoundError):  # another process makes room as well
                about = path.stat()
                sizes[about.st_ino] = about.st_size
        return sum(sizes.values())

    def use(self, directory: Path) -> None:
        """Notes that a version is used now."""
        with suppress(FileNotFoundError):
            os.utime(directory)

    def make_room(self, needed: int, versions: Iterable[Manifest]) -> None:
        """Removes weights until so many bytes more are within the limit. Raises Conflict, with the numbers, where the
        weights that may not go leave too little."""
        if not self.limit:
            return
        size = self.size()
        for manifest in sorted(versions, key=self._used):
            if size + needed <= self.limit:
                return
            if self._evict(manifest):
                size = self.size()
        if size + needed > self.limit:
            raise Conflict(
                f"the cache has no room: {needed} bytes are needed, {size} of {self.limit} are weights in use; unload "
                "a version, or raise DOSIRAK_STORE_CACHE_BYTES"
            )

    def _used(self, manifest: Manifest) -> float:
        try:
            return self._directory(manifest).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _evict(self, manifest: Manifest) -> bool:
        """Removes a version's weights, unless it is in use or the store cannot give them again."""
        directory = self._directory(manifest)
        present = [directory / file.path for file in weights_of(manifest) if (directory / file.path).exists()]
        try:
            if not present or not self.may_go(manifest):
                return False
            with leases.unused(directory):
                for path in present:
                    path.unlink()
        except (RepositoryError, FileNotFoundError):
            return False
        Blobs(self.layout.blobs).prune()
        return True

    def _directory(self, manifest: Manifest) -> Path:
        return self.layout.models / manifest.name / manifest.version
