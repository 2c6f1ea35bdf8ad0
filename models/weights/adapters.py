"""This module checks PEFT's files of a LoRA adapter against a base model, and reads the two files that a version keeps.

    y = W x + scale * B (A x)      A [rank, in], B [out, rank]      (Hu et al. 2021)

    adapter_config.json        {"peft_type": "LORA", "modules": {<module>: {"rank": 8, "scale": 2.0}}}
    adapter_model.safetensors  <module>.lora_A.weight, <module>.lora_B.weight, in the dtype of the version

`scale` is resolved by module: alpha / rank, or alpha / sqrt(rank) with `use_rslora` (Kalajdzievski 2023). Every other
option of PEFT is refused by name. The module knows headers and numbers, but no tensors.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.checkpoint import config_policy
from models.checkpoint.safetensors_file import FLOATS, Tensor, read_header
from models.errors import InvalidSource
from models.manifest import ADAPTER_CONFIG, ADAPTER_FILES, ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from models.weights.skeleton import Skeleton

SIDES = ("lora_A", "lora_B")
_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.(?P<side>lora_A|lora_B)\.weight")
_COPY = re.compile(r"base_model\.model\.(?P<module>.+?)(?:\.base_layer)?\.weight")
_PATTERN = re.compile(r"(?:[\w.^$|-]|\\[.dw]|\[[\w-]+\]|[*+?]|\((?:\?:)?|\)(?![*+?{]))+")
_MOST_REPEATED = 3
"""Of a pattern of PEFT's, so that no foreign one takes long: no group is repeated, and a few characters are."""
_STARTS = frozenset({"gaussian", "eva", "orthogonal"})
"""Ways to begin training that do not change the base's weights."""

# Acted on here, or without effect on a trained adapter's answers.
# fmt: off
_UNDERSTOOD = frozenset({
    "peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "init_lora_weights", "bias",
    "fan_in_fan_out", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout",
    "base_model_name_or_path", "revision", "task_type", "inference_mode", "auto_mapping", "peft_version",
    "megatron_core", "qalora_group_size", "runtime_config", "corda_config", "eva_config", "loftq_config",
    "lora_ga_config",
})
_INSTEAD = {
    "use_dora": "train without DoRA",
    "modules_to_save": "train without modules_to_save, or merge the adapter and import the whole model",
    "lora_bias": "train with lora_bias=False",
    "layer_replication": "merge the adapter and import the whole model",
    "trainable_token_indices": "merge the adapter and import the whole model",
    "target_parameters": "train with target_modules: linear layers are adapted",
}
# fmt: on


@dataclass(frozen=True, slots=True)
class LowRank:
    """An adapter's addition to one linear module of its base. `scale` multiplies the product of both matrices."""

    module: str
    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class Checked:
    """PEFT's adapter as a version keeps it: its modules, sorted, and the stored name of each tensor by PEFT's. `copies`
    are weights of the base that PEFT saved again, with their names in the base."""

    modules: tuple[LowRank, ...]
    names: Mapping[str, str]
    copies: Mapping[str, str]
    recipe: str


def check(config: dict[str, object], tensors: Iterable[Tensor], base: "Skeleton") -> Checked:
    """Checks PEFT's `adapter_config.json` and the tensors beside it for a base model. Raises InvalidSource, which names
    the part that cannot be served and says what to change."""
    config_policy.refuse_dangerous(config, ADAPTER_CONFIG)
    if config.get("peft_type") != "LORA":
        raise InvalidSource(f"{ADAPTER_CONFIG}: peft_type {str(config.get('peft_type'))[:40]!r} is not served, LORA is")
    _refuse_what_is_not_served(config)
    names: dict[str, str] = {}
    sides: dict[str, dict[str, Tensor]] = {}
    copies: dict[str, str] = {}
    for tensor in tensors:
        copy = _COPY.fullmatch(tensor.name)
        if copy and (weight := base.canonical(f"{copy['module']}.weight")) in base.names:
            copies[tensor.name] = weight
            continue
        module, side = _place(tensor, base)
        sides.setdefault(module, {})[side] = tensor
        names[tensor.name] = tensor_name(module, side)
    if not sides:
        raise InvalidSource(f"{ADAPTER_WEIGHTS} holds no tensor")
    modules = tuple(_low_rank(module, sides[module], config, base) for module in sorted(sides))
    return Checked(modules, names, copies, _recipe(config, modules))


