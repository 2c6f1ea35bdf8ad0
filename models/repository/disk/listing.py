"""This module lists what a directory holds while other threads and processes remove things from it.

`Path.glob` raises FileNotFoundError where a directory goes away between its listing and its turn.
"""

from __future__ import annotations

import glob
from pathlib import Path
from stat import S_ISREG


def matching(directory: Path, pattern: str) -> list[Path]:
    """Returns the paths below a directory that match a pattern, `**` meaning any depth; none where it is not there."""
    found = glob.iglob(pattern, root_dir=directory, recursive=True, include_hidden=True)  # noqa: PTH207 - see above
    return [directory / name for name in found]


def size_of(path: Path) -> int:
    """Returns the bytes of a file; 0 where it is gone or is no file."""
    try:
        about = path.stat()
    except OSError:
        return 0
    return about.st_size if S_ISREG(about.st_mode) else 0
