"""This module converts floating tensors to another dtype, and a version to a new one with 8-bit linear layers.

An 8-bit version stores, for `service.runner`:

    <module>.weight        int8     [out_features, in_features], also for GPT-2's Conv1D (transposed here) and for a
                                    tied output head, which gets a weight of its own; the embedding stays floating
    <module>.weight_scale  float32  [out_features]; weight ~ int8 * scale, scale = largest magnitude of the row / 127,
                                    1 for a row of zeros; the error of a weight is at most scale / 2
    <module>.outlier_columns  int32 [n], `llm-int8` alone: the input columns that stay in 16 bits; 0 in <module>.weight
    <module>.outlier_weight   bf16  [out_features, n], their weights
    everything else        bf16     embeddings, norms, biases, fused expert tensors

`int8` and `int8-weight` differ in the treatment of rows at run time, not in the stored files. An `llm-int8` version has
a `quantization.json`: threshold, text, and the number of outlier columns of every layer.

The files' metadata says `format: dosirak-int8`. transformers does not look at that and would take the codes for
weights, so only `service.runner` may load such a version. Tensors are read and written one at a time; the peak of
memory is a few times the largest tensor.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path

import torch
from safetensors import safe_open

from models import skeleton
from models.calibration import THRESHOLD, Calibrate, TokenIds, outlier_columns
from models.checkpoint.config_policy import as_text, read_json
from models.checkpoint.safetensors_file import FLOATS, INDEX, WEIGHTS, Tensor, read_header, write_file
from models.errors import Conflict, InvalidSource
from models.manifest import QUANTIZED, Facts, Lineage, Manifest, Precision, precision_of
from models.progress import Progress, silent
from models.repository import Repository
from models.skeleton import Skeleton

SCALE_SUFFIX = "_scale"
COLUMNS_SUFFIX = ".outlier_columns"
KEPT_SUFFIX = ".outlier_weight"
REPORT = "quantization.json"
MAX_SINGLE_FILE = 2 << 30
SHARD_BYTES = 1 << 30
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def quantize(
    repository: Repository,
    parent: Manifest,
    precision: str = "int8",
    version: str | None = None,
    author: str = "",
    progress: Progress = silent,
    calibrate: Calibrate | None = None,
) -> Manifest:
    """Publish a new version of `parent` with its linear layers in 8 bits; the parent must be bf16 or fp32. `llm-int8`
    finds its outliers on the texts that `calibrate` gives.

    Raises Conflict for a parent or precision that this cannot be done with, InvalidSource when a weight is not finite,
    or for `llm-int8` without a text.
    """
    wanted = precision_of(precision)
    if parent.has_adapter:
        raise Conflict(
            f"{parent.reference} has an adapter: quantize its base, {parent.lineage.parent}, then import the adapter "
            "with that as adapter_of"
        )
    if wanted not in QUANTIZED or parent.precision in QUANTIZED:
        raise Conflict(
            f"{parent.reference} is {parent.precision} and cannot become {precision}; 8-bit versions are made from bf16"
        )
    source = repository.path(parent)
    model = skeleton.build(source)
    outliers: dict[str, torch.Tensor] = {}
    calibration: TokenIds = ()
    if wanted == "llm-int8":
        calibration = calibrate(source, parent.context_window) if calibrate else ()
        if not calibration:
            raise InvalidSource("llm-int8 needs a text to find outliers on")
        progress(0.0, "looking for outliers")
        outliers = outlier_columns(source, model.linears, calibration, THRESHOLD)
    with repository.stage() as staged:
        for file in parent.files:
            if not file.path.endswith(".safetensors") and file.path != INDEX:
                shutil.copyfile(source / file.path, staged / file.path)
        set_config_dtype(staged / "config.json", "BF16")
        if wanted == "llm-int8":
            tokens = sum(len(text) for text in calibration)
            (staged / REPORT).write_text(as_text(_report(model, outliers, tokens)))
        plan = _plan(source, model, outliers)
        hashes = _write_shards(staged, [item.tensor for item in plan], _Quantizer(plan), progress)
        return repository.publish(staged, _facts(parent, wanted, plan, author), parent.name, version, hashes)


def convert_dtype(directory: Path, dtype: str, progress: Progress = silent) -> dict[str, str]:
    """Convert all floating tensors of the safetensors files in `directory`, in place, to `dtype` (`BF16` or `F32`).

    Shards keep their names. Returns the sha256 of the rewritten files by name. Raises InvalidSource when a weight is
    not finite in the new dtype.
    """
    hashes = {}
    paths = sorted(directory.glob("*.safetensors"))
    for number, path in enumerate(paths):
        progress(number / len(paths), f"converting {path.name} to {dtype.lower()}")
        converted = path.with_name(path.name + ".converted")
        hashes[path.name] = rewrite(path, converted, dtype, {})
        converted.replace(path)
    if (directory / INDEX).exists():
        _write_index(directory, {path.name: read_header(path) for path in paths})
    set_config_dtype(directory / "config.json", dtype)
    return hashes


def rewrite(path: Path, target: Path, dtype: str, names: Mapping[str, str]) -> str:
    """Write the tensors of the file `path` to `target`, floating ones as `dtype`, by their new `names` where they have
    one; returns its sha256. Raises InvalidSource when a weight is not finite in that dtype."""
    old = {names.get(tensor.name, tensor.name): tensor for tensor in read_header(path)}
    new = [
        replace(tensor, name=name, dtype=dtype if tensor.dtype in FLOATS else tensor.dtype)
        for name, tensor in old.items()
    ]
    with safe_open(path, framework="pt") as weights:
        convert = partial(_converted, weights.get_tensor, DTYPES[dtype])
        return write_file(target, new, lambda name: convert(old[name].name), {"format": "pt"})


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


def _report(model: Skeleton, outliers: dict[str, torch.Tensor], tokens: int) -> dict[str, object]:
    layers = {
        linear.module: {
            "outlier_columns": len(outliers[linear.module]),
            "share": round(len(outliers[linear.module]) / linear.in_features, 6),
        }
        for linear in model.linears.values()
    }
    return {"method": "llm-int8", "threshold": THRESHOLD, "calibration_tokens": tokens, "layers": layers}


@dataclass(frozen=True, slots=True, eq=False)
class _Planned:
    """One tensor to write, the tensor it comes from, and the file that holds that one; of a linear layer's also its
    outlier columns, if it has any."""

    tensor: Tensor
    source: str
    path: Path
    linear: skeleton.Linear | None = None
    outliers: torch.Tensor | None = None


def _plan(source: Path, model: Skeleton, outliers: dict[str, torch.Tensor]) -> list[_Planned]:
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
            planned += _linear(name, tensor, path, model.linears[name], outliers)
        else:
            dtype = "BF16" if tensor.dtype in FLOATS else tensor.dtype
            planned.append(_Planned(Tensor(name, dtype, tensor.shape), tensor.name, path))
        if name in heads:
            planned += _linear(heads[name], tensor, path, model.linears[heads[name]], outliers)
    return planned


def _linear(
    name: str, tensor: Tensor, path: Path, linear: skeleton.Linear, outliers: dict[str, torch.Tensor]
) -> list[_Planned]:
    shape = (linear.out_features, linear.in_features)
    if tensor.shape != (shape[::-1] if linear.transposed else shape):
        raise InvalidSource(f"{tensor.name} has the shape {list(tensor.shape)}; config.json says {list(shape)}")
    columns = outliers.get(linear.module)
    columns = None if columns is None or not len(columns) else columns
    tensors = [Tensor(name, "I8", shape), Tensor(name + SCALE_SUFFIX, "F32", shape[:1])]
    if columns is not None:
        module = name.removesuffix(".weight")
        tensors.append(Tensor(module + COLUMNS_SUFFIX, "I32", (len(columns),)))
        tensors.append(Tensor(module + KEPT_SUFFIX, "BF16", (shape[0], len(columns))))
    return [_Planned(each, tensor.name, path, linear, columns) for each in tensors]


class _Quantizer:
    """Gives the bytes of planned tensors by name. What else a layer has is asked for right after its weight, and kept
    until then."""

    def __init__(self, plan: list[_Planned]) -> None:
        self._plan = {item.tensor.name: item for item in plan}
        self._kept: dict[str, torch.Tensor] = {}

    def __call__(self, name: str) -> memoryview:
        item = self._plan[name]
        if item.linear is None:
            return _converted(partial(_read, item.path), torch.bfloat16, item.source)
        if name in self._kept:
            return _bytes(self._kept.pop(name))
        weight = _finite(item.source, _read(item.path, item.source))
        weight = weight.T if item.linear.transposed else weight
        if item.outliers is not None:
            module, columns = name.removesuffix(".weight"), item.outliers.long()
            self._kept[module + COLUMNS_SUFFIX] = item.outliers
            self._kept[module + KEPT_SUFFIX] = weight[:, columns].to(torch.bfloat16)
            weight = weight.index_fill(1, columns, 0)
        values, self._kept[name + SCALE_SUFFIX] = quantize_rows(weight)
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
    """One list when all fit in `single` bytes, else lists of about `size` bytes; what a weight has stays with it."""
    if sum(tensor.bytes for tensor in tensors) <= single:
        return [tensors]
    shards: list[list[Tensor]] = [[]]
    for tensor in tensors:
        full = sum(other.bytes for other in shards[-1]) + tensor.bytes > size
        if full and shards[-1] and not tensor.name.endswith((SCALE_SUFFIX, COLUMNS_SUFFIX, KEPT_SUFFIX)):
            shards.append([])
        shards[-1].append(tensor)
    return shards


def _write_index(directory: Path, shards: dict[str, list[Tensor]]) -> None:
    index: dict[str, object] = {
        "metadata": {"total_size": sum(tensor.bytes for shard in shards.values() for tensor in shard)},
        "weight_map": {tensor.name: name for name, shard in shards.items() for tensor in shard},
    }
    (directory / INDEX).write_text(as_text(index))


def _facts(parent: Manifest, precision: Precision, plan: list[_Planned], author: str) -> Facts:
    linears = sum(1 for item in plan if item.tensor.dtype == "I8" and item.linear)
    fused = sum(1 for item in plan if item.linear is None and len(item.tensor.shape) == 3)
    recipe = f"{linears} linear weights to int8, symmetric per output channel, round to nearest; the rest bf16"
    if precision == "llm-int8":
        kept = sum(item.tensor.shape[0] for item in plan if item.tensor.name.endswith(COLUMNS_SUFFIX))
        recipe += f"; {kept} outlier columns of magnitude {THRESHOLD:g} or more kept in bf16"
    if fused:
        recipe += f"; {fused} fused expert tensors left in bf16"
    tools = tuple(f"{package} {installed(package)}" for package in ("torch", "transformers"))
    lineage = Lineage(parent.lineage.source, parent.reference, parent.digest, recipe, tools, author)
    return Facts(
        architecture=parent.architecture,
        model_type=parent.model_type,
        precision=precision,
        dtype="BF16",
        context_window=parent.context_window,
        vocab_size=parent.vocab_size,
        parameters=parent.parameters,
        license=parent.license,
        lineage=lineage,
    )
