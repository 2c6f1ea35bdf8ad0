"""Conversion of weights: floating tensors to another dtype, and a version to a new one with int8 linear layers.

What an int8 version stores, read by `service.runner`:

    <module>.weight        int8     [out_features, in_features], also for GPT-2's Conv1D (transposed here) and for a
                                    tied output head, which gets a weight of its own; the embedding stays floating
    <module>.weight_scale  float32  [out_features]; weight ~ int8 * scale, scale = largest magnitude of the row / 127,
                                    1 for a row of zeros; the error of a weight is at most scale / 2
    everything else        bf16     embeddings, norms, biases, fused expert tensors

The files' metadata says `format: dosirak-int8`; transformers does not look at that and would take the steps for
weights, so only `service.runner` may load such a version. Tensors are read and written one at a time; the peak of
memory is a few times the largest tensor.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path

import torch
from safetensors import safe_open

from models import skeleton
from models.checkpoint.config_policy import as_text, read_json
from models.checkpoint.safetensors_file import FLOATS, INDEX, WEIGHTS, Tensor, read_header, write_file
from models.errors import Conflict, InvalidSource
from models.manifest import Facts, Lineage, Manifest, precision_of
from models.repository import Repository
from models.skeleton import Skeleton

Progress = Callable[[float, str], None]

SCALE_SUFFIX = "_scale"
MAX_SINGLE_FILE = 2 << 30
SHARD_BYTES = 1 << 30
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def quantize(
    repository: Repository,
    parent: Manifest,
    precision: str = "int8",
    version: str | None = None,
    author: str = "",
    progress: Progress = lambda fraction, what: None,
) -> Manifest:
    """Publish a new version of `parent` with its linear layers in int8; the parent must be bf16 or fp32.

    Raises Conflict for a parent or precision that this cannot be done with, InvalidSource when a weight is not finite.
    """
    if precision_of(precision) != "int8" or parent.precision == "int8":
        raise Conflict(
            f"{parent.reference} is {parent.precision} and cannot become {precision}; int8 is made from bf16"
        )
    source = repository.path(parent)
    model = skeleton.build(source)
    with repository.stage() as staged:
        for file in parent.files:
            if not file.path.endswith(".safetensors") and file.path != INDEX:
                shutil.copyfile(source / file.path, staged / file.path)
        set_config_dtype(staged / "config.json", "BF16")
        plan = _plan(source, model)
        hashes = _write_shards(staged, [item.tensor for item in plan], _Quantizer(plan), progress)
        return repository.publish(staged, _facts(parent, plan, author), parent.name, version, hashes)


def convert_dtype(directory: Path, dtype: str, progress: Progress = lambda fraction, what: None) -> dict[str, str]:
    """Convert all floating tensors of the safetensors files in `directory`, in place, to `dtype` (`BF16` or `F32`).

    Shards keep their names. Returns the sha256 of the rewritten files by name. Raises InvalidSource when a weight is
    not finite in the new dtype.
    """
    hashes = {}
    paths = sorted(directory.glob("*.safetensors"))
    for number, path in enumerate(paths):
        progress(number / len(paths), f"converting {path.name} to {dtype.lower()}")
        old = read_header(path)
        new = [replace(tensor, dtype=dtype) if tensor.dtype in FLOATS else tensor for tensor in old]
        converted = path.with_name(path.name + ".converted")
        with safe_open(path, framework="pt") as weights:
            content = partial(_converted, weights.get_tensor, DTYPES[dtype])
            hashes[path.name] = write_file(converted, new, content, {"format": "pt"})
        converted.replace(path)
    if (directory / INDEX).exists():
        _write_index(directory, {path.name: read_header(path) for path in paths})
    set_config_dtype(directory / "config.json", dtype)
    return hashes


def set_config_dtype(path: Path, dtype: str) -> None:
    """Make `config.json` say the dtype that the floating tensors have."""
    config = read_json(path)
    config.pop("torch_dtype", None)
    config["dtype"] = str(DTYPES[dtype]).removeprefix("torch.")
    path.write_text(as_text(config))


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] floating → (int8 [out, in], float32 scale [out]), per row; |weight - int8 * scale| <= scale / 2."""
    exact = weight.float()
    scale = exact.abs().amax(dim=1) / 127
    scale = torch.where(scale < torch.finfo(torch.float32).tiny, torch.ones_like(scale), scale)
    return torch.round(exact / scale[:, None]).clamp_(-127, 127).to(torch.int8), scale


@dataclass(frozen=True, slots=True)
class _Planned:
    """One tensor to write, the tensor it comes from, and the file that holds that one."""

    tensor: Tensor
    source: str
    path: Path
    linear: skeleton.Linear | None = None


def _plan(source: Path, model: Skeleton) -> list[_Planned]:
    """Every tensor of the new version, in the order of the old files; an omitted tied head follows its embedding."""
    stored = {
        model.canonical(tensor.name): (tensor, path)
        for path in sorted(source.glob("*.safetensors"))
        for tensor in read_header(path)
    }
    heads = {embedding: head for head, embedding in model.tied.items() if head not in stored}
    planned: list[_Planned] = []
    for name, (tensor, path) in stored.items():
        if name in model.linears:
            planned += _linear(name, tensor, path, model.linears[name])
        else:
            dtype = "BF16" if tensor.dtype in FLOATS else tensor.dtype
            planned.append(_Planned(Tensor(name, dtype, tensor.shape), tensor.name, path))
        if name in heads:
            planned += _linear(heads[name], tensor, path, model.linears[heads[name]])
    return planned


