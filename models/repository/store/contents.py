"""Shared contents are bytes of files that clients upload and batches make, as objects of a store beside its versions.
This module knows no owner: whose a file is and how long it lives, the database says.

    files/<id>.<sha256>    the content of the file `id`; its name comes with the last byte

Two instances may make different contents for one id, as after a batch that was finished twice. The database names one.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from models.repository.store.fetching import fetch
from models.repository.store.remote import Remote

_PREFIX: Final = "files/"
PRIVATE: Final = 0o600


class SharedContents:
    """Safe to use from many threads. Methods block, and raise StoreUnavailable."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def put(self, id: str, sha256: str, file: Path) -> None:
        """Stores a content, whole or not at all."""
        self._remote.upload(_path(id, sha256), file)

    def bring(self, id: str, sha256: str, size: int, path: Path) -> None:
        """Writes a content to `path`, on disk and checked. Raises NotFound, and Corrupt where it is not what was stored
        after all tries; `path` is not there then."""
        fetch(self._remote, sha256, size, path, source=_path(id, sha256), mode=PRIVATE)

    def remove(self, id: str, sha256: str) -> None:
        self._remote.delete(_path(id, sha256))

    def sweep(self, known: Collection[tuple[str, str | None]], stray_seconds: float) -> None:
        """Removes the contents that are of none of the files `known`, by id and sha256, and as old as that."""
        for each in self._remote.list(_PREFIX):
            id, _, sha256 = each.path.removeprefix(_PREFIX).partition(".")
            if (id, sha256) not in known and time.time() - each.modified > stray_seconds:
                self._remote.delete(each.path)


def _path(id: str, sha256: str) -> str:
    return f"{_PREFIX}{id}.{sha256}"
