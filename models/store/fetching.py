"""Fetching brings one blob of the store to the disk, in parts that are read at once, and checks its sha256.

Parts are written where they belong as they come, and hashed in order meanwhile, so a check costs no second reading.
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
from models.store.remote import Remote
from models.store.shared_store import blob

PART_BYTES: Final = 8 << 20
AT_ONCE: Final = 4
READ_ONLY: Final = 0o444
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


def _fetched(remote: Remote, source: str, wanted: tuple[str, int], path: Path, mode: int) -> bool:
    sha256, size = wanted
    digest, read = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode | stat.S_IWUSR)
    try:
        with ThreadPoolExecutor(1) as syncing:
            synced = syncing.submit(os.fdatasync, descriptor)
            for part in _parts(partial(_copied, remote, source, descriptor), size):
                digest.update(part)
                read += len(part)
                if synced.done():
                    synced = syncing.submit(os.fdatasync, descriptor)  # so that the disk works meanwhile
            synced.result()
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return read == size and digest.hexdigest() == sha256


def _copied(remote: Remote, path: str, descriptor: int, start: int, end: int) -> memoryview:
    """Reads a part and writes it where it belongs."""
    part = remote.read(path, start, end)
    done = 0
    while done < len(part):
        done += os.pwrite(descriptor, part[done:], start + done)
    return part


def _parts(copied: Callable[[int, int], memoryview], size: int) -> Iterator[memoryview]:
    """Yields an object's parts in order; the next ones are on their way meanwhile."""
    coming: deque[Future[memoryview]] = deque()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for start in range(0, size, PART_BYTES):
                coming.append(pool.submit(copied, start, min(size, start + PART_BYTES)))
                if len(coming) > AT_ONCE:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for each in coming:
                each.cancel()