def _linear(name: str, tensor: Tensor, path: Path, linear: skeleton.Linear) -> list[_Planned]:
    shape = (linear.out_features, linear.in_features)
    if tensor.shape != (shape[::-1] if linear.transposed else shape):
        raise InvalidSource(f"{tensor.name} has the shape {list(tensor.shape)}; config.json says {list(shape)}")
    return [
        _Planned(Tensor(name, "I8", shape), tensor.name, path, linear),
        _Planned(Tensor(name + SCALE_SUFFIX, "F32", shape[:1]), tensor.name, path, linear),
    ]


class _Quantizer:
    """Gives the bytes of planned tensors by name. A weight's scale is asked for right after it and kept until then."""

    def __init__(self, plan: list[_Planned]) -> None:
        self._plan = {item.tensor.name: item for item in plan}
        self._scales: dict[str, torch.Tensor] = {}

    def __call__(self, name: str) -> memoryview:
        item = self._plan[name]
        if item.linear is None:
            return _converted(partial(_read, item.path), torch.bfloat16, item.source)
        if name in self._scales:
            return _bytes(self._scales.pop(name))
        weight = _finite(item.source, _read(item.path, item.source))
        values, self._scales[name + SCALE_SUFFIX] = quantize_rows(weight.T if item.linear.transposed else weight)
        return _bytes(values)


def _read(path: Path, name: str) -> torch.Tensor:
    with safe_open(path, framework="pt") as weights:
        tensor: torch.Tensor = weights.get_tensor(name)
        return tensor


def _converted(read: Callable[[str], torch.Tensor], dtype: torch.dtype, name: str) -> memoryview:
    tensor = read(name)
    return _bytes(_finite(name, tensor.to(dtype)) if tensor.is_floating_point() else tensor)


def _finite(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(tensor).all():
        raise InvalidSource(
            f"{name} has values that are not finite; the checkpoint is damaged or overflows the precision"
        )
    return tensor


def _bytes(tensor: torch.Tensor) -> memoryview:
    """A tensor's elements in row order."""
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _write_shards(
    directory: Path, tensors: list[Tensor], content: Callable[[str], memoryview], progress: Progress
) -> dict[str, str]:
    """Write `tensors` as one file, or as numbered shards with an index when they exceed `MAX_SINGLE_FILE`."""
    shards = split(tensors)
    if len(shards) == 1:
        names = [WEIGHTS]
    else:
        names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
        _write_index(directory, dict(zip(names, shards, strict=True)))
    hashes = {}
    for number, (name, shard) in enumerate(zip(names, shards, strict=True)):
        progress(number / len(shards), f"writing {name}")
        hashes[name] = write_file(directory / name, shard, content, {"format": "dosirak-int8"})
    progress(1.0, "publishing")
    return hashes


def split(tensors: list[Tensor], single: int = MAX_SINGLE_FILE, size: int = SHARD_BYTES) -> list[list[Tensor]]:
    """One list when all fit in `single` bytes, else lists of about `size` bytes; a scale stays with its weight."""
    if sum(tensor.bytes for tensor in tensors) <= single:
        return [tensors]
    shards: list[list[Tensor]] = [[]]
    for tensor in tensors:
        full = sum(other.bytes for other in shards[-1]) + tensor.bytes > size
        if full and shards[-1] and not tensor.name.endswith(SCALE_SUFFIX):
            shards.append([])
        shards[-1].append(tensor)
    return shards


def _write_index(directory: Path, shards: dict[str, list[Tensor]]) -> None:
    index: dict[str, object] = {
        "metadata": {"total_size": sum(tensor.bytes for shard in shards.values() for tensor in shard)},
        "weight_map": {tensor.name: name for name, shard in shards.items() for tensor in shard},
    }
    (directory / INDEX).write_text(as_text(index))


def _facts(parent: Manifest, plan: list[_Planned], author: str) -> Facts:
    linears = sum(1 for item in plan if item.tensor.dtype == "I8" and item.linear)
    fused = sum(1 for item in plan if item.linear is None and len(item.tensor.shape) == 3)
    recipe = f"{linears} linear weights to int8, symmetric per output channel, round to nearest; the rest bf16"
    if fused:
        recipe += f"; {fused} fused expert tensors left in bf16"
    tools = tuple(f"{package} {installed(package)}" for package in ("torch", "transformers"))
    lineage = Lineage(parent.lineage.source, parent.reference, parent.digest, recipe, tools, author)
    return Facts(
        architecture=parent.architecture,
        model_type=parent.model_type,
        precision="int8",
        dtype="BF16",
        context_window=parent.context_window,
        vocab_size=parent.vocab_size,
        parameters=parent.parameters,
        license=parent.license,
        lineage=lineage,
    )
