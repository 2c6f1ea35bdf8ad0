"""Small disks for tests, and full ones. Only root can have them: other users' tests are skipped, and say so."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(directory: Path, size: str = "16m") -> Iterator[Path]:
    """A directory that is a disk of its own."""
    directory.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory], capture_output=True)
    if made.returncode:
        pytest.skip("a full disk is tried on a small one, which this user may not mount")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


@contextmanager
def full(directory: Path, free: int = 0) -> Iterator[None]:
    """The disk of a directory has so many bytes free, and no more."""
    ballast = directory / "ballast"
    about = os.statvfs(directory)
    with ballast.open("wb", buffering=0) as file:
        file.write(bytes(max(0, about.f_bfree * about.f_frsize - free)))
    assert os.statvfs(directory).f_bfree * about.f_frsize <= free
    try:
        yield
    finally:
        ballast.unlink()
