"""PEFT's files of a LoRA adapter are checked against a base model.

    base_model.model.<module>.lora_A.weight                 of a linear layer, with lora_B
    base_model.model.<module>.lora_embedding_A              of an embedding, with lora_embedding_B
    base_model.model.<module>.lora_magnitude_vector.weight  of DoRA, beside them
    base_model.model.<module>.weight                        whole: of `modules_to_save`, or the base's own once more

`scale` is resolved by module: alpha / rank, or alpha / sqrt(rank) with `use_rslora` (Kalajdzievski 2023). Every option
that is neither acted on nor without effect is refused by name. The module knows headers and numbers, but no tensors.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from models.checkpoint import config_policy
from models.checkpoint.safetensors_file import FLOATS, Tensor
from models.errors import InvalidSource
from models.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from models.weights.adapters import SIDES, LowRank, rank_of, tensor_name

if TYPE_CHECKING:
    from models.weights.skeleton import Skeleton

MAGNITUDE: Final = "lora_magnitude_vector"
_PREFIX: Final = "base_model.model."
_OF_LINEAR: Final = {"A.weight": "lora_A", "B.weight": "lora_B"}
_OF_EMBEDDING: Final = {"embedding_A": "lora_A", "embedding_B": "lora_B"}
_SIDES: Final = _OF_LINEAR | _OF_EMBEDDING | dict.fromkeys(("magnitude_vector", "magnitude_vector.weight"), MAGNITUDE)
_MATRIX = re.compile(rf"{re.escape(_PREFIX)}(?P<module>.+)\.lora_(?P<side>{'|'.join(map(re.escape, _SIDES))})")
_WHOLE = re.compile(rf"{re.escape(_PREFIX)}(?P<module>.+?)(?:\.base_layer)?\.(?P<parameter>[^.]+)")
_PATTERN = re.compile(r"(?:[\w.^$|-]|\\[.dw]|\[[\w-]+\]|[*+?]|\((?:\?:)?|\)(?![*+?{]))+")
_MOST_REPEATED = 3
"""Of a pattern of PEFT's, so that no foreign one takes long: no group is repeated, and a few characters are."""
_STARTS = frozenset({"gaussian", "eva", "orthogonal"})
"""Ways to begin training that do not change the base's weights."""

# Acted on here, or without effect on a trained adapter's answers.
# fmt: off
_UNDERSTOOD = frozenset({
    "peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "modules_to_save",
    "init_lora_weights", "bias", "fan_in_fan_out", "target_modules", "exclude_modules", "layers_to_transform",
    "layers_pattern", "lora_dropout", "base_model_name_or_path", "revision", "task_type", "inference_mode",
    "auto_mapping", "peft_version", "megatron_core", "qalora_group_size", "runtime_config", "corda_config",
    "eva_config", "loftq_config", "lora_ga_config", "ensure_weight_tying",
})
_INSTEAD = {
    "lora_bias": "train with lora_bias=False",
    "layer_replication": "merge the adapter with PEFT and import the whole model",
    "trainable_token_indices": "merge the adapter with PEFT and import the whole model",
    "target_parameters": "train with target_modules: linear layers are adapted",
}
# fmt: on


@dataclass(frozen=True, slots=True)
class Checked:
    """PEFT's adapter as its base sees it: its modules, sorted, and PEFT's name of each tensor by module and side. By
    their names in the base, `trained` has PEFT's names of weights that replace the base's, and `copies` of those that
    must be its own. `apart` says in words what cannot run beside a base; "" for an adapter that can. `stays_tied` tells
    that head and embedding were trained as one weight."""

    modules: tuple[LowRank, ...]
    sides: Mapping[str, Mapping[str, str]]
    trained: Mapping[str, str]
    copies: Mapping[str, str]
    apart: str
    stays_tied: bool
    recipe: str

    @property
    def kept(self) -> dict[str, str]:
        """The name in a version of each of PEFT's matrices."""
        return {name: tensor_name(module, side) for module, of in self.sides.items() for side, name in of.items()}


def check(config: dict[str, object], tensors: Iterable[Tensor], base: "Skeleton") -> Checked:
    """Checks PEFT's `adapter_config.json` and the tensors beside it for a base model. Raises InvalidSource, which names
    the part that cannot be served and says what to change."""
    config_policy.refuse_dangerous(config, ADAPTER_CONFIG)
    if config.get("peft_type") != "LORA":
        raise InvalidSource(f"{ADAPTER_CONFIG}: peft_type {str(config.get('peft_type'))[:40]!r} is not served, LORA is")
    _refuse_what_is_not_served(config)
    saved = _modules_to_save(config, base)
    sides: dict[str, dict[str, Tensor]] = {}
    trained: dict[str, str] = {}
    copies: dict[str, str] = {}
    for tensor in tensors:
        if weight := _whole(tensor.name, base):
            is_trained = _is_of(tensor.name.removeprefix(_PREFIX), saved)
            (trained if is_trained else copies)[weight] = tensor.name
            if is_trained:
                _require_fits(tensor, base.shapes[weight])
        else:
            module, side = _place(tensor, base)
            sides.setdefault(module, {})[side] = tensor
    if not sides:
        raise InvalidSource(f"{ADAPTER_WEIGHTS} holds no tensor of an adapter")
    if lacking := [name for name in base.shapes if _is_of(name, saved) and name not in trained]:
        raise InvalidSource(
            f"{ADAPTER_WEIGHTS} lacks {min(lacking)}, which modules_to_save names: save the adapter again"
        )
    modules = tuple(_low_rank(module, sides[module], config, base) for module in sorted(sides))
    names = {module: {side: tensor.name for side, tensor in of.items()} for module, of in sides.items()}
    linear = sum(f"{each.module}.weight" in base.linears for each in modules)
    found = {"DoRA": config.get("use_dora"), "modules_to_save": trained, "LoRA on embeddings": linear < len(modules)}
    apart = " and ".join(word for word, is_there in found.items() if is_there)
    stays_tied = bool(config.get("ensure_weight_tying"))
    return Checked(modules, names, trained, copies, apart, stays_tied, _recipe(config, modules, linear))


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


