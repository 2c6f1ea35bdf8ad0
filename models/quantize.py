"""This module converts a version to a new one with 8-bit or 4-bit linear layers.

An 8-bit version stores, for `service.runner`:

    <module>.weight        int8     [out_features, in_features], also for GPT-2's Conv1D (transposed here) and for a
                                    tied output head, which gets a weight of its own; the embedding stays floating
    <module>.weight_scale  float32  [out_features]; weight ~ int8 * scale, scale = largest magnitude of the row / 127,
                                    1 for a row of zeros; the error of a weight is at most scale / 2
    <module>.outlier_columns  int32 [n], `llm-int8` alone: the input columns that stay in 16 bits; 0 in <module>.weight
    <module>.outlier_weight   bf16  [out_features, n], their weights
    everything else        bf16     embeddings, norms, biases, routers, fused tensors of unknown experts

Experts of known families (`models.experts`) are linear layers too, each with a weight of its own, also where the
source's files hold all experts of a layer in one tensor.

`int8` and `int8-weight` differ in the treatment of rows at run time, not in the stored files. An `llm-int8` version has
a `quantization.json`: threshold, text, and the number of outlier columns of every layer.

An `int4` version stores most layers in 4 bits (`models.int4`):

    <module>.weight        uint8    [out_features, in_features / 2]
    <module>.weight_scale  float32  [out_features], as above: of the 8-bit weights that the codes stand for
    <module>.group_scale   uint8    [out_features, in_features / group]
    <module>.group_base    int8     [out_features, in_features / group]

The output head stays in 8 bits. So does a layer that would lose SENSITIVE times as much as the median layer, and one
whose inputs are no multiple of the group. All experts of a layer
have the same bits. The `quantization.json` of the version has the bits and the error of every layer.

The files' metadata says `format: dosirak-int8`. transformers does not look at that and would take the codes for
weights, so only `service.runner` may load such a version. Tensors are read and written one at a time
(`models.conversion`).
"""

import shutil
import statistics
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import torch

from models import skeleton
from models.calibration import THRESHOLD, Calibrate, mean_squares, outlier_columns
from models.checkpoint.config_policy import as_text
from models.checkpoint.safetensors_file import FLOATS, INDEX, Tensor, read_header
from models.conversion import QUANTIZED_FORMAT, bytes_of, converted, finite, read, set_config_dtype, write_shards
from models.errors import Conflict, InvalidSource
from models.experts import Expert
from models.int4 import GROUPS, encode, error_of, fits, rough_error
from models.loading import COLUMNS_SUFFIX, GROUP_BASE_SUFFIX, GROUP_SCALE_SUFFIX, KEPT_SUFFIX, SCALE_SUFFIX
from models.manifest import QUANTIZED, Facts, Lineage, Manifest, Precision, precision_of
from models.progress import Progress, silent
from models.repository import Repository
from models.skeleton import Skeleton

_BIAS = "_bias"
SENSITIVE = 3.0
"""Times the error of the median layer from which on a layer stays in 8 bits."""
REPORT = "quantization.json"


