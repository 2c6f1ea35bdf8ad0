"""A fingerprint tells whether a directory is as it was, by what the file system says of its files. It reads none."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

_DIGITS: Final = 16


def fingerprint(directory: Path) -> str:
    """Returns 16 hex digits that change when a file of the directory is added, removed, written or replaced. Another
    directory has others, whatever it holds. The change time is among what counts: no program can set it back."""
    directory = directory.resolve()
    digest = hashlib.sha256(str(directory).encode(errors="surrogateescape"))
    for path in sorted(directory.iterdir()):
        if path.is_file():
            told = path.stat()
            facts = (path.name, told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino)
            digest.update(repr(facts).encode(errors="surrogateescape"))
    return digest.hexdigest()[:_DIGITS]
