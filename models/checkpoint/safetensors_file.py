"""This module checks a safetensors header strictly before any library opens the file, and writes files as a stream.

    [ 8 bytes: N, little endian ][ N bytes: JSON header ][ data: every tensor, back to back, nothing else ]
    header = {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {str: str}}

Format: github.com/huggingface/safetensors, README "Format". Knows no tensors, only their bytes.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from models.checkpoint import strict_json
from models.errors import InvalidSource

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
FP8 = {"F8_E4M3": 1, "F8_E5M2": 1}
"""Bytes of weights that only have a meaning with a scale beside them."""
MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 20_000
MAX_OF_SHARDS = 200_000
"""The tensors of the largest checkpoints are 100,000."""
MAX_DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of a header; `dtype` in safetensors' spelling."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * (ITEM_BYTES | FP8)[self.dtype]


def read_header(path: Path, packed: bool = False) -> list[Tensor]:
    """The tensors of a file in the order of their data; `packed` also accepts dtypes that need a scale.

    Raises InvalidSource, naming the file, when the header is larger than 16 MiB or lists more than 20,000 tensors, is
    not JSON, has a duplicate or unknown key, an unknown dtype, or offsets that do not cover the data exactly once.
    """
    try:
        with path.open("rb") as stream:
            raw, data_bytes = _raw_header(stream)
        _check_metadata(raw.pop("__metadata__", None))
        if len(raw) > MAX_TENSORS:
            raise _Malformed(f"lists {len(raw):,} tensors; at most {MAX_TENSORS:,} are accepted")
        dtypes = tuple(ITEM_BYTES | FP8 if packed else ITEM_BYTES)
        return _covering([_tensor(name, entry, dtypes) for name, entry in raw.items()], data_bytes)
    except _Malformed as error:
        raise InvalidSource(f"{path.name} is not an acceptable safetensors file: its header {error}") from None


def read_headers(paths: Iterable[Path], packed: bool = False) -> dict[str, list[Tensor]]:
    """`read_header` of each of the shards, by their names. Raises InvalidSource, also for too many tensors in all."""
    headers: dict[str, list[Tensor]] = {}
    count = 0
    for path in paths:
        headers[path.name] = tensors = read_header(path, packed)
        count += len(tensors)
        if count > MAX_OF_SHARDS:
            raise InvalidSource(f"The shards list more than {MAX_OF_SHARDS:,} tensors, so this is no model")
    return headers


def write_file(
    path: Path, tensors: Sequence[Tensor], content: Callable[[str], memoryview], metadata: dict[str, str]
) -> str:
    """Write a new file of `tensors`, asking `content` for the bytes of one after the other; returns its sha256.

    Memory in use is one tensor's. The bytes of each must be exactly `Tensor.bytes` long. The file is not yet durable.
    """
    header = _header(tensors, metadata)
    digest = hashlib.sha256()
    with path.open("xb") as stream:
        for piece in _pieces(header, tensors, content):
            digest.update(piece)
            stream.write(piece)
    return digest.hexdigest()


class _Malformed(Exception):
    """The mistake in a header, as the end of a sentence about it."""


def _raw_header(stream: BinaryIO) -> tuple[dict[str, object], int]:
    """The header as JSON and the number of data bytes behind it."""
    total = os.fstat(stream.fileno()).st_size
    length = int.from_bytes(stream.read(8), "little")
    if total < 8 or length > min(MAX_HEADER_BYTES, total - 8):
        raise _Malformed(f"is said to have {length:,} bytes: larger than 16 MiB or than the file")
    try:
        raw = strict_json.loads(stream.read(length), _no_constant)
    except ValueError as error:
        raise _Malformed(str(error)[:160]) from None
    if not isinstance(raw, dict):
        raise _Malformed("is not a JSON object")
    return raw, total - 8 - length


def _no_constant(text: str) -> object:
    raise _Malformed(f"holds {text}")


def _check_metadata(metadata: object) -> None:
    texts = metadata.values() if isinstance(metadata, dict) else () if metadata is None else (None,)
    if not all(isinstance(text, str) for text in texts):
        raise _Malformed("has a __metadata__ that is not texts by their names")


def _tensor(name: str, entry: object, dtypes: Sequence[str]) -> tuple[Tensor, int, int]:
    """A header entry as (tensor, begin, end), each part checked alone."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _Malformed(f"describes {name[:80]!r} with other keys than dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise _Malformed(f"gives {name[:80]!r} the dtype {str(dtype)[:20]}; accepted are {', '.join(dtypes)}")
    if not _whole_numbers(shape) or len(shape) > MAX_DIMENSIONS:
        raise _Malformed(f"gives {name[:80]!r} a shape that is not a list of at most {MAX_DIMENSIONS} sizes")
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise _Malformed(f"gives {name[:80]!r} offsets that are not two positions")
    tensor = Tensor(name, dtype, tuple(shape))
    if offsets[1] - offsets[0] != tensor.bytes:
        raise _Malformed(f"gives {name[:80]!r} offsets that do not fit its dtype and shape")
    return tensor, offsets[0], offsets[1]


def _whole_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _covering(placed: list[tuple[Tensor, int, int]], data_bytes: int) -> list[Tensor]:
    """The tensors sorted by place, when they cover [0, data_bytes) without gap or overlap."""
    placed.sort(key=lambda item: (item[1], item[2]))
    position = 0
    for tensor, begin, end in placed:
        if begin != position:
            raise _Malformed(f"leaves a gap or an overlap before {tensor.name[:80]!r}")
        position = end
    if position != data_bytes:
        raise _Malformed(f"covers {position:,} of {data_bytes:,} data bytes")
    return [tensor for tensor, _, _ in placed]


def _header(tensors: Sequence[Tensor], metadata: dict[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": metadata}
    position = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, position + tensor.bytes],
        }
        position += tensor.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)  # the data begins at a multiple of 8, as readers that map the file like it


def _pieces(
    header: bytes, tensors: Sequence[Tensor], content: Callable[[str], memoryview]
) -> Iterable[bytes | memoryview]:
    yield len(header).to_bytes(8, "little")
    yield header
    for tensor in tensors:
        data = content(tensor.name)
        if data.nbytes != tensor.bytes:
            raise ValueError(f"{tensor.name} has {data.nbytes} bytes where {tensor.bytes} were announced")
        yield data
