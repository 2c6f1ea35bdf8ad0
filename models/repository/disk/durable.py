"""This module makes writes that survive a crash, and locks between processes. It knows no models.

Every function here returns only after it has asked the operating system to put its effect on the disk.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from models.errors import Conflict

TEMPORARY = ".tmp"
_POLL_SECONDS = 0.02


def sync(path: Path) -> None:
    """Flush a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create `path` and its missing parents, each one durable in its parent."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def write(path: Path, data: bytes) -> None:
    """Create or overwrite `path`. Not atomic: for files that no reader can see yet."""
    _write(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, data)


def replace(path: Path, data: bytes) -> None:
    """Atomically make `data` the content of `path`: readers see the old content or the new. The caller holds a lock.

    What a crash leaves beside `path` is overwritten by the next call. Its name ends with TEMPORARY, so that a search
    for files by their ending never finds it. A write that fails leaves nothing.
    """
    beside = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        write(beside, data)
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    with suppress(FileNotFoundError):
        path.unlink()
        sync(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Append one line to a journal. A torn last line (no newline at its end) is cut off first; the caller holds a lock.

    After a crash inside, a reader that ignores a last line without its newline sees the old journal or the new one.
    Where it fails, as on a full disk, the line is taken back: nobody may read what its writer believes refused.
    """
    content = path.read_bytes() if path.exists() else b""
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(path, end)
    try:
        _write(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, line + b"\n")
        sync(path.parent)
    except OSError:
        with suppress(OSError):
            os.truncate(path, end) if end else path.unlink()
        raise


@contextmanager
def locked(path: Path, timeout: float) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created when missing); it ends with its holder, however that dies.

    Works between processes and between threads. Raises Conflict when it is not free within `timeout` seconds.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + timeout
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise Conflict(f"{path.stem} is being changed by another caller; try again")
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Take an exclusive lock on an open file or directory now; False when another holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(path: Path, flags: int, data: bytes) -> None:
    descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
