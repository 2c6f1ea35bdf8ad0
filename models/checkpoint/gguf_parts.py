"""A GGUF model may lie in several files, as llama.cpp's gguf-split names them: `name-00001-of-00003.gguf` and so on.

This module knows names and opens no file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from models.errors import InvalidSource

_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_MOST: Final = 1_000


def parts_of(path: Path) -> list[Path]:
    """Returns the files of the model whose first part is `path`; most have one. Raises InvalidSource for another
    part."""
    named = _PART.fullmatch(path.name)
    if named is None:
        return [path]
    count = int(named[3])
    if int(named[2]) != 1 or not 0 < count <= _MOST:
        raise InvalidSource(f"{path.name} is not the first part of its model: give the part 00001 of {named[3]}")
    return [path.with_name(f"{named[1]}-{number:05}-of-{named[3]}{path.suffix}") for number in range(1, count + 1)]


def present_parts(path: Path) -> list[Path]:
    """Returns `parts_of`. Raises InvalidSource where one is no file, too."""
    paths = parts_of(path)
    if missing := next((each.name for each in paths if not each.is_file()), None):
        raise InvalidSource(f"{missing} is missing: put all {len(paths):,} parts of the model into one directory")
    return paths
