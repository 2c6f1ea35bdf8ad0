"""Blobs store files of equal content once on disk for many versions: hard links, by sha256. They know no versions.

    data_dir/blobs/<sha256>   another name of a file in a version; the only name once that version is gone

Sharing only saves space. If a file system has no hard links, or no more of them, a version keeps its own copy.
"""

import os
from contextlib import suppress
from pathlib import Path

from models.manifest import File
from models.repository.disk import staging

_BESIDE = ".shared"  # in the staged directory, so that what a crash leaves goes with it


class Blobs:
    """All shared files under one directory. Safe to use from many threads and processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def share(self, path: Path, file: File) -> None:
        """Make the sealed `path`, whose content is `file`, one file with the blob of its sha256.

        The blob is read again first, because a changed byte there must not reach a new version.
        """
        blob = self._directory / file.sha256
        with suppress(OSError):
            if self._first(path, blob) or path.samefile(blob):
                return
            if blob.stat().st_size == file.size and staging.sha256_of(blob) == file.sha256:
                _put(blob, path, path.with_name(_BESIDE))
            else:
                _put(path, blob, path.with_name(_BESIDE))

    def prune(self) -> int:
        """Remove blobs that no version holds any more; returns the freed bytes."""
        freed = 0
        for blob in sorted(self._directory.iterdir()):
            with suppress(FileNotFoundError):  # another process prunes as well
                about = blob.lstat()
                if about.st_nlink == 1:
                    blob.unlink()
                    freed += about.st_size
        return freed

    def _first(self, path: Path, blob: Path) -> bool:
        """Whether no file of this content was shared before; then `path` now is."""
        try:
            os.link(path, blob)
        except FileExistsError:
            return False
        return True


def _put(content: Path, name: Path, beside: Path) -> None:
    """Give the file `content` also the name `name`, in place of what had it; atomic for readers of `name`."""
    os.link(content, beside)
    try:
        beside.replace(name)
    except OSError:
        beside.unlink()  # no version may hold it
        raise
