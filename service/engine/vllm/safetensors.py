"""This module copies a safetensors file and changes names and shapes on the way, byte for byte, without a library.

    [ 8 bytes: N, little endian ][ N bytes: JSON header ][ data: every tensor, back to back ]

It reads files that a repository has checked when it published them (`models.checkpoint.safetensors_file`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

Entry = dict[str, Any]
"""A tensor's `dtype`, `shape` and `data_offsets`."""
Change = Callable[[str, Entry], tuple[str, Entry] | None]
"""(name, entry) → the name and the entry of the copy, of as many bytes; None leaves the tensor out."""

_LENGTH_BYTES = 8


def rewrite(source: Path, target: Path, change: Change) -> list[str]:
    """Copies a file. Returns the names of the copy's tensors."""
    with source.open("rb") as reading, target.open("wb") as writing:
        length = int.from_bytes(reading.read(_LENGTH_BYTES), "little")
        header: dict[str, Entry] = json.loads(reading.read(length))
        header.pop("__metadata__", None)
        spans: list[tuple[int, int]] = []
        copied: dict[str, Entry] = {}
        end = 0
        for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
            changed = change(name, entry)
            if changed is None:
                continue
            first, last = entry["data_offsets"]
            spans.append((first, last))
            copied[changed[0]] = {**changed[1], "data_offsets": [end, end + last - first]}
            end += last - first
        text = json.dumps({"__metadata__": {"format": "pt"}, **copied}).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)
        writing.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for first, last in spans:
            reading.seek(_LENGTH_BYTES + length + first)
            _copy(reading, writing, last - first)
    return list(copied)


def _copy(reading: BinaryIO, writing: BinaryIO, size: int) -> None:
    while size > 0:
        chunk = reading.read(min(size, 1 << 24))
        if not chunk:
            raise ValueError("the file ends before its last tensor")
        writing.write(chunk)
        size -= len(chunk)


def link_others(source: Path, target: Path, besides: set[str]) -> None:
    """Puts the other files of a version beside, without their bytes where the file system allows that."""
    for path in source.iterdir():
        if path.name in besides or not path.is_file():
            continue
        try:
            (target / path.name).hardlink_to(path)
        except OSError:
            shutil.copyfile(path, target / path.name)