def quantize(
    repository: Repository,
    parent: Manifest,
    precision: str = "int8",
    version: str | None = None,
    author: str = "",
    progress: Progress = silent,
    calibrate: Calibrate | None = None,
    group_size: int | None = None,
) -> Manifest:
    """Publish a new version of `parent` with its linear layers in 8 or 4 bits; the parent must be bf16 or fp32.

    `llm-int8` finds its outliers on the texts that `calibrate` gives. `int4` weighs errors by the inputs on these
    texts, or equally without texts and for encoder-decoder models; `group_size` weights share a scale, 32 if it is
    None.

    Raises Conflict for a parent or precision that this cannot be done with, InvalidSource when a weight is not finite,
    for `llm-int8` without a text, or for a `group_size` that there is not.
    """
    wanted = precision_of(precision)
    if parent.has_adapter:
        raise Conflict(
            f"{parent.reference} has an adapter: quantize its base, {parent.lineage.parent}, then import the adapter "
            "with that as adapter_of"
        )
    if wanted not in QUANTIZED or parent.precision in QUANTIZED:
        raise Conflict(
            f"{parent.reference} is {parent.precision} and cannot become {precision}; 8-bit and 4-bit versions are "
            "made from bf16"
        )
    source = repository.path(parent)
    model = skeleton.build(source)
    group = _group_size(wanted, group_size)
    outliers: dict[str, torch.Tensor] = {}
    importance: dict[str, torch.Tensor] = {}
    has_use = wanted == "llm-int8" or (wanted == "int4" and not model.is_encoder_decoder)
    calibration = calibrate(source, parent.context_window) if calibrate and has_use else ()
    if wanted == "llm-int8":
        if not calibration:
            raise InvalidSource("llm-int8 needs a text to find outliers on, and memory to run the bf16 version")
        progress(0.0, "looking for outliers")
        outliers = outlier_columns(source, model.linears, calibration, THRESHOLD)
    if wanted == "int4" and calibration:
        progress(0.0, "measuring the inputs of the layers")
        importance = mean_squares(source, _inputs_of(model), calibration)
    with repository.stage() as staged:
        for file in parent.files:
            if not file.path.endswith(".safetensors") and file.path != INDEX:
                shutil.copyfile(source / file.path, staged / file.path)
        set_config_dtype(staged / "config.json", "BF16")
        plan = _plan(source, model, outliers, group, importance, progress)
        quantizer = _Quantizer(plan, importance)
        hashes = write_shards(staged, [item.tensor for item in plan], quantizer, progress, QUANTIZED_FORMAT)
        tokens = sum(len(text) for text in calibration)
        if wanted == "llm-int8":
            (staged / REPORT).write_text(as_text(_outlier_report(model, outliers, tokens)))
        if wanted == "int4":
            (staged / REPORT).write_text(as_text(_error_report(plan, group, quantizer.errors, tokens)))
        facts = _facts(parent, wanted, plan, group, tokens, author)
        return repository.publish(staged, facts, parent.name, version, hashes)


def _group_size(precision: Precision, wanted: int | None) -> int:
    """Returns the group size of `int4`; 0 for other precisions."""
    if precision != "int4":
        if wanted is not None:
            raise InvalidSource(f"{precision} has no groups; leave group_size out, or choose int4")
        return 0
    if wanted is not None and wanted not in GROUPS:
        raise InvalidSource(f"There is no group size {wanted}; choose one of {', '.join(map(str, GROUPS))}")
    return wanted or GROUPS[0]


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] floating → (int8 [out, in], float32 scale [out]), per row; |weight - int8 * scale| <= scale / 2."""
    scale = row_scale(weight)
    return torch.round(weight.float() / scale[:, None]).clamp_(-127, 127).to(torch.int8), scale


def row_scale(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] floating → float32 [out]: a 127th of each row's largest magnitude; 1 for a row of zeros."""
    scale = weight.abs().amax(dim=1).float() / 127
    return torch.where(scale < torch.finfo(torch.float32).tiny, torch.ones_like(scale), scale)


def _outlier_report(model: Skeleton, outliers: dict[str, torch.Tensor], tokens: int) -> dict[str, object]:
    layers = {
        linear.module: {
            "outlier_columns": len(outliers[linear.module]),
            "share": round(len(outliers[linear.module]) / linear.in_features, 6),
        }
        for linear in model.linears.values()
    }
    return {"method": "llm-int8", "threshold": THRESHOLD, "calibration_tokens": tokens, "layers": layers}


def _error_report(plan: list["_Planned"], group: int, errors: dict[str, float], tokens: int) -> dict[str, object]:
    bits = {item.linear.module: 4 if item.group else 8 for item in plan if item.linear}
    layers = {
        module: {"bits": bits[module], **({"error": float(f"{errors[module]:.3g}")} if module in errors else {})}
        for module in bits
    }
    return {"method": "int4", "group_size": group, "calibration_tokens": tokens, "layers": layers}


@dataclass(frozen=True, slots=True, eq=False)
class _Planned:
    """One tensor to write, the tensor it comes from, and the file that holds that one; of a linear layer's weights also
    its outlier columns, if it has any, and the group of its 4-bit weights; 0 for 8 bits. `expert` is one whose bias
    the tensor is."""

    tensor: Tensor
    source: str
    path: Path
    linear: skeleton.Linear | None = None
    outliers: torch.Tensor | None = None
    group: int = 0
    expert: Expert | None = None


