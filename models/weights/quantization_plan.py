"""The plan of a quantized version says what it stores of each tensor: as it is, in 8 bits or in 4.

`models.weights.quantize` writes it. Nothing but headers is read, except for `int4`: there a sample of each layer's
weights says what the layer would lose in 4 bits.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from models.checkpoint.safetensors_file import FLOATS, Tensor
from models.errors import Conflict, InvalidSource
from models.manifest import HADAMARD
from models.progress import Progress
from models.weights import skeleton
from models.weights.conversion import finite, read
from models.weights.experts import Expert
from models.weights.fit import Stored
from models.weights.forms import WEIGHT, EightBits, Form, FourBits, Inputs
from models.weights.gptq import loss_of
from models.weights.hadamard import BLOCK, of_weights
from models.weights.int4 import encode, error_of, fits, rough_error, roughly, sampled
from models.weights.int8 import row_scale
from models.weights.skeleton import Skeleton

_BIAS = "_bias"
SENSITIVE = 3.0
"""Times the error of the median layer from which on a layer stays in 8 bits."""
_ON_STEPS = 1e-3
"""The error of 4-bit weights, as a share of their squares, up to which they were in 4 bits before: rounding to 8 bits
gives 1e-4, and weights that nobody rounded lose 6e-3 in groups of 32."""
_LAYERS, _OUTPUTS = 8, 64
"""What is looked at for that."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """One tensor to write, the tensor it comes from, and the file that holds that one; of a linear layer's tensors also
    the layer and its form. `expert` is one whose bias the tensor is."""

    tensor: Tensor
    source: str
    path: Path
    linear: skeleton.Linear | None = None
    form: Form | None = None
    expert: Expert | None = None


def plan_of(
    stored: Stored, model: Skeleton, inputs: Inputs, group: int, progress: Progress, precision: str
) -> list[Planned]:
    """Every tensor of the new version, in the order of the old files. An omitted tied head follows its embedding, or
    stands in its place where the version holds one of them."""
    outliers, block = inputs.outliers, inputs.block
    one_head, of_head = model.has_one_head(precision), BLOCK if precision in HADAMARD else 1
    heads = {embedding: head for head, embedding in model.tied.items() if one_head or head not in stored}
    coarse = _coarse(stored, model, group, inputs, progress) if group else frozenset()
    planned: list[Planned] = []
    coded, fused = model.coded, _fused(model)
    for name, (tensor, path) in stored.items():
        if name in coded:
            if name not in heads.values():  # such a head is made of the embedding
                is_head = coded[name].out_features == model.vocab_size
                of_layer = of_head if is_head else block
                planned += _linear(name, tensor, path, coded[name], outliers, group if name in coarse else 0, of_layer)
        elif name in fused:
            for part in fused[name]:
                planned += _linear(part, tensor, path, coded[part], outliers, group if part in coarse else 0, block)
        elif name.removesuffix(_BIAS) in fused:
            planned += _biases(tensor, path, [coded[part] for part in fused[name.removesuffix(_BIAS)]])
        elif not (one_head and name in heads):
            dtype = "BF16" if tensor.dtype in FLOATS else tensor.dtype
            planned.append(Planned(Tensor(name, dtype, tensor.shape), tensor.name, path))
        if name in heads:
            planned += _linear(heads[name], tensor, path, model.linears[heads[name]], outliers, 0, of_head)
    return planned


def block_of(stored: Stored, model: Skeleton, precision: str, group: int) -> int:
    """Returns the block of the Hadamard transform that a version's layers pass. Weights that were in 4 bits before pass
    none for `int4`, which finds their steps again."""
    if precision not in HADAMARD:
        return 1
    return 1 if precision == "int4" and _is_on_steps(stored, model, group) else BLOCK


def _is_on_steps(stored: Stored, model: Skeleton, group: int) -> bool:
    layers = _divisible(stored, model, group)
    errors = []
    for name in list(layers)[:: max(1, len(layers) // _LAYERS)]:
        weight = _weight(stored, layers[name], name)
        some = weight[sampled(weight, _OUTPUTS)]
        errors.append(error_of(encode(some, row_scale(some), group), some, row_scale(some)))
    return bool(errors) and statistics.median(errors) < _ON_STEPS


def _divisible(stored: Stored, model: Skeleton, group: int) -> dict[str, skeleton.Linear]:
    """Returns the stored layers, by the names of their weights, whose inputs are whole groups; the head is none."""
    return {
        name: linear
        for name, linear in model.coded.items()
        if linear.out_features != model.vocab_size
        and (linear.fused or name) in stored
        and fits(linear.in_features, group)
    }


def _weight(stored: Stored, linear: skeleton.Linear, name: str) -> torch.Tensor:
    tensor, path = stored[linear.fused or name]
    return weight_of(tensor.name, path, linear)


def _fused(model: Skeleton) -> dict[str, list[str]]:
    """Returns the names of the weights that lie in one fused tensor of experts, by its name."""
    found: dict[str, list[str]] = {}
    for name, linear in model.experts.items():
        if linear.fused:
            found.setdefault(linear.fused, []).append(name)
    return found


def _biases(tensor: Tensor, path: Path, linears: list[skeleton.Linear]) -> list[Planned]:
    """Returns the biases of experts that lie in one fused tensor."""
    return [
        Planned(
            Tensor(f"{linear.module}.bias", "BF16", (linear.out_features,)),
            tensor.name,
            path,
            expert=Expert.of_name(linear.module),
        )
        for linear in linears
    ]


def _coarse(
    stored: Stored,
    model: Skeleton,
    group: int,
    inputs: Inputs,
    progress: Progress,
) -> frozenset[str]:
    """Returns the linear layers, by the names of their weights, that become 4-bit."""
    errors: dict[str, dict[str, float]] = {}  # by what is decided together, and weight
    layers = _divisible(stored, model, group)
    for number, (name, linear) in enumerate(layers.items()):
        progress(number / len(layers), f"looking at {linear.module}")
        expert = Expert.of_name(linear.module)
        found = _rough_loss(_weight(stored, linear, name), group, inputs, linear)
        errors.setdefault(expert.fused if expert else name, {})[name] = found
    if not errors:
        raise Conflict(f"no layer has inputs in groups of {group}; choose another group_size, or int8")
    means = {together: statistics.mean(each.values()) for together, each in errors.items()}
    usual = statistics.median(means.values())
    return frozenset(name for together in errors for name in errors[together] if means[together] <= SENSITIVE * usual)


def _rough_loss(weight: torch.Tensor, group: int, inputs: Inputs, linear: skeleton.Linear) -> float:
    """Returns what a layer loses in 4 bits without a search, as a share of the squares of its outputs."""
    if inputs.block == 1 or Expert.of_name(linear.module):
        return rough_error(weight, row_scale(weight), group, inputs.importance_of(linear))
    mixed, moments = of_weights(weight[sampled(weight)], inputs.block), inputs.moments.get(linear.module)
    if moments is None:
        return rough_error(mixed, row_scale(mixed), group)
    return loss_of(roughly(mixed, row_scale(mixed), group), mixed, inputs.block, moments)


def _linear(
    name: str,
    tensor: Tensor,
    path: Path,
    linear: skeleton.Linear,
    outliers: dict[str, torch.Tensor],
    group: int,
    block: int,
) -> list[Planned]:
    shape = (linear.out_features, linear.in_features)
    if not linear.fused and tensor.shape != (shape[::-1] if linear.transposed else shape):
        raise InvalidSource(f"{tensor.name} has the shape {list(tensor.shape)}; config.json says {list(shape)}")
    columns = outliers.get(linear.module)
    form: Form = EightBits(block)
    if group:
        form = FourBits(group, 1 if Expert.of_name(linear.module) else block)
    elif columns is not None and len(columns):
        form = EightBits(block, columns)
    tensors = form.tensors(name.removesuffix(WEIGHT), shape)
    return [Planned(each, tensor.name, path, linear, form) for each in tensors]


def weight_of(name: str, path: Path, linear: skeleton.Linear) -> torch.Tensor:
    """Returns a linear layer's weight [out, in] in its own dtype."""
    expert = Expert.of_name(linear.module)
    if expert and linear.fused:
        return finite(linear.module, part_of(name, path, expert).weight)
    weight = finite(name, read(path, name))
    return weight.T if linear.transposed else weight


def part_of(name: str, path: Path, expert: Expert) -> Any:
    """Returns an expert's part as `weight` or `bias`, of the fused tensor `name` of all weights or biases."""
    fused = read(path, name)
    return expert.of_fused(lambda suffix: fused if name.endswith(suffix) else None, transposed=True, in_turn=True)
