"""Fetching brings one blob of the store to the disk, in parts that are read at once, and checks its sha256.

Parts are written where they belong as they come. Meanwhile those that are there are hashed in order, as they were
written: from the page cache, so a check costs no second reading of the disk.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from models.errors import Corrupt
from models.repository.store.remote import Remote
from models.repository.store.shared_store import blob

PART_BYTES: Final = 8 << 20
AT_ONCE: Final = 4
READ_ONLY: Final = 0o444
_HASHED_BYTES: Final = 256 << 10
TRIES: Final = 3
"""How often a blob is read before the version is given up: what is wrong on the way may be right the next time."""


def fetch(remote: Remote, sha256: str, size: int, path: Path, source: str | None = None, mode: int = READ_ONLY) -> None:
    """Writes a blob, or the object `source`, to `path`, on disk and with `mode`. Raises Corrupt where its content is
    not of that sha256 after all tries, and NotFound; `path` is not there then."""
    source = source or blob(sha256)
    for _ in range(TRIES):
        try:
            if _fetched(remote, source, (sha256, size), path, mode):
                path.chmod(mode)
                return
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    path.unlink(missing_ok=True)
    raise Corrupt(f"the store's {source} is not what was published ({TRIES} tries): restore it from a copy")


def _fetched(remote: Remote, source: str, expected: tuple[str, int], path: Path, mode: int) -> bool:
    sha256, size = expected
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_HASHED_BYTES))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode | stat.S_IWUSR)
    try:
        with ThreadPoolExecutor(1) as syncing:
            synced = syncing.submit(os.fdatasync, descriptor)
            for start, end in _copied(partial(copy_part, remote, source, descriptor), size):
                _hash(digest, descriptor, start, end, buffer)
                if synced.done():
                    synced = syncing.submit(os.fdatasync, descriptor)  # so that the disk works meanwhile
            synced.result()
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return digest.hexdigest() == sha256


def copy_part(remote: Remote, path: str, descriptor: int, start: int, end: int) -> None:
    """Writes a part of an object where it belongs; what the object lacks stays unwritten, and its digest tells."""
    file = remote.file(path)
    if file is None or not _copied_by_the_kernel(file, descriptor, start, end):
        part = remote.read(path, start, end)
        while part:
            written = os.pwrite(descriptor, part, start)
            part, start = part[written:], start + written


def _copied_by_the_kernel(file: Path, descriptor: int, start: int, end: int) -> bool:
    """Copies without a turn through this process, which takes half the time. False where a file system cannot, and
    where anything is wrong: reading and writing then tells what."""
    try:
        with file.open("rb") as source:
            while start < end:
                copied = os.copy_file_range(source.fileno(), descriptor, end - start, start, start)
                if not copied:
                    return False
                start += copied
    except (AttributeError, OSError):  # macOS has no copy_file_range
        return False
    return True


def _hash(digest: hashlib._Hash, descriptor: int, start: int, end: int, buffer: memoryview) -> None:
    """Adds what was written to the digest, through a buffer that stays in the processor's cache."""
    while start < end and (read := os.preadv(descriptor, [buffer[: end - start]], start)):
        digest.update(buffer[:read])
        start += read


def _copied(copy: Callable[[int, int], None], size: int) -> Iterator[tuple[int, int]]:
    """Yields the borders of an object's parts in order, once they are copied; the next ones are on their way
    meanwhile."""
    coming: deque[tuple[tuple[int, int], Future[None]]] = deque()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for start in range(0, size, PART_BYTES):
                part = start, min(size, start + PART_BYTES)
                coming.append((part, pool.submit(copy, *part)))
                if len(coming) > AT_ONCE:
                    yield _arrived(coming)
            while coming:
                yield _arrived(coming)
        finally:
            for _, each in coming:
                each.cancel()


def _arrived(coming: deque[tuple[tuple[int, int], Future[None]]]) -> tuple[int, int]:
    part, copied = coming.popleft()
    copied.result()
    return part
