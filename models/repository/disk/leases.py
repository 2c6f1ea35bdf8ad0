"""A lease keeps a version in use from deletion: a shared lock on its directory, which ends with its holder.

A measuring mark is a lock on its manifest's file: a server and a command never measure one version at the same time.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from models.errors import Conflict, NotFound
from models.repository.disk import durable


class Lease:
    """Held until `release`, or until the process dies. Safe between threads and processes; a context manager too."""

    def __init__(self, directory: Path) -> None:
        """`ended` is called once, at the release. Raises NotFound when the directory is not there, or is being
        deleted."""
        self.ended: Callable[[], None] | None = None
        try:
            self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"There is no model version {_named(directory)}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            still_there = os.path.samestat(os.fstat(self._descriptor), directory.stat())
        except OSError:  # its deleter has the lock, or has renamed it meanwhile
            still_there = False
        if not still_there:
            self.release()
            raise NotFound(f"{_named(directory)} is being deleted")

    def release(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            if self.ended is not None:
                self.ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@contextmanager
def unused(directory: Path) -> Iterator[None]:
    """While inside, no lease can be taken. Raises Conflict while a lease is held."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not durable.try_lock(descriptor):
            raise Conflict(f"{_named(directory)} is in use; unload it first")
        yield
    finally:
        os.close(descriptor)


def _named(directory: Path) -> str:
    return f"{directory.parent.name}:{directory.name}"


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