def as_text(modules: Iterable[LowRank]) -> str:
    """Returns the `adapter_config.json` that a version keeps."""
    described: dict[str, object] = {each.module: {"rank": each.rank, "scale": each.scale} for each in modules}
    return config_policy.as_text({"peft_type": "LORA", "modules": described})


def read(directory: Path) -> tuple[LowRank, ...]:
    """Returns the modules of a version's adapter. Raises InvalidSource for a config that no version would keep."""
    modules = config_policy.read_json(directory / ADAPTER_CONFIG).get("modules")
    try:
        items = modules.items() if isinstance(modules, dict) else ()
        found = tuple(LowRank(name, int(each["rank"]), float(each["scale"])) for name, each in items)
    except (KeyError, TypeError, ValueError):
        found = ()
    if not found or any(each.rank < 1 or not math.isfinite(each.scale) for each in found):
        raise InvalidSource(f"{ADAPTER_CONFIG} is not what a version keeps; import PEFT's again")
    return found


def check_kept(directory: Path, base: "Skeleton") -> None:
    """Checks that a version's two files exist and fit each other and its base. Raises InvalidSource."""
    missing = [name for name in sorted(ADAPTER_FILES) if not (directory / name).is_file()]
    if missing:
        raise InvalidSource(f"{missing[0]} is missing: an adapter is both of {' and '.join(sorted(ADAPTER_FILES))}")
    found = {tensor.name: tensor for tensor in read_header(directory / ADAPTER_WEIGHTS)}
    for each in read(directory):
        pair = {side: found.pop(tensor_name(each.module, side), None) for side in SIDES}
        present = {side: tensor for side, tensor in pair.items() if tensor is not None}
        if _rank(each.module, present, base) != each.rank:
            raise InvalidSource(f"{ADAPTER_CONFIG} gives {each.module[:80]} another rank than {ADAPTER_WEIGHTS}")
    if found:
        raise InvalidSource(f"{ADAPTER_WEIGHTS} holds {min(found)[:80]!r}, which {ADAPTER_CONFIG} does not name")


def tensor_name(module: str, side: str) -> str:
    """Returns the name of one of SIDES in a version's file."""
    return f"{module}.{side}.weight"


def _refuse_what_is_not_served(config: dict[str, object]) -> None:
    for key, instead in _INSTEAD.items():
        if config.get(key):
            raise InvalidSource(f"{ADAPTER_CONFIG} has {key!r}, which is not served: {instead}")
    if config.get("bias", "none") != "none":
        raise InvalidSource(f"{ADAPTER_CONFIG} has bias {str(config['bias'])[:40]!r}; train with bias='none'")
    start = config.get("init_lora_weights", True)
    if not isinstance(start, bool) and start not in _STARTS:
        raise InvalidSource(
            f"{ADAPTER_CONFIG} has init_lora_weights {str(start)[:40]!r}, which changes the base's weights: save the "
            "adapter with path_initial_model_for_weight_conversion, which makes it a plain one"
        )
    for key in sorted(config.keys() - _UNDERSTOOD - _INSTEAD.keys()):
        if config[key]:
            raise InvalidSource(f"{ADAPTER_CONFIG} has {key[:80]!r}, which is not served: train without it")


