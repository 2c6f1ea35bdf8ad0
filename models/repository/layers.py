"""Stored layers say in which dtype each module of a version is stored, in a few lines: equal layers share one line.

    model.layers.*.self_attn.q_proj     I8         in every layer that there is
    model.layers.0,2-3.mlp.down_proj    I8+BF16    in these layers
    lm_head                             BF16

A module is named if it has a `weight`; the dtype is that of the weight. `+` adds the dtype of columns kept beside it
(`llm-int8`). A tensor outside such a module is listed by its own name. Dtypes are spelled as in safetensors, and 4-bit
weights, which lie there in pairs as U8, are I4; a GGUF file's blocks have their own names, as Q4_K.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from models.checkpoint.block_types import type_of
from models.checkpoint.safetensors_file import read_header
from models.manifest import Layer

_WEIGHT = ".weight"
_KEPT = ".outlier_weight"
_GROUPED = ".group_scale"
_FOUR_BITS = "I4"

_Text = tuple[str | None, ...]  # a name's parts, None for its numbers
_Numbers = tuple[int, ...]
_Row = tuple[tuple[str, ...], str]  # what stands for each number, and the dtype


def stored_layers(directory: Path) -> tuple[Layer, ...]:
    """Returns the layers of the safetensors files in `directory`, by their headers only. Raises InvalidSource for a
    file without a header."""
    tensors = [tensor for path in sorted(directory.glob("*.safetensors")) for tensor in read_header(path)]
    return fold(module_dtypes({tensor.name: tensor.dtype for tensor in tensors}))


def module_dtypes(tensors: Mapping[str, str]) -> dict[str, str]:
    """Tensor to dtype → module to dtype, as the module above says."""
    dtypes = {}
    for name, dtype in tensors.items():
        module = name.removesuffix(_WEIGHT)
        if blocks := type_of(name):
            dtypes[blocks[0]] = blocks[1]
        elif module != name and module not in tensors:
            kept = tensors.get(module + _KEPT)
            dtype = _FOUR_BITS if module + _GROUPED in tensors else dtype
            dtypes[module] = dtype if kept is None else f"{dtype}+{kept}"
        elif module != name or name.rpartition(".")[0] + _WEIGHT not in tensors:
            dtypes[name] = dtype
    return dtypes


def fold(dtypes: Mapping[str, str]) -> tuple[Layer, ...]:
    """Returns sorted patterns for module to dtype. Names may differ only in numbers: then `*` stands for all numbers if
    they agree; else the numbers are listed. Exactly one pattern matches each name."""
    alike: dict[_Text, dict[_Numbers, str]] = {}
    for name, dtype in dtypes.items():
        parts = name.split(".")
        text = tuple(None if _is_number(part) else part for part in parts)
        numbers = tuple(int(part) for part in parts if _is_number(part))
        alike.setdefault(text, {})[numbers] = dtype
    folded = [(text, row) for text, entries in alike.items() for row in _rows(entries)]
    return tuple(sorted(Layer(_pattern(text, numbers), dtype) for text, (numbers, dtype) in folded))


def _rows(dtypes: Mapping[_Numbers, str]) -> list[_Row]:
    """Returns rows in which numbers with the same rows below them share one entry."""
    width = len(next(iter(dtypes)))
    if len(set(dtypes.values())) == 1 and len(dtypes) > 1:
        return [(("*",) * width, next(iter(dtypes.values())))]
    if not width:
        return [((), dtype) for dtype in dtypes.values()]
    below: dict[int, dict[_Numbers, str]] = {}
    for numbers, dtype in dtypes.items():
        below.setdefault(numbers[0], {})[numbers[1:]] = dtype
    same: dict[tuple[_Row, ...], list[int]] = {}
    for number in sorted(below):
        same.setdefault(tuple(_rows(below[number])), []).append(number)
    return [((_listed(first), *rest), dtype) for rows, first in same.items() for rest, dtype in rows]


def _listed(numbers: Sequence[int]) -> str:
    """Returns ascending numbers as text, neighbours as a range: `0,2-5`."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _pattern(text: _Text, numbers: Sequence[str]) -> str:
    remaining = iter(numbers)
    return ".".join(next(remaining) if part is None else part for part in text)


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdigit() and str(int(part)) == part
