"""The state of a run lies in files of at most 15 MiB: parameters, optimizers, place. It is replaced whole or not."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipe.network import Llama

SHARD_BYTES = 15 << 20
STATE, PLACE = "state", "place.json"


@dataclass(slots=True)
class Place:
    """How far a run is: the next chunk, batches of it that are done, steps, positions, seconds of training."""

    chunk: int = 0
    used: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0


def shards(tensors: dict[str, Tensor], limit: int = SHARD_BYTES) -> list[dict[str, Tensor]]:
    """The tensors in groups of at most `limit` bytes each, in order; a larger tensor has a group of its own."""
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        bytes_of = tensor.numel() * tensor.element_size()
        if groups[-1] and size + bytes_of > limit:
            groups.append({})
            size = 0
        groups[-1][name] = tensor
        size += bytes_of
    return groups


def save(folder: Path, model: Llama, tools: list[torch.optim.Optimizer], place: Place) -> None:
    """Write the state beside the old one and then take its place, so that a kill leaves one of the two."""
    new, current, old = folder / f"{STATE}.new", folder / STATE, folder / f"{STATE}.old"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for at, group in enumerate(shards(_tensors(model, tools))):
        save_file(group, new / f"state-{at:03d}.safetensors")
    (new / PLACE).write_text(json.dumps(asdict(place)) + "\n", encoding="utf-8")
    shutil.rmtree(old, ignore_errors=True)
    if current.exists():
        current.rename(old)
    new.rename(current)
    shutil.rmtree(old, ignore_errors=True)


def load(folder: Path, model: Llama, tools: list[torch.optim.Optimizer]) -> Place:
    """Set model and optimizers to the saved state and return its place. Raises FileNotFoundError without one."""
    found = next((path for name in (STATE, f"{STATE}.old") if (path := folder / name / PLACE).exists()), None)
    if found is None:
        raise FileNotFoundError(f"{folder} holds no saved state: start without --resume")
    tensors: dict[str, Tensor] = {}
    for path in sorted(found.parent.glob("state-*.safetensors")):
        tensors |= load_file(path)
    model.load_state_dict({name[4:]: value for name, value in tensors.items() if name.startswith("net/")})
    for at, tool in enumerate(tools):
        for number, parameter in enumerate(_parameters(tool)):
            prefix = f"tool{at}.{number}."
            kept = {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
            if kept:
                tool.state[parameter] = {key: value.to(_device(key, parameter)) for key, value in kept.items()}
    return Place(**json.loads(found.read_text(encoding="utf-8")))


def _tensors(model: Llama, tools: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    found = {f"net/{name}": value.detach() for name, value in model.state_dict().items()}
    for at, tool in enumerate(tools):
        for number, parameter in enumerate(_parameters(tool)):
            for key, value in tool.state[parameter].items():
                found[f"tool{at}.{number}.{key}"] = value.detach()
    return {name: value.to("cpu").contiguous() for name, value in found.items()}


def _parameters(tool: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in tool.param_groups for parameter in group["params"]]


def _device(key: str, parameter: Tensor) -> torch.device:
    """AdamW keeps its count of steps on the CPU."""
    return torch.device("cpu") if key == "step" else parameter.device
