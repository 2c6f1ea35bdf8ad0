"""The measuring mark says that a version is being measured: a lock on its manifest's file, which ends with its holder.

It holds between processes: a server and a command never measure one version at the same time.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from models.errors import Conflict
from models.repository.disk import durable

_WAIT_SECONDS: Final = 1.0
"""Longer than a reader holds the lock to look at it."""
_POLL_SECONDS: Final = 0.02


@contextmanager
def marked(path: Path) -> Iterator[None]:
    """Marks the version of this manifest file while inside. Raises Conflict where another holds the mark."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not durable.try_lock(descriptor):
            if time.monotonic() > deadline:
                raise Conflict(
                    f"{path.parent.parent.name}:{path.parent.name} is being measured already; wait for its report"
                )
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def is_marked(path: Path) -> bool:
    """Returns whether any process measures the version of this manifest file now."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