def _place(tensor: Tensor, base: "Skeleton") -> tuple[str, str]:
    """Returns the base's module and the side of one of PEFT's tensors."""
    match = _TENSOR.fullmatch(tensor.name)
    if match is None:
        raise InvalidSource(
            f"{ADAPTER_WEIGHTS} holds {tensor.name[:80]!r}; only the lora_A and lora_B of linear layers are served: "
            "train without embeddings, and save with save_embedding_layers=False"
        )
    if tensor.dtype not in FLOATS:
        raise InvalidSource(f"{tensor.name[:80]} is {tensor.dtype}; save the adapter in a floating dtype")
    weight = base.canonical(f"{match['module']}.weight")
    if weight not in base.linears:
        raise InvalidSource(f"The base has no linear layer {match['module'][:80]!r}; name the adapter's own base")
    return base.linears[weight].module, match["side"]


def _low_rank(module: str, sides: Mapping[str, Tensor], config: dict[str, object], base: "Skeleton") -> LowRank:
    rank = _rank(module, sides, base)
    told = _by_module(config, "rank_pattern", "r", module)
    if rank != told:
        raise InvalidSource(f"{module} has the rank {rank}; {ADAPTER_CONFIG} says {told:g}")
    alpha = _by_module(config, "alpha_pattern", "lora_alpha", module)
    return LowRank(module, rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _rank(module: str, sides: Mapping[str, Tensor], base: "Skeleton") -> int:
    """Returns the rank of one module; checks that its two matrices fit each other and the base's layer."""
    linear = base.linears.get(f"{module}.weight")
    if linear is None or set(sides) != set(SIDES):
        raise InvalidSource(f"{module[:80]} needs a linear layer in the base, a lora_A and a lora_B")
    a, b = sides["lora_A"].shape, sides["lora_B"].shape
    if len(a) != 2 or len(b) != 2 or not a[0] or a[0] != b[1]:
        raise InvalidSource(f"{module}: lora_A {list(a)} and lora_B {list(b)} do not fit each other at a rank above 0")
    if (b[0], a[1]) != (linear.out_features, linear.in_features):
        raise InvalidSource(
            f"{module}: lora_A {list(a)} and lora_B {list(b)} do not fit the base's [{linear.out_features}, "
            f"{linear.in_features}]; name the adapter's own base"
        )
    return a[0]


def _by_module(config: dict[str, object], pattern: str, otherwise: str, module: str) -> float:
    """Returns a module's number by PEFT's rule: that of the first regular expression that the end of the module's name
    matches, else the common one."""
    of_modules = config.get(pattern) or {}
    if not isinstance(of_modules, dict):
        raise InvalidSource(f"{ADAPTER_CONFIG}: {pattern} must map names of modules to numbers")
    value = config.get(otherwise, 8)
    for name, number in of_modules.items():
        if _expression(pattern, str(name)).fullmatch(module):
            value = number
            break
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidSource(f"{ADAPTER_CONFIG}: {otherwise} of {module[:80]} is {str(value)[:40]!r}, not a number")
    return float(value)


def _expression(pattern: str, name: str) -> re.Pattern[str]:
    """Returns what PEFT makes of a name. Raises InvalidSource for an expression that could take long, or is none."""
    plain = name.replace("(?:", "(")
    is_short = len(re.findall("[*+?]", plain)) <= _MOST_REPEATED and plain.count("(") < 3 and plain.count("|") <= 20
    try:
        if is_short and len(name) <= 200 and _PATTERN.fullmatch(name):
            return re.compile(rf"(.*\.)?({name})")
    except re.error:
        pass
    raise InvalidSource(
        f"{ADAPTER_CONFIG}: {pattern} has {name[:80]!r}; names of modules, and expressions of at most "
        f"{_MOST_REPEATED} repetitions and none of a group, are read"
    )


def _recipe(config: dict[str, object], modules: tuple[LowRank, ...]) -> str:
    ranks = sorted({each.rank for each in modules})
    shown = f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
    alpha = config.get("lora_alpha", 8)
    return f"LoRA adapter: rank {shown}, alpha {alpha}, {len(modules)} linear layers"
