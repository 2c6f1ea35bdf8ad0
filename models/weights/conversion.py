"""This module converts floating tensors to another dtype, and writes tensors as one file or as shards.

Tensors are read and written one at a time; the peak of memory is a few times the largest tensor.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open

from models.checkpoint.config_policy import as_text, read_json
from models.checkpoint.safetensors_file import FLOATS, INDEX, WEIGHTS, Tensor, read_header, write_file
from models.errors import InvalidSource
from models.progress import Progress, silent
from models.weights.names import BESIDE_WEIGHT

PLAIN_FORMAT = "pt"
QUANTIZED_FORMAT = "dosirak-int8"
MAX_SINGLE_FILE = 2 << 30
SHARD_BYTES = 1 << 30
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def convert_dtype(
    directory: Path, dtype: str, reads: Callable[[str], bool], progress: Progress = silent
) -> dict[str, str]:
    """Convert all floating tensors of the safetensors files in `directory`, in place, to `dtype` (`BF16` or `F32`).
    Tensors that the model does not read, by name, are left out.

    Shards keep their names. Returns the sha256 of the rewritten files by name. Raises InvalidSource when a weight is
    not finite in the new dtype.
    """
    hashes = {}
    paths = sorted(directory.glob("*.safetensors"))
    for number, path in enumerate(paths):
        progress(number / len(paths), f"converting {path.name} to {dtype.lower()}")
        converted = path.with_name(path.name + ".converted")
        hashes[path.name] = rewrite(path, converted, dtype, {}, reads)
        converted.replace(path)
    if (directory / INDEX).exists():
        write_index(directory, {path.name: read_header(path) for path in paths})
    set_config_dtype(directory / "config.json", dtype)
    return hashes


def rewrite(
    path: Path, target: Path, dtype: str, names: Mapping[str, str], reads: Callable[[str], bool] = lambda name: True
) -> str:
    """Write the tensors of the file `path` that the model `reads` to `target`, floating ones as `dtype`, by their new
    `names` where they have one; returns its sha256. Raises InvalidSource when a weight is not finite in that dtype."""
    old = {names.get(tensor.name, tensor.name): tensor for tensor in read_header(path) if reads(tensor.name)}
    new = [
        replace(tensor, name=name, dtype=dtype if tensor.dtype in FLOATS else tensor.dtype)
        for name, tensor in old.items()
    ]
    with safe_open(path, framework="pt") as weights:
        convert = partial(converted, weights.get_tensor, DTYPES[dtype])
        return write_file(target, new, lambda name: convert(old[name].name), {"format": PLAIN_FORMAT})


def set_config_dtype(path: Path, dtype: str) -> None:
    """Make `config.json` say the dtype that the floating tensors have."""
    config = read_json(path)
    config.pop("torch_dtype", None)
    config["dtype"] = str(DTYPES[dtype]).removeprefix("torch.")
    path.write_text(as_text(config))


def write_shards(
    directory: Path, tensors: list[Tensor], content: Callable[[str], memoryview], progress: Progress, kind: str
) -> dict[str, str]:
    """Write `tensors` as one file, or as numbered shards with an index when they exceed `MAX_SINGLE_FILE`; the files'
    metadata say the `kind` of their weights. Returns the sha256 of the files by name."""
    shards = split(tensors)
    if len(shards) == 1:
        names = [WEIGHTS]
    else:
        names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
        write_index(directory, dict(zip(names, shards, strict=True)))
    hashes = {}
    for number, (name, shard) in enumerate(zip(names, shards, strict=True)):
        progress(number / len(shards), f"writing {name}")
        hashes[name] = write_file(directory / name, shard, content, {"format": kind})
    progress(1.0, "publishing")
    return hashes


def split(tensors: list[Tensor], single: int = MAX_SINGLE_FILE, size: int = SHARD_BYTES) -> list[list[Tensor]]:
    """One list when all fit in `single` bytes, else lists of about `size` bytes; what a weight has stays with it."""
    if sum(tensor.bytes for tensor in tensors) <= single:
        return [tensors]
    shards: list[list[Tensor]] = [[]]
    for tensor in tensors:
        full = sum(other.bytes for other in shards[-1]) + tensor.bytes > size
        if full and shards[-1] and not tensor.name.endswith(BESIDE_WEIGHT):
            shards.append([])
        shards[-1].append(tensor)
    return shards


def write_index(directory: Path, shards: dict[str, list[Tensor]]) -> None:
    index: dict[str, object] = {
        "metadata": {"total_size": sum(tensor.bytes for shard in shards.values() for tensor in shard)},
        "weight_map": {tensor.name: name for name, shard in shards.items() for tensor in shard},
    }
    (directory / INDEX).write_text(as_text(index))


def read(path: Path, name: str) -> torch.Tensor:
    with safe_open(path, framework="pt") as weights:
        tensor: torch.Tensor = weights.get_tensor(name)
        return tensor


def converted(read: Callable[[str], torch.Tensor], dtype: torch.dtype, name: str) -> memoryview:
    tensor = read(name)
    return bytes_of(finite(name, tensor.to(dtype)) if tensor.is_floating_point() else tensor)


def finite(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(tensor).all():
        raise InvalidSource(
            f"{name} has values that are not finite; the checkpoint is damaged or overflows the precision"
        )
    return tensor


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A tensor's elements in row order."""
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