def _modules_to_save(config: dict[str, object], base: "Skeleton") -> list[str]:
    """Returns the names of modules that were trained whole, the head's too where it was kept one with the embedding."""
    found = config.get("modules_to_save") or []
    if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
        raise InvalidSource(f"{ADAPTER_CONFIG}: modules_to_save must be a list of names of modules")
    tied = base.tied.items() if config.get("ensure_weight_tying") else ()
    return [*found, *(head.removesuffix(".weight") for head, weight in tied if _is_of(weight, found))]


def _is_of(name: str, modules: Iterable[str]) -> bool:
    """Whether a tensor lies in a module whose name ends with one of these, as PEFT compares them."""
    return any(f"{module}." in name for module in modules)


def _whole(name: str, base: "Skeleton") -> str:
    """Returns the base's tensor that PEFT saved whole under this name; "" for another one."""
    match = _WHOLE.fullmatch(name)
    weight = base.canonical(f"{match['module']}.{match['parameter']}") if match else ""
    return weight if weight in base.shapes else ""


def _require_fits(tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape or tensor.dtype not in FLOATS:
        raise InvalidSource(
            f"{tensor.name[:80]} is {list(tensor.shape)} in {tensor.dtype}, and the base's {list(shape)}: where tokens "
            "were added, merge the adapter with PEFT and import the whole model"
        )


def _place(tensor: Tensor, base: "Skeleton") -> tuple[str, str]:
    """Returns the base's module and the side of one of PEFT's tensors."""
    match = _MATRIX.fullmatch(tensor.name)
    if match is None:
        raise InvalidSource(
            f"{ADAPTER_WEIGHTS} holds {tensor.name[:80]!r}, which is neither a weight of the base nor a matrix of "
            "LoRA: name the adapter's own base"
        )
    if tensor.dtype not in FLOATS:
        raise InvalidSource(f"{tensor.name[:80]} is {tensor.dtype}; save the adapter in a floating dtype")
    weight = base.canonical(f"{match['module']}.weight")
    is_linear, is_table = weight in base.linears, len(base.shapes.get(weight, ())) == 2
    kind, is_there = ("linear layer", is_linear) if match["side"] in _OF_LINEAR else ("layer", is_linear or is_table)
    if match["side"] in _OF_EMBEDDING:
        kind, is_there = "embedding", is_table and not is_linear
    if not is_there:
        raise InvalidSource(f"The base has no {kind} {match['module'][:80]!r}; name the adapter's own base")
    return weight.removesuffix(".weight"), _SIDES[match["side"]]


def _low_rank(module: str, sides: Mapping[str, Tensor], config: dict[str, object], base: "Skeleton") -> LowRank:
    needed = {*SIDES, MAGNITUDE} if config.get("use_dora") else set(SIDES)
    if sides.keys() != needed:
        raise InvalidSource(f"{module[:80]} needs {', '.join(sorted(needed))}, and has {', '.join(sorted(sides))}")
    linear, shape = base.linears.get(f"{module}.weight"), base.shapes[f"{module}.weight"]
    sizes = (linear.out_features, linear.in_features) if linear else (shape[-1], shape[0])
    rank = rank_of(module, sides, sizes)
    if MAGNITUDE in sides and sides[MAGNITUDE].shape != sizes[:1]:
        raise InvalidSource(f"{module}: {MAGNITUDE} {list(sides[MAGNITUDE].shape)} is not one number for each output")
    configured = _by_module(config, "rank_pattern", "r", module)
    if rank != configured:
        raise InvalidSource(f"{module} has the rank {rank}; {ADAPTER_CONFIG} says {configured:g}")
    alpha = _by_module(config, "alpha_pattern", "lora_alpha", module)
    return LowRank(module, rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


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


def _recipe(config: dict[str, object], modules: tuple[LowRank, ...], linear: int) -> str:
    ranks = sorted({each.rank for each in modules})
    shown = f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
    alpha = config.get("lora_alpha", 8)
    return f"LoRA adapter: rank {shown}, alpha {alpha}, {linear} linear layers"
