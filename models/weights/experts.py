"""Experts of a mixture have names as files give them, and are slices of the fused tensors that the library makes.

model.layers.3.mlp.experts.7.gate_proj      the linear layer of one expert: most files hold it so
model.layers.3.mlp.experts.gate_up_proj     [experts, ..]: the library's parameter, and what files of gpt-oss hold
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor, nn

LIBRARY_PLACE: Final = "mlp"
_EXPERT: Final = re.compile(r"(?P<layer>.*\.)(?P<place>\w+)\.experts\.(?P<number>\d+)\.(?P<part>\w+)$")


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of a family's files: the `place` of router and experts in a layer, and an expert's parts. Files with
    `fused` tensors hold them [experts, in, out], with gate and up in turn."""

    place: str = LIBRARY_PLACE
    router: str = "gate"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    fused: bool = False

    def router_of(self, prefix: str) -> str:
        """Returns the name of the router of the layer `prefix`."""
        return f"{prefix}{self.place}.{self.router}"

    def parts(self, prefix: str, count: int, *parts: str) -> tuple[str, ...]:
        """Returns the names of these parts of all experts of the layer `prefix`, one expert after the other."""
        return tuple(f"{prefix}{self.place}.experts.{number}.{part}" for number in range(count) for part in parts)


FAMILIES: Final = {
    "qwen3_moe": ExpertNames(),
    "mixtral": ExpertNames("block_sparse_moe", "gate", "w1", "w3", "w2"),
    "gpt_oss": ExpertNames(router="router", fused=True),
}
_PARTS: Final = {"gate": 0, "up": 1, "down": 2}


@dataclass(frozen=True, slots=True)
class Expert:
    """One part of an expert, by name: 0 of its gate, 1 of up, 2 of down. `layer` ends with a dot."""

    layer: str
    number: int
    part: int

    @classmethod
    def of_name(cls, name: str) -> Expert | None:
        """Returns what a linear module's name means; None if it is not an expert's."""
        if not (found := _EXPERT.match(name)):
            return None
        for names in FAMILIES.values():
            parts = (names.gate, names.up, names.down)
            if found["place"] == names.place and found["part"] in parts:
                return cls(found["layer"], int(found["number"]), parts.index(found["part"]))
        return None

    @property
    def module(self) -> str:
        """The library's module of all experts."""
        return f"{self.layer}{LIBRARY_PLACE}.experts"

    @property
    def fused(self) -> str:
        """The library's fused tensor that this is a part of."""
        return f"{self.module}.{'down_proj' if self.is_down else 'gate_up_proj'}"

    @property
    def is_down(self) -> bool:
        return self.part == _PARTS["down"]

    def of_fused(self, take: Callable[[str], Tensor | None], transposed: bool, in_turn: bool) -> Any:
        """Returns `weight` [out, in] and `bias` [out] as views of the fused tensors that `take` gives by name:
        gate_up_proj, down_proj, and these with _bias. Either is None where `take` gives None. The tensors are [experts,
        out, in], or `transposed`; gate and up lie one below the other, or `in_turn`."""
        name = "down_proj" if self.is_down else "gate_up_proj"

        def own(fused: Tensor | None) -> Tensor | None:
            if fused is None:
                return None
            tensor = fused[self.number]
            if transposed and tensor.ndim == 2:  # and no bias
                tensor = tensor.T
            if self.is_down:
                return tensor
            half = len(tensor) // 2
            return tensor[self.part :: 2] if in_turn else tensor[self.part * half : (self.part + 1) * half]

        return SimpleNamespace(weight=own(take(name)), bias=own(take(f"{name}_bias")))


def library_name(name: str) -> str:
    """Returns the library's name of a tensor or module of files, such as a router's; most are the same."""
    places = {names.place for names in FAMILIES.values()}
    return ".".join(LIBRARY_PLACE if part in places else part for part in name.split("."))


def of_module(experts: Any, expert: Expert) -> Any:
    """Returns the part of a library's module of fused experts: `weight` [out, in] and `bias`."""

    def take(name: str) -> Tensor | None:
        found = getattr(experts, name, None)
        return None if found is None else found.detach()

    return expert.of_fused(take, experts.is_transposed, not experts.is_concatenated)


def is_fused(module: Any) -> bool:
    """Whether this is a library's module of fused experts that `SeparateExperts` can stand for."""
    weight = getattr(module, "gate_up_proj", None)
    return isinstance(weight, nn.Parameter) and weight.ndim == 3 and hasattr(module, "is_transposed")


class SeparateExperts(nn.Module):
    """Stands for a library's module of fused experts. Gate, up and down of each expert are linear layers of their own,
    such as 8-bit ones."""

    def __init__(self, fused: Any, parts: Mapping[tuple[int, int], nn.Module]) -> None:
        """`parts` are by number of the expert and of the part. Raises ValueError if there is one too few."""
        super().__init__()
        keys = [(number, part) for number in range(len(fused.gate_up_proj)) for part in sorted(_PARTS.values())]
        if missing := [key for key in keys if key not in parts]:
            raise ValueError(f"no weights for part {missing[0][1]} of expert {missing[0][0]}")
        self.parts = nn.ModuleList(parts[key] for key in keys)
        self._apply_gate, self._in_turn = fused._apply_gate, not fused.is_concatenated

    @classmethod
    def of_module(cls, fused: Any, make: Callable[[Any], nn.Module]) -> SeparateExperts:
        """Returns experts whose layers `make` makes of a library module's parts: `weight` [out, in] and `bias`."""
        keys = ((number, part) for number in range(len(fused.gate_up_proj)) for part in _PARTS.values())
        return cls(fused, {key: make(of_module(fused, Expert("", *key))) for key in keys})

    def part(self, expert: Expert) -> nn.Module:
        return self.parts[expert.number * len(_PARTS) + expert.part]

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Returns [rows, hidden] for rows whose experts are `top_k_index` [rows, active], with these weights."""
        out = torch.zeros_like(hidden_states)
        for number in torch.unique(top_k_index).tolist():
            first = number * len(_PARTS)
            if first >= len(self.parts):  # stands for no expert
                continue
            rows, rank = (top_k_index == number).nonzero(as_tuple=True)
            gate, up, down = self.parts[first : first + len(_PARTS)]
            x = hidden_states[rows]
            both = torch.stack((gate(x), up(x)), -1).flatten(-2) if self._in_turn else torch.cat((gate(x), up(x)), -1)
            found = down(self._apply_gate(both)) * top_k_weights[rows, rank, None]
            out.index_add_(0, rows, found.to(out.dtype))
        return out
