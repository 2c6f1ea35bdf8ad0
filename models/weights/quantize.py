"""This module converts a version to a new one with 8-bit or 4-bit linear layers.

An 8-bit version stores, for `service.engine.runner`:

    <module>.weight        int8     [out_features, in_features], also for GPT-2's Conv1D (transposed here) and for a
                                    tied output head. `llm-int8` holds a floating embedding beside such a head; in the
                                    others the embedding reads the head's rows
    <module>.weight_scale  float32  [out_features]; weight ~ int8 * scale, scale = largest magnitude of the row / 127,
                                    1 for a row of zeros; the error of a weight is at most scale / 2
    <module>.hadamard      int32    [1], of `int8`, `int8-weight` and `int4`: the block of the Hadamard transform that
                                    the weights have passed, as their inputs do when they are multiplied
                                    (`models.weights.hadamard`)
    <module>.outlier_columns  int32 [n], `llm-int8` alone: the input columns that stay in 16 bits; 0 in <module>.weight
    <module>.outlier_weight   bf16  [out_features, n], their weights
    everything else        bf16     embeddings, norms, biases, routers, fused tensors of unknown experts

Experts of known families (`models.weights.experts`) are linear layers too, each with a weight of its own, also where
the source's files hold all experts of a layer in one tensor.

`int8` and `int8-weight` differ in the treatment of rows at run time, not in the stored files. An `llm-int8` version has
a `quantization.json`: threshold, text, and the number of outlier columns of every layer.

An `int4` version stores most layers in 4 bits (`models.weights.int4`):

    <module>.weight        uint8    [out_features, in_features / 2]
    <module>.weight_scale  float32  [out_features], as above: of the 8-bit weights that the codes stand for
    <module>.group_scale   uint8    [out_features, in_features / group]
    <module>.group_base    int8     [out_features, in_features / group]

The output head stays in 8 bits. So does a layer that would lose much, and one whose inputs are no whole groups. All
experts of a layer have the same bits (`models.weights.quantization_plan`). The `quantization.json` of the version has
the bits and the error of every layer.

The files' metadata says `format: dosirak-int8`. transformers does not look at that and would take the codes for
weights, so only `service.engine.runner` may load such a version. Tensors are read and written one at a time
(`models.weights.conversion`).
"""

import shutil
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch

from models.checkpoint.config_policy import as_text
from models.checkpoint.safetensors_file import INDEX
from models.errors import InvalidSource
from models.manifest import HADAMARD, Manifest, Precision, precision_of
from models.progress import Progress, silent
from models.repository.repository import Repository
from models.weights import fit, skeleton
from models.weights.calibration import THRESHOLD, Calibrate, TokenIds, mean_squares, outlier_columns, second_moments
from models.weights.conversion import (
    QUANTIZED_FORMAT,
    bytes_of,
    converted,
    finite,
    read,
    set_config_dtype,
    write_shards,
)
from models.weights.experts import Expert
from models.weights.forms import WEIGHT, FourBits, Inputs
from models.weights.hadamard import BLOCK
from models.weights.int4 import GROUPS
from models.weights.names import COLUMNS_SUFFIX
from models.weights.quantization_plan import Planned, block_of, part_of, plan_of, weight_of
from models.weights.skeleton import Skeleton
from models.weights.targets import require_target

