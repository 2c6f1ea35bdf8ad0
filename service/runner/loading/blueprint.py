"""A blueprint says what a Llama-shaped model computes: its weights, norms and numbers, and their places.

It does not know how that is computed. The outline has names and is read from the library's model (`families`). With
weights in the places of the names it is a blueprint. Both forwards of our own start from a blueprint. `probe.verify`
checks it at load, and so does tests/golden.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch
from torch import Tensor

from models.experts import Expert, SeparateExperts, library_name, of_module
from service.runner.forwards.attention import AttentionSpec
from service.runner.kv_size import LayerShape

if TYPE_CHECKING:
    import transformers

ACTIVATIONS = ("silu", "gelu_pytorch_tanh", "clamped_silu")


class ExpertsOutline(msgspec.Struct, frozen=True):
    """A mixture of `count` experts: each row passes the `active` with the highest scores by `router`, weighted by the
    softmax of all scores. `renormalized` weights are divided by their sum."""

    router: str
    count: int
    active: int
    renormalized: bool


class LayerOutline(msgspec.Struct, frozen=True):
    """One decoder layer by names of linear modules and of norms' weights. Modules of one tuple read the same rows.
    `attention_norm` and `mlp_norm`, if any, norm the outputs before they are added to the rows. `rotary` is the number
    of the layer's rotary positions in the outline. With `experts`, `gate_up` and `down` name the modules of all
    experts, one expert after the other."""

    qkv: tuple[str, ...]
    output: tuple[str, ...]
    gate_up: tuple[str, ...]
    down: tuple[str, ...]
    input_norm: str
    attention_norm: str | None
    middle_norm: str
    mlp_norm: str | None
    query_norm: str | None
    key_norm: str | None
    scale: float
    window: int | None
    softcap: float | None
    sinks: str | None = None
    rotary: int = 0
    experts: ExpertsOutline | None = None


class Rotary(msgspec.Struct, frozen=True):
    """Rotary positions: `frequencies` [rotary dimensions / 2] in radians a position. Cosines and sines are multiplied
    by `scale`."""

    frequencies: tuple[float, ...]
    scale: float = 1.0


class Outline(msgspec.Struct, frozen=True):
    """A whole model by names. Norms' weights get `norm_offset` added; a softcap of None is none. `alpha` and `limit`
    belong to the activation clamped_silu."""

    embedding: str
    embedding_scale: float
    rotaries: tuple[Rotary, ...]
    layers: tuple[LayerOutline, ...]
    norm: str
    norm_offset: float
    head: str
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    activation: str
    logit_softcap: float | None
    alpha: float = 1.0
    limit: float = 0.0

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The cached shape of each layer."""
        return (LayerShape(self.kv_heads, self.head_dim, self.head_dim),) * len(self.layers)


@dataclass(frozen=True, slots=True, eq=False)
class LayerPlan:
    """A LayerOutline with its weights. Linear layers have `weight` [out, in], `bias` and, if 8-bit, `scale`. Norms are
    fp32 [hidden] or [head_dim]."""

    qkv: tuple[Any, ...]
    output: tuple[Any, ...]
    gate_up: tuple[Any, ...]
    down: tuple[Any, ...]
    input_norm: Tensor
    attention_norm: Tensor | None
    middle_norm: Tensor
    mlp_norm: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    spec: AttentionSpec
    router: Any | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Blueprint:
    """An Outline with its weights. `tables` are cosines and sines of each of its rotary positions, fp32
    [max_model_len, rotary dimensions]."""

    outline: Outline
    embedding: Tensor
    tables: tuple[tuple[Tensor, Tensor], ...]
    layers: tuple[LayerPlan, ...]
    norm: Tensor
    head: Any


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a linear module's outputs: from `first` on in one of a layer's PRODUCTS, or in the HEAD's."""

    layer: int
    product: str
    first: int


PRODUCTS = ("qkv", "output", "gate_up", "down")
HEAD = "lm_head"


def places_of(whole: Blueprint) -> dict[str, Place]:
    """Returns the places of all linear modules that an adapter can add to, by name. An expert's are none of them."""
    found = {HEAD: Place(len(whole.layers), HEAD, 0)}
    for index, (names, plan) in enumerate(zip(whole.outline.layers, whole.layers, strict=True)):
        for product in PRODUCTS[:2] if names.experts else PRODUCTS:
            first = 0
            for name, part in zip(getattr(names, product), getattr(plan, product), strict=True):
                found[name] = Place(index, product, first)
                first += len(part.weight)
    return found


class Weights(Protocol):
    """Gives the weights of an outline's names. Both methods raise LookupError or AttributeError for names without
    weights."""

    def linear(self, name: str) -> Any:
        """Returns a linear layer's `weight`, `bias` (may be None) and, if 8-bit, `scale`."""

    def tensor(self, name: str) -> Tensor: ...


class LibraryWeights:
    """The weights of the library's model, not copied."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        self._model = model

    def linear(self, name: str) -> Any:
        if expert := Expert.of_name(name):
            experts = self._model.get_submodule(expert.module)
            return experts.part(expert) if isinstance(experts, SeparateExperts) else of_module(experts, expert)
        return self._model.get_submodule(library_name(name))

    def tensor(self, name: str) -> Tensor:
        return self._model.get_parameter(name).detach()


def assemble(outline: Outline, weights: Weights, max_model_len: int) -> Blueprint:
    """Returns the outline with its weights, and rotary tables for the given number of positions."""
    embedding = weights.tensor(outline.embedding)

    def norm(name: str | None) -> Any:
        return None if name is None else weights.tensor(name).float() + outline.norm_offset

    def linears(names: Seq[str]) -> tuple[Any, ...]:
        return tuple(weights.linear(name) for name in names)

    def spec(layer: LayerOutline) -> AttentionSpec:
        sinks = None if layer.sinks is None else weights.tensor(layer.sinks).float()
        return AttentionSpec(layer.scale, layer.window, layer.softcap, sinks=sinks)

    return Blueprint(
        outline=outline,
        embedding=embedding,
        tables=tuple(_table(rotary, max_model_len, embedding.device) for rotary in outline.rotaries),
        layers=tuple(
            LayerPlan(
                qkv=linears(layer.qkv),
                output=linears(layer.output),
                gate_up=linears(layer.gate_up),
                down=linears(layer.down),
                input_norm=norm(layer.input_norm),
                attention_norm=norm(layer.attention_norm),
                middle_norm=norm(layer.middle_norm),
                mlp_norm=norm(layer.mlp_norm),
                query_norm=norm(layer.query_norm),
                key_norm=norm(layer.key_norm),
                spec=spec(layer),
                router=None if layer.experts is None else weights.linear(layer.experts.router),
            )
            for layer in outline.layers
        ),
        norm=norm(outline.norm),
        head=weights.linear(outline.head),
    )


def _table(rotary: Rotary, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines of both halves, fp32 [positions, rotary dimensions]."""
    frequencies = torch.tensor(rotary.frequencies, device=device)
    angles = torch.arange(positions, device=device)[:, None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * rotary.scale, angles.sin() * rotary.scale
