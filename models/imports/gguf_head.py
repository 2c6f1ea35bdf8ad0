"""A GGUF file's head, and those of the other parts of its model, are read strictly before a library opens a file.

    "GGUF", version u32, tensors u64, pairs u64 | pairs of key and value | tensors: name, sizes, type, place | data

Format: github.com/ggml-org/ggml, docs/gguf.md. Nothing may lie outside of the file, twice, unaligned or over something
else. Work and memory follow the bytes that are there, and no number in them.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from models.checkpoint.gguf_parts import present_parts
from models.checkpoint.safetensors_file import MAX_TENSORS
from models.errors import InvalidSource

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGMLQuantizationType
    from numpy.typing import NDArray

MAX_ELEMENTS: Final = 2 << 20
"""Of all arrays of a file: the tokens, scores, kinds and merges of a vocabulary of 262,144 are half of it."""
MAX_TEXT_BYTES: Final = 128 << 20
"""Of all texts of a file, keys and names among them: a vocabulary has 10 MB, and a whole tokenizer.json 35 MB."""
_MAX_ELEMENT_BYTES: Final = 16 << 10
_MAX_PAIRS: Final = 10_000
_MAX_NAME: Final = 64
_MAX_DIMENSIONS: Final = 4
_VERSIONS: Final = (2, 3)
_NUMBERS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT: Final = 8
_ARRAY: Final = 9
_NO_WEIGHTS: Final = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 41: "Q1_0",
}  # fmt: skip
"""Types that no file has weights in, or that llama.cpp's own package does not dequantize."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a file: its shape in torch's order, its type by GGUF's numbers, and the place of its bytes."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    path: Path
    begin: int
    bytes: int

    @property
    def data(self) -> NDArray[np.uint8]:
        """The blocks as they lie in the file, mapped, uint8 [.., bytes of a row]."""
        import numpy as np

        rows = self.shape[:-1]
        return np.memmap(self.path, np.uint8, "r", self.begin, (*rows, self.bytes // math.prod(rows)))


@dataclass(frozen=True, slots=True)
class GgufModel:
    """Values by their keys, of an array of texts their number, and tensors by llama.cpp's names."""

    values: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read(path: Path) -> GgufModel:
    """Returns what the file and the other parts of its model hold. Raises InvalidSource."""
    values: dict[str, Any] = {}
    tensors: dict[str, GgufTensor] = {}
    paths = present_parts(path)
    for number, each in enumerate(paths):
        try:
            own, added = _read(each)
        except (_Malformed, struct.error, UnicodeDecodeError) as error:
            raise InvalidSource(f"{each.name} is no GGUF file that can be read: {error}") from None
        if (own.get("split.no", 0), own.get("split.count") or 1) != (number, len(paths)):
            raise InvalidSource(
                f"{each.name} says that it is part {own.get('split.no', 0)}, counted from 0, of "
                f"{own.get('split.count', 1)}, and its name says another: give the parts the names that they had"
            )
        if twice := min(tensors.keys() & added.keys(), default=None):
            raise InvalidSource(f"{each.name} has the tensor {twice} of another part again: fetch the parts again")
        values = values or own
        tensors |= added
    if (count := values.get("split.tensors.count", len(tensors))) != len(tensors):
        raise InvalidSource(f"the parts of {path.name} have {len(tensors):,} of {count} tensors: fetch them again")
    return GgufModel(values, tensors)


class _Malformed(Exception):
    """The mistake in a head, as the end of a sentence about it."""


def _read(path: Path) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise _Malformed("it does not begin with GGUF")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            head = _Head(data)
            version, tensors, pairs = head.take("IQQ")
            if version not in _VERSIONS:
                raise _Malformed(f"it is of version {version}, and {_VERSIONS[0]} and {_VERSIONS[1]} are read")
            if tensors > MAX_TENSORS or pairs > _MAX_PAIRS:
                raise _Malformed(f"it is said to have {tensors:,} tensors and {pairs:,} values")
            values: dict[str, Any] = {}
            for _ in range(pairs):
                key = head.text()
                if key in values:
                    raise _Malformed(f"it has the key {key[:80]!r} twice")
                (kind,) = head.take("I")
                values[key] = head.value(kind, key)
            placed = [_place(head) for _ in range(tensors)]
            return values, _tensors(path, placed, head.at, _alignment(values), len(data))


class _Head:
    """The bytes of a file, from the place `at` on, which goes on as they are read."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 4
        self._elements = 0
        self._text_bytes = 0

    def take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self._data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def text(self) -> str:
        begin = self._skip()
        return self._data[begin : self.at].decode()

    def value(self, kind: int, key: str) -> Any:
        if kind in _NUMBERS:
            return self.take(_NUMBERS[kind])[0]
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            raise _Malformed(f"{key[:80]!r} has the type {kind}, which there is not")
        of, count = self.take("IQ")
        self._elements += count
        if self._elements > MAX_ELEMENTS:
            raise _Malformed(f"{key[:80]!r} is said to have {count:,} elements; all arrays may have {MAX_ELEMENTS:,}")
        if of in _NUMBERS:
            return list(self.take(f"{count}{_NUMBERS[of]}"))
        if of != _TEXT:
            raise _Malformed(f"{key[:80]!r} is an array of the type {of}, which is not read")
        for _ in range(count):
            self._skip(_MAX_ELEMENT_BYTES)
        return count

    def _skip(self, most: int = MAX_TEXT_BYTES) -> int:
        """Passes a text. Returns where it begins."""
        (length,) = self.take("Q")
        self._text_bytes += length
        if length > most or self._text_bytes > MAX_TEXT_BYTES:
            raise _Malformed(
                f"it has a text of {length:,} bytes; an element may have {_MAX_ELEMENT_BYTES:,}, all texts "
                f"{MAX_TEXT_BYTES:,}"
            )
        if length > len(self._data) - self.at:
            raise _Malformed(f"it ends inside a text of {length:,} bytes")
        begin, self.at = self.at, self.at + length
        return begin


def _alignment(values: Mapping[str, Any]) -> int:
    alignment = values.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise _Malformed(f"general.alignment is {str(alignment)[:40]}, which is no power of two")
    return alignment


@cache
def _types() -> dict[int, GGMLQuantizationType]:
    """Returns the types that weights are read in, by their numbers."""
    from gguf import GGMLQuantizationType

    return {each.value: each for each in GGMLQuantizationType if each.value not in _NO_WEIGHTS}


def _place(head: _Head) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
    """Returns a tensor's name, its sizes in torch's order, its type, and where it begins in the data."""
    name = head.text()
    if not 0 < len(name.encode()) < _MAX_NAME:
        raise _Malformed(f"a tensor's name {name[:80]!r} has not 1 to {_MAX_NAME - 1} bytes")
    (dimensions,) = head.take("I")
    if not 0 < dimensions <= _MAX_DIMENSIONS:
        raise _Malformed(f"{name} has {dimensions:,} dimensions; 1 to {_MAX_DIMENSIONS} are read")
    shape = head.take(f"{dimensions}Q")[::-1]
    kind, offset = head.take("IQ")
    known = _types()
    if kind not in known:
        read = ", ".join(each.name for each in known.values())
        raise _Malformed(f"{name} is of ggml's type {_NO_WEIGHTS.get(kind, kind)}; weights are read in {read}")
    return name, shape, known[kind], offset


def _tensors(
    path: Path,
    placed: list[tuple[str, tuple[int, ...], GGMLQuantizationType, int]],
    end: int,
    alignment: int,
    size: int,
) -> dict[str, GgufTensor]:
    """Returns the tensors by name; each begins where the one before it ends, at the next multiple of `alignment`."""
    from gguf import GGML_QUANT_SIZES

    tensors: dict[str, GgufTensor] = {}
    data, expected = -(-end // alignment) * alignment, 0
    for name, shape, kind, offset in placed:
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
        if not all(shape) or shape[-1] % per_block:
            raise _Malformed(f"{name} has the sizes {list(shape)}, which {kind.name} has no blocks for")
        length = math.prod(shape) // per_block * block_bytes
        if name in tensors:
            raise _Malformed(f"it has the tensor {name} twice")
        if offset != expected:
            raise _Malformed(f"its tensor {name} begins at byte {offset:,} of the data and should at {expected:,}")
        if data + offset + length > size:
            raise _Malformed(f"its tensor {name} of {length:,} bytes ends behind the file; fetch the file again")
        tensors[name] = GgufTensor(name, kind, shape, path, data + offset, length)
        expected += -(-length // alignment) * alignment
    return tensors
