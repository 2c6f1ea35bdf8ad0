"""The downloads are the directories of a data directory that checkpoints of a hub arrive in. They know no network.

    data_dir/downloads/<org>--<name>--<commit>.part/   on its way; `dosirak model gc` removes it
    data_dir/downloads/<org>--<name>--<commit>/        whole; removed when its version is published

They lie in the data directory, whose free space was looked at, so that a published version is not on disk twice.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from models.errors import Conflict
from models.imports.hub.source import HubSource
from models.repository.disk import durable
from models.repository.disk.listing import matching, size_of

DIRECTORY: Final = "downloads"
PART: Final = ".part"


def place(data_dir: Path, source: HubSource, commit: str) -> Path:
    """Returns the directory of a whole download; with PART behind the name it is on its way."""
    return data_dir / DIRECTORY / f"{source.slug}--{commit}"


def discard(data_dir: Path, source: HubSource, commit: str) -> None:
    """Removes what there is of a download. A process that is at it fetches it again."""
    for path in (place(data_dir, source, commit), place(data_dir, source, commit + PART)):
        shutil.rmtree(path, ignore_errors=True)


def clear(data_dir: Path) -> int:
    """Removes all downloads that no process is at. Returns the bytes given back."""
    freed = 0
    directory = data_dir / DIRECTORY
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        try:
            with alone(path):
                freed += sum(map(size_of, matching(path, "**")))
                shutil.rmtree(path, ignore_errors=True)
        except Conflict:
            continue
    return freed


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Locks a download; the lock ends with its holder. Raises Conflict where another process has it."""
    holder = os.open(directory, os.O_RDONLY)
    try:
        if not durable.try_lock(holder):
            raise Conflict("Another process fetches the same checkpoint: wait for it, then start again")
        yield
    finally:
        os.close(holder)


class Refs:
    """The refs of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir / "hub"

    def commit(self, source: HubSource) -> str | None:
        """Returns the commit of the source's revision; None where it was never fetched. A damaged file counts as
        none."""
        return source.revision if source.is_commit else self._read(source).get(source.revision)

    def put(self, source: HubSource, commit: str) -> None:
        """Records what the revision is. A commit needs no record."""
        if source.is_commit or self._read(source).get(source.revision) == commit:
            return
        durable.make_directory(self._directory)
        with durable.locked(self._directory / f"{source.slug}.lock", 10):
            known = self._read(source) | {source.revision: commit}
            durable.replace(self._path(source), msgspec.json.encode(known))

    def _path(self, source: HubSource) -> Path:
        return self._directory / f"{source.slug}.json"

    def _read(self, source: HubSource) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._path(source).read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError):
            return {}