REPORT = "quantization.json"
_TOKENS = 1_400
_TOKENS_OF_INT4 = 12_000
"""Tokens of text that precisions are calibrated on; 4 bits gain by more."""


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

    `llm-int8` finds its outliers on the texts that `calibrate` gives. `int8`, `int8-weight` and `int4` round by GPTQ on
    these texts, or to the nearest code without texts and for encoder-decoder models. `group_size` weights of `int4`
    share a scale, 32 if it is None. Experts in 4 bits, and weights that were in 4 bits before, pass no transform; their
    errors are weighed by the inputs on the texts.

    The parent is read with a lease, and checked first. Raises NotFound and Corrupt for the parent, Conflict for a
    parent or precision that this cannot be done with, InvalidSource when a weight is not finite, for `llm-int8` without
    a text, or for a `group_size` that there is not.
    """
    target = precision_of(precision)
    require_target(parent, target, group_size)
    group = _group_size(target, group_size)
    with repository.lease(parent), repository.stage() as staged:
        repository.verify(parent)
        source = repository.path(parent)
        model = skeleton.build(source)
        fit.check_tensors(source, model)
        fit.require_tied(source, model)
        has_use = target == "llm-int8" or not model.is_encoder_decoder
        calibration = calibrate(source, parent.context_window) if calibrate and has_use else ()
        stored = fit.stored_in(source, model)
        inputs = _measured(source, model, target, block_of(stored, model, target, group), calibration, progress)
        for file in parent.files:
            if not file.path.endswith(".safetensors") and file.path != INDEX:
                shutil.copyfile(source / file.path, staged / file.path)
        set_config_dtype(staged / "config.json", "BF16")
        plan = plan_of(stored, model, inputs, group, progress, target)
        quantizer = _Quantizer(plan, inputs, progress)
        hashes = write_shards(staged, [item.tensor for item in plan], quantizer, progress, QUANTIZED_FORMAT)
        if target == "llm-int8":
            (staged / REPORT).write_text(as_text(_outlier_report(model, inputs)))
        if target == "int4":
            (staged / REPORT).write_text(as_text(_error_report(plan, group, quantizer.errors, inputs.tokens)))
        recipe = _recipe(target, plan, group, inputs)
        facts = parent.derived(recipe, author, precision=target, dtype="BF16")
        return repository.publish(staged, facts, parent.name, version, hashes)


def _measured(
    source: Path, model: Skeleton, target: Precision, block: int, texts: TokenIds, progress: Progress
) -> Inputs:
    texts = _first(texts, _TOKENS_OF_INT4 if target == "int4" else _TOKENS)
    tokens = sum(len(text) for text in texts)
    if target == "llm-int8":
        if not texts:
            raise InvalidSource("llm-int8 needs a text to find outliers on, and memory to run the bf16 version")
        progress(0.0, "looking for outliers")
        return Inputs(tokens, block, outliers=outlier_columns(source, model.linears, texts, THRESHOLD))
    if not texts:
        return Inputs(0, block)
    progress(0.0, "measuring the inputs of the layers")
    modules, mixtures = [linear.module for linear in model.linears.values()], _mixtures(model)
    if block == 1:
        return Inputs(tokens, block, importance=mean_squares(source, [*modules, *mixtures], texts))
    moments = second_moments(source, modules, texts, block)
    weighed = mean_squares(source, mixtures, texts) if target == "int4" and mixtures else {}
    return Inputs(tokens, block, importance=weighed, moments=moments)


def _first(texts: TokenIds, tokens: int) -> TokenIds:
    """Returns as many of the first texts as have so many tokens, the last one whole."""
    counts = accumulate(len(text) for text in texts)
    return [text for text, count in zip(texts, counts, strict=True) if count - len(text) < tokens]


def _group_size(precision: Precision, group_size: int | None) -> int:
    """Returns the group size of `int4`; 0 for other precisions."""
    if precision != "int4":
        return 0
    if group_size is not None and group_size not in GROUPS:
        raise InvalidSource(f"There is no group size {group_size}; choose one of {', '.join(map(str, GROUPS))}")
    return group_size or GROUPS[0]


def _outlier_report(model: Skeleton, inputs: Inputs) -> dict[str, object]:
    outliers = inputs.outliers
    layers = {
        linear.module: {
            "outlier_columns": len(outliers[linear.module]),
            "share": round(len(outliers[linear.module]) / linear.in_features, 6),
        }
        for linear in model.linears.values()
    }
    return {"method": "llm-int8", "threshold": THRESHOLD, "calibration_tokens": inputs.tokens, "layers": layers}


def _error_report(plan: list[Planned], group: int, errors: dict[str, float], tokens: int) -> dict[str, object]:
    bits = {item.linear.module: 4 if isinstance(item.form, FourBits) else 8 for item in plan if item.linear}
    layers = {
        module: {"bits": bits[module], **({"error": float(f"{errors[module]:.3g}")} if module in errors else {})}
        for module in bits
    }
    return {"method": "int4", "group_size": group, "calibration_tokens": tokens, "layers": layers}


class _Quantizer:
    """Gives the bytes of planned tensors by name. What else a layer has is asked for right after its weight, and kept
    until then. `errors` has those of 4-bit layers by module."""

    def __init__(self, plan: list[Planned], inputs: Inputs, progress: Progress) -> None:
        self.errors: dict[str, float] = {}
        self._plan = {item.tensor.name: item for item in plan}
        self._inputs = inputs
        self._kept: dict[str, torch.Tensor] = {}
        self._progress = progress
        self._bytes, self._written = sum(item.tensor.bytes for item in plan), 0

    def __call__(self, name: str) -> memoryview:
        item = self._plan[name]
        if item.linear is not None:
            self._progress(self._written / self._bytes, f"rounding {item.linear.module}")
        self._written += item.tensor.bytes
        if item.expert is not None:
            return bytes_of(finite(name, part_of(item.source, item.path, item.expert).bias.to(torch.bfloat16)))
        if item.linear is None or item.form is None:
            return converted(partial(read, item.path), torch.bfloat16, item.source)
        if name not in self._kept:
            made = item.form.made(weight_of(item.source, item.path, item.linear), item.linear, self._inputs)
            module = name.removesuffix(WEIGHT)
            self._kept |= {module + suffix: tensor for suffix, tensor in made.tensors.items()}
            if made.error is not None:
                self.errors[item.linear.module] = made.error
        return bytes_of(self._kept.pop(name))


def _mixtures(model: Skeleton) -> list[str]:
    """Returns the modules of the mixtures of experts."""
    parts = (Expert.of_name(linear.module) for linear in model.experts.values())
    return list(dict.fromkeys(part.module for part in parts if part))


def _recipe(precision: Precision, plan: list[Planned], group: int, inputs: Inputs) -> str:
    """Returns in words what was done."""
    weights = [item for item in plan if item.linear and item.tensor.name.endswith(WEIGHT)]
    coarse = sum(isinstance(item.form, FourBits) for item in weights)
    linears = len(weights) - coarse
    fused = sum(1 for item in plan if item.linear is None and len(item.tensor.shape) == 3)
    has_experts = any(item.linear and Expert.of_name(item.linear.module) for item in weights)
    tokens, transform = inputs.tokens, f"inputs and weights by a Hadamard transform in blocks of {inputs.block}"
    by_gptq = f"rounded by GPTQ in blocks of {inputs.block} on {tokens} tokens"
    rounding = "round to nearest"
    if inputs.moments:
        rounding = by_gptq + (", those of experts to the nearest" if has_experts else "")
    recipe = f"{linears} linear weights to int8, symmetric per output channel, {rounding}; the rest bf16"
    if precision == "int4":
        weighed = f"weighed by the inputs on {tokens} tokens" if tokens else "all inputs alike"
        least = f"of the least error, {weighed}"
        if inputs.moments:
            least = by_gptq + (f", those of experts {least}" if has_experts else "")
        recipe = f"{coarse} linear weights to int4 in groups of {group}, {least}; {recipe}"
    if inputs.block > 1:
        recipe += f"; {transform}"
    elif precision in HADAMARD:
        recipe += f"; the head's behind a Hadamard transform in blocks of {BLOCK}; weights that were in 4 bits before"
    if precision == "llm-int8":
        kept = sum(item.tensor.shape[0] for item in plan if item.tensor.name.endswith(COLUMNS_SUFFIX))
        recipe += f"; {kept} outlier columns of magnitude {THRESHOLD:g} or more kept in bf16"
    if fused:
        recipe += f"; {fused} fused expert tensors left in bf16"
    return recipe
