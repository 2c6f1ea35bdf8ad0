"""Staging manages directories in `data_dir/tmp`: versions being made or removed, and their remains after a crash."""

import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.errors import Conflict
from models.manifest import File, is_file_name
from models.repository.disk import durable
from models.repository.disk.bento_store import DESCRIPTION

MANIFEST = "manifest.json"
OUR_FILES = frozenset({MANIFEST, DESCRIPTION})
READ_BYTES = 1 << 20


@contextmanager
def stage(temporary: Path) -> Iterator[Path]:
    """A new empty directory, locked while its maker lives so that `sweep` leaves it; removed at the end. The lock is a
    shared one: it goes with the directory, which may be a version by then that others take a lease of."""
    directory = temporary / f"stage-{uuid.uuid4().hex}"
    directory.mkdir()
    try:
        holder = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(holder, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield directory
        finally:
            os.close(holder)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def departure(temporary: Path) -> Path:
    """A free name to rename a directory to before it is removed."""
    return temporary / f"gone-{uuid.uuid4().hex}"


def seal(path: Path, known_sha256: str | None) -> File:
    """Hash a staged file, make it read-only and durable. Raises Conflict for anything but a plain file."""
    if path.is_symlink() or not path.is_file() or not is_file_name(path.name) or path.name in OUR_FILES:
        raise Conflict(f"{path.name[:80]!r} cannot be published: a version holds plain files with plain names only")
    file = File(path.name, path.stat().st_size, known_sha256 or sha256_of(path))
    path.chmod(0o444)
    durable.sync(path)
    return file


def write_sealed(path: Path, data: bytes) -> None:
    """Write one of our own files, read-only and durable."""
    durable.write(path, data)
    path.chmod(0o444)


def sha256_of(path: Path) -> str:
    """sha256 (64 hex) of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def sweep(temporary: Path, older_than: float) -> list[str]:
    """Remove directories of ours whose maker is dead and that are `older_than` seconds old; returns their names."""
    removed = [path for path in sorted(temporary.iterdir()) if _is_abandoned(path, older_than)]
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in removed]


def _is_abandoned(path: Path, older_than: float) -> bool:
    if not path.name.startswith(("stage-", "gone-")):
        return False
    try:
        if time.time() - path.stat().st_mtime < older_than:
            return False
        holder = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return durable.try_lock(holder)
    finally:
        os.close(holder)
