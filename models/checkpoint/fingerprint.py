"""A fingerprint tells whether a directory, or a file, is as it was, by what the file system says. It reads no file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from models.checkpoint.gguf_parts import parts_of
from models.checkpoint.pooling import POOLING_CONFIG

_DIGITS: Final = 16


def fingerprint(source: Path) -> str:
    """Returns 16 hex digits that change when a file of the directory, or the file itself, is added, removed, written or
    replaced. Of sub-directories only the file that an import reads counts; of a GGUF model in parts all parts do.
    Another place has others, whatever it holds. The change time is among what counts: no program can set it back."""
    source = source.resolve()
    digest = hashlib.sha256(str(source).encode(errors="surrogateescape"))
    for path in [*sorted(source.iterdir()), source / POOLING_CONFIG] if source.is_dir() else parts_of(source):
        if path.is_file():
            status = path.stat()
            name = str(path.relative_to(source)) if source in path.parents else path.name
            facts = (name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            digest.update(repr(facts).encode(errors="surrogateescape"))
    return digest.hexdigest()[:_DIGITS]
