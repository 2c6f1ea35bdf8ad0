"""Contents are the bytes of files, each in one file of a directory: durable when it has its name, and never changed.

    draft: written, bounded ──finish: fsync, rename, fsync──> the content of an id ──remove──> gone

The module knows no owners and no database. Its calls block: the event loop asks it in a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from models.repository.disk.durable import TEMPORARY, make_directory, sync

STRAY_SECONDS: Final = 3600.0
"""The age at which a content without a row is nobody's: its upload has ended, one way or the other."""


class Draft:
    """A content that is being written. It ends with `finish` or `discard`."""

    def __init__(self, directory: Path) -> None:
        self.size = 0
        self._digest = hashlib.sha256()
        self._directory = directory
        self._path = _aside(directory)
        self._file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        """Returns that of what was written."""
        return self._digest.hexdigest()

    def finish(self, id: str) -> None:
        """Makes what was written the content of `id`, durably; it takes the place of an earlier one."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        _name(self._path, self._directory / id)

    def discard(self) -> None:
        """Removes what was written; after `finish` it does nothing."""
        with contextlib.suppress(OSError):  # a full disk, which takes no more of it
            self._file.close()
        self._path.unlink(missing_ok=True)


class Contents:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def draft(self) -> Draft:
        make_directory(self._directory)
        return Draft(self._directory)

    def path(self, id: str) -> Path:
        return self._directory / id

    def has(self, id: str) -> bool:
        return self.path(id).is_file()

    def ids(self) -> list[str]:
        """Returns the ids of all contents of this directory."""
        with contextlib.suppress(FileNotFoundError):
            return [each.name for each in os.scandir(self._directory) if not each.name.endswith(TEMPORARY)]
        return []

    def write(self, id: str, lines: Iterable[bytes]) -> tuple[int, str]:
        """Makes `lines` the content of `id`, durably. Returns its size and sha256."""
        draft = self.draft()
        try:
            for line in lines:
                draft.write(line)
            draft.finish(id)
        finally:
            draft.discard()
        return draft.size, draft.sha256

    def take(self, id: str, write: Callable[[Path], None]) -> None:
        """Makes the content of `id` of the file that `write` makes, durably."""
        make_directory(self._directory)
        aside = _aside(self._directory)
        try:
            write(aside)
            _name(aside, self.path(id))
        finally:
            aside.unlink(missing_ok=True)

    def remove(self, id: str) -> None:
        self.path(id).unlink(missing_ok=True)

    def sweep(self, known: Collection[str]) -> None:
        """Removes drafts that nobody writes any more, and contents that are none of `known`."""
        with contextlib.suppress(FileNotFoundError):
            for each in list(os.scandir(self._directory)):
                with contextlib.suppress(FileNotFoundError):
                    if each.name not in known and time.time() - each.stat().st_mtime > STRAY_SECONDS:
                        Path(each.path).unlink()


def _aside(directory: Path) -> Path:
    """Returns where a content lies until it has its name."""
    return directory / f".{uuid.uuid4().hex}{TEMPORARY}"


def _name(aside: Path, path: Path) -> None:
    aside.replace(path)
    sync(path.parent)
