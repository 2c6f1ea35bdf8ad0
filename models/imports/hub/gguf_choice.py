"""Of a repository of GGUF files one model is chosen: by a file's name, by a quantization's, or the usual one."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from models.checkpoint.gguf_parts import parts_of
from models.errors import InvalidSource
from models.imports.hub.source import HubSource

SUFFIX: Final = ".gguf"
_USUAL: Final = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q6_K", "Q8_0", "BF16", "F16")
_BESIDE: Final = ("mmproj", "imatrix")
"""Beginnings of files that are no model: a reader of images, what a quantization was made by."""
_LATER_PART: Final = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_SHOWN: Final = 30


def models(names: Collection[str]) -> list[str]:
    """Returns the first files of the models in a repository."""
    found = (name for name in names if name.lower().endswith(SUFFIX) and not _LATER_PART.search(name))
    return sorted(name for name in found if not Path(name).name.lower().startswith(_BESIDE))


def choose(source: HubSource, names: Collection[str]) -> list[str]:
    """Returns the files of the chosen model, its first part first. Raises InvalidSource, which names those there are,
    where none or several fit."""
    first = _first(source, models(names))
    parts = [str(path) for path in parts_of(Path(first))]
    if missing := [name for name in parts if name not in names]:
        raise InvalidSource(f"{source.id} has {first} and not its part {missing[0]}: tell its author")
    return parts


def said(names: Collection[str], chosen: str) -> str:
    """Returns the sentence that lists the models and names the chosen one."""
    listed = models(names)
    return f"{len(listed)} GGUF models ({', '.join(listed[:_SHOWN])}), of which {chosen} is taken" if listed else chosen


def _first(source: HubSource, choices: list[str]) -> str:
    names = (source.file,) if source.file else _USUAL
    for each in names:
        fitting = [name for name in choices if each == name or _is_of(name, each)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            break
    if not source.file and len(choices) == 1:
        return choices[0]
    listed = ", ".join(choices[:_SHOWN]) + (f" and {len(choices) - _SHOWN} more" if len(choices) > _SHOWN else "")
    what = f"no one GGUF file of {source.file!r}" if source.file else "no one usual GGUF file"
    raise InvalidSource(
        f"{source.id} has {what}; there are {listed or 'none'}: choose one, as {source.id}:Q4_K_M or {source.id}:FILE"
    )


def _is_of(name: str, quantization: str) -> bool:
    """Whether a file's name names the quantization, as a word of its own."""
    word = rf"(?<![A-Za-z0-9]){re.escape(quantization)}(?![A-Za-z0-9_])"
    return re.search(word, Path(name).stem, re.IGNORECASE) is not None
