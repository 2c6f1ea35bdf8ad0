"""An adapter of a version is two files beside its base's: small matrices, each pair for one linear layer.

    y = W x + scale * B (A x)      A [rank, in], B [out, rank]      (Hu et al. 2021)

    adapter_config.json        {"peft_type": "LORA", "modules": {<module>: {"rank": 8, "scale": 2.0}}}
    adapter_model.safetensors  <module>.lora_A.weight, <module>.lora_B.weight, in the dtype of the version

`peft_adapters` makes it of PEFT's. The module knows headers and numbers, but no tensors.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.checkpoint import config_policy
from models.checkpoint.safetensors_file import Tensor, read_header
from models.errors import InvalidSource
from models.manifest import ADAPTER_CONFIG, ADAPTER_FILES, ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from models.weights.skeleton import Skeleton

SIDES = ("lora_A", "lora_B")


@dataclass(frozen=True, slots=True)
class LowRank:
    """An adapter's addition to one module of its base. `scale` multiplies the product of both matrices."""

    module: str
    rank: int
    scale: float


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
    tensors = {tensor.name: tensor for tensor in read_header(directory / ADAPTER_WEIGHTS)}
    for each in read(directory):
        linear = base.linears.get(f"{each.module}.weight")
        pair = {side: tensors.pop(tensor_name(each.module, side), None) for side in SIDES}
        present = {side: tensor for side, tensor in pair.items() if tensor is not None}
        if linear is None or present.keys() != set(SIDES):
            raise InvalidSource(f"{each.module[:80]} needs a linear layer in the base, a lora_A and a lora_B")
        if rank_of(each.module, present, (linear.out_features, linear.in_features)) != each.rank:
            raise InvalidSource(f"{ADAPTER_CONFIG} gives {each.module[:80]} another rank than {ADAPTER_WEIGHTS}")
    if tensors:
        raise InvalidSource(f"{ADAPTER_WEIGHTS} holds {min(tensors)[:80]!r}, which {ADAPTER_CONFIG} does not name")


def tensor_name(module: str, side: str) -> str:
    """Returns the name of one of SIDES in a version's file."""
    return f"{module}.{side}.weight"


def rank_of(module: str, sides: Mapping[str, Tensor], expected: tuple[int, int]) -> int:
    """Returns the rank of one module; checks that its two matrices fit each other and the base's (outputs, inputs)."""
    a, b = sides["lora_A"].shape, sides["lora_B"].shape
    if len(a) != 2 or len(b) != 2 or not a[0] or a[0] != b[1]:
        raise InvalidSource(f"{module}: lora_A {list(a)} and lora_B {list(b)} do not fit each other at a rank above 0")
    if (b[0], a[1]) != expected:
        raise InvalidSource(
            f"{module}: lora_A {list(a)} and lora_B {list(b)} do not fit the base's {list(expected)}; name the "
            "adapter's own base"
        )
    return a[0]