def _plan(
    source: Path,
    model: Skeleton,
    outliers: dict[str, torch.Tensor],
    group: int,
    importance: dict[str, torch.Tensor],
    progress: Progress,
) -> list[_Planned]:
    """Every tensor of the new version, in the order of the old files; an omitted tied head follows its embedding."""
    stored = {
        model.canonical(tensor.name): (tensor, path)
        for path in sorted(source.glob("*.safetensors"))
        for tensor in read_header(path)
    }
    heads = {embedding: head for head, embedding in model.tied.items() if head not in stored}
    coarse = _coarse(stored, model, group, importance, progress) if group else frozenset()
    planned: list[_Planned] = []
    coded, fused = model.coded, _fused(model)
    for name, (tensor, path) in stored.items():
        if name in coded:
            planned += _linear(name, tensor, path, coded[name], outliers, group if name in coarse else 0)
        elif name in fused:
            for part in fused[name]:
                planned += _linear(part, tensor, path, coded[part], outliers, group if part in coarse else 0)
        elif name.removesuffix(_BIAS) in fused:
            planned += _biases(tensor, path, [coded[part] for part in fused[name.removesuffix(_BIAS)]])
        else:
            dtype = "BF16" if tensor.dtype in FLOATS else tensor.dtype
            planned.append(_Planned(Tensor(name, dtype, tensor.shape), tensor.name, path))
        if name in heads:
            planned += _linear(heads[name], tensor, path, model.linears[heads[name]], outliers, 0)
    return planned


def _fused(model: Skeleton) -> dict[str, list[str]]:
    """Returns the names of the weights that lie in one fused tensor of experts, by its name."""
    found: dict[str, list[str]] = {}
    for name, linear in model.experts.items():
        if linear.fused:
            found.setdefault(linear.fused, []).append(name)
    return found


def _biases(tensor: Tensor, path: Path, linears: list[skeleton.Linear]) -> list[_Planned]:
    """Returns the biases of experts that lie in one fused tensor."""
    return [
        _Planned(
            Tensor(f"{linear.module}.bias", "BF16", (linear.out_features,)),
            tensor.name,
            path,
            expert=Expert.of_name(linear.module),
        )
        for linear in linears
    ]


def _coarse(
    stored: dict[str, tuple[Tensor, Path]],
    model: Skeleton,
    group: int,
    importance: dict[str, torch.Tensor],
    progress: Progress,
) -> frozenset[str]:
    """Returns the linear layers, by the names of their weights, that become 4-bit."""
    errors: dict[str, dict[str, float]] = {}  # by what is decided together, and weight
    for number, (name, linear) in enumerate(model.coded.items()):
        is_head = linear.out_features == model.vocab_size
        held = linear.fused or name
        if is_head or held not in stored or not fits(linear.in_features, group):
            continue
        progress(number / len(model.coded), f"looking at {linear.module}")
        tensor, path = stored[held]
        weight = _weight(tensor.name, path, linear)
        expert = Expert.of_name(linear.module)
        found = rough_error(weight, row_scale(weight), group, _importance(importance, linear))
        errors.setdefault(expert.fused if expert else name, {})[name] = found
    if not errors:
        raise Conflict(f"no layer has inputs in groups of {group}; choose another group_size, or int8")
    means = {together: statistics.mean(each.values()) for together, each in errors.items()}
    usual = statistics.median(means.values())
    return frozenset(name for together in errors for name in errors[together] if means[together] <= SENSITIVE * usual)


def _inputs_of(model: Skeleton) -> list[str]:
    """Returns the modules whose inputs tell an importance: linear layers, and the mixtures of experts."""
    parts = (Expert.of_name(linear.module) for linear in model.experts.values())
    mixtures = dict.fromkeys(part.module for part in parts if part)
    return [*(linear.module for linear in model.linears.values()), *mixtures]


def _importance(found: dict[str, torch.Tensor], linear: skeleton.Linear) -> torch.Tensor | None:
    """Returns the importance of a layer's inputs; for gate and up of an expert it is that of the whole mixture's."""
    expert = Expert.of_name(linear.module)
    return found.get(linear.module if expert is None or expert.is_down else expert.module)


def _linear(
    name: str,
    tensor: Tensor,
    path: Path,
    linear: skeleton.Linear,
    outliers: dict[str, torch.Tensor],
    group: int,
) -> list[_Planned]:
    shape = (linear.out_features, linear.in_features)
    if not linear.fused and tensor.shape != (shape[::-1] if linear.transposed else shape):
        raise InvalidSource(f"{tensor.name} has the shape {list(tensor.shape)}; config.json says {list(shape)}")
    columns = outliers.get(linear.module)
    columns = None if columns is None or not len(columns) else columns
    module = name.removesuffix(".weight")
    scale = Tensor(module + SCALE_SUFFIX, "F32", shape[:1])
    tensors = [Tensor(name, "I8", shape), scale]
    if group:
        groups = (shape[0], shape[1] // group)
        tensors = [Tensor(name, "U8", (shape[0], shape[1] // 2)), scale]
        tensors += [Tensor(module + GROUP_SCALE_SUFFIX, "U8", groups), Tensor(module + GROUP_BASE_SUFFIX, "I8", groups)]
    if columns is not None:
        tensors.append(Tensor(module + COLUMNS_SUFFIX, "I32", (len(columns),)))
        tensors.append(Tensor(module + KEPT_SUFFIX, "BF16", (shape[0], len(columns))))
    return [_Planned(each, tensor.name, path, linear, columns, group) for each in tensors]


class _Quantizer:
    """Gives the bytes of planned tensors by name. What else a layer has is asked for right after its weight, and kept
    until then. `errors` has those of 4-bit layers by module."""

    def __init__(self, plan: list[_Planned], importance: dict[str, torch.Tensor]) -> None:
        self.errors: dict[str, float] = {}
        self._plan = {item.tensor.name: item for item in plan}
        self._importance = importance
        self._kept: dict[str, torch.Tensor] = {}

    def __call__(self, name: str) -> memoryview:
        item = self._plan[name]
        if item.expert is not None:
            return bytes_of(finite(name, _part(item.source, item.path, item.expert).bias.to(torch.bfloat16)))
        if item.linear is None:
            return converted(partial(read, item.path), torch.bfloat16, item.source)
        if name in self._kept:
            return bytes_of(self._kept.pop(name))
        weight, module = _weight(item.source, item.path, item.linear), name.removesuffix(".weight")
        if item.outliers is not None:
            columns = item.outliers.long()
            self._kept[module + COLUMNS_SUFFIX] = item.outliers
            self._kept[module + KEPT_SUFFIX] = weight[:, columns].to(torch.bfloat16)
            weight = weight.index_fill(1, columns, 0)
        if not item.group:
            values, self._kept[module + SCALE_SUFFIX] = quantize_rows(weight)
            return bytes_of(values)
        scale, importance = row_scale(weight), _importance(self._importance, item.linear)
        coded = encode(weight, scale, item.group, importance)
        self.errors[item.linear.module] = error_of(coded, weight, scale, importance)
        self._kept[module + SCALE_SUFFIX] = scale
        self._kept[module + GROUP_SCALE_SUFFIX] = coded.group_scale
        self._kept[module + GROUP_BASE_SUFFIX] = coded.group_base
        return bytes_of(coded.codes)


def _weight(name: str, path: Path, linear: skeleton.Linear) -> torch.Tensor:
    """Returns a linear layer's weight [out, in] in its own dtype."""
    expert = Expert.of_name(linear.module)
    if expert and linear.fused:
        return finite(linear.module, _part(name, path, expert).weight)
    weight = finite(name, read(path, name))
    return weight.T if linear.transposed else weight


def _part(name: str, path: Path, expert: Expert) -> Any:
    """Returns an expert's part as `weight` or `bias`, of the fused tensor `name` of all weights or biases."""
    fused = read(path, name)
    return expert.of_fused(lambda wanted: fused if name.endswith(wanted) else None, transposed=True, in_turn=True)


def _facts(parent: Manifest, precision: Precision, plan: list[_Planned], group: int, tokens: int, author: str) -> Facts:
    weights = [item for item in plan if item.linear and item.tensor.name.endswith(".weight")]
    linears, coarse = sum(1 for item in weights if not item.group), sum(1 for item in weights if item.group)
    fused = sum(1 for item in plan if item.linear is None and len(item.tensor.shape) == 3)
    recipe = f"{linears} linear weights to int8, symmetric per output channel, round to nearest; the rest bf16"
    if precision == "int4":
        weighed = f"weighed by the inputs on {tokens} tokens" if tokens else "all inputs alike"
        recipe = f"{coarse} linear weights to int4 in groups of {group}, of the least error, {weighed}; {recipe}"
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
