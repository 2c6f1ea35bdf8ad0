"""A blueprint says what a decoder-only model computes: its weights, norms and numbers, and their places.

It does not know how that is computed. The outline has names and is read from the library's model (`families`). With
weights in the places of the names it is a blueprint. Both forwards of our own start from a blueprint. `probe.verify`
checks it at load, and so does tests/golden.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import torch
from torch import Tensor

from models.weights.experts import Expert, SeparateExperts, library_name, of_module
from models.weights.loading import LowRankWeights
from service.engine.kv_cache.kv_size import LayerShape
from service.engine.runner.forwards.attention import AttentionSpec
from service.engine.runner.forwards.interleaved import of_heads, order_of

if TYPE_CHECKING:
    import transformers

ACTIVATIONS = ("silu", "gelu_pytorch_tanh", "clamped_silu", "gelu")


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


_ROWS: Final = 4096


class Rotary(msgspec.Struct, frozen=True):
    """Rotary positions: `frequencies` [rotary dimensions / 2] in radians a position. Cosines and sines are multiplied
    by `scale`."""

    frequencies: tuple[float, ...]
    scale: float = 1.0


class Outline(msgspec.Struct, frozen=True):
    """A whole model by names. An embedding of None is the head's own matrix, of 8-bit weights. Norms' weights get
    `norm_offset` added; a softcap of None is none. `alpha` and `limit`
    belong to the activation clamped_silu.

    Norms are root mean square norms; with `layer_norm` they are layer norms, each with a bias beside its weight. With
    `parallel_residual` the MLP reads the same rows as attention, and both outputs are added to them. An MLP that is not
    `gated` has no gates: `gate_up` names its ups alone. With `interleaved`, `qkv` names one module, with the outputs
    [kv_heads, queries of one + key + value, head_dim]."""

    embedding: str | None
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
    layer_norm: bool = False
    parallel_residual: bool = False
    gated: bool = True
    interleaved: bool = False

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The cached shape of each layer."""
        return tuple(LayerShape(self.kv_heads, self.head_dim, self.head_dim, layer.window) for layer in self.layers)


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """A norm's weight, fp32 [hidden] or [head_dim]; of a layer norm also its bias."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LayerPlan:
    """A LayerOutline with its weights. Linear layers have `weight` [out, in], `bias` and, if 8-bit, `scale`. Those of
    one tuple give the layer's outputs side by side, queries before keys before values."""

    qkv: tuple[Any, ...]
    output: tuple[Any, ...]
    gate_up: tuple[Any, ...]
    down: tuple[Any, ...]
    input_norm: Norm
    attention_norm: Norm | None
    middle_norm: Norm
    mlp_norm: Norm | None
    query_norm: Norm | None
    key_norm: Norm | None
    spec: AttentionSpec
    router: Any | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Blueprint:
    """An Outline with its weights. The embedding [vocabulary, hidden] is None where the head's matrix serves as one.
    `dtype` is what torch operations compute in. `tables` are cosines and sines of each of its rotary positions, fp32
    [max_model_len, rotary dimensions]; `reach` must have been called for the positions that are read."""

    outline: Outline
    dtype: torch.dtype
    embedding: Tensor | None
    tables: tuple[tuple[Tensor, Tensor], ...]
    layers: tuple[LayerPlan, ...]
    norm: Norm
    head: Any
    reach: Callable[[int], object] = lambda positions: None

    @property
    def hidden(self) -> int:
        return int(self.head.weight.shape[1])

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, or of the head where it has fewer."""
        rows = len(self.head.weight)
        return rows if self.embedding is None else min(rows, len(self.embedding))


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The place of a linear module's outputs: from `first` on in one of a layer's PRODUCTS, or in the HEAD's. They lie
    there in the `order` [out] of the module's own outputs, if it is given."""

    layer: int
    product: str
    first: int
    order: Tensor | None = None

    def ordered(self, weights: LowRankWeights) -> LowRankWeights:
        """Returns an adapter's matrices for the module, with outputs as they lie here."""
        if self.order is None or weights.b.shape[1] != len(self.order):
            return weights
        return replace(weights, b=weights.b[:, self.order].contiguous())


PRODUCTS = ("qkv", "output", "gate_up", "down")
HEAD = "lm_head"


def places_of(whole: Blueprint) -> dict[str, Place]:
    """Returns the places of all linear modules that an adapter can add to, by name. An expert's are none of them."""
    places = {HEAD: Place(len(whole.layers), HEAD, 0)}
    outline = whole.outline
    order = order_of(outline.heads, outline.kv_heads, outline.head_dim) if outline.interleaved else None
    for index, (names, plan) in enumerate(zip(whole.outline.layers, whole.layers, strict=True)):
        for product in PRODUCTS[:2] if names.experts else PRODUCTS:
            if product == "qkv" and order is not None:
                places[names.qkv[0]] = Place(index, product, 0, order)
                continue
            first = 0
            for name, part in zip(getattr(names, product), getattr(plan, product), strict=True):
                places[name] = Place(index, product, first)
                first += len(part.weight)
    return places


class Weights(Protocol):
    """Gives the weights of an outline's names, floating ones in `dtype`. Both methods raise LookupError or
    AttributeError for names without weights."""

    @property
    def dtype(self) -> torch.dtype: ...

    def linear(self, name: str) -> Any:
        """Returns a linear layer's `weight`, `bias` (may be None) and, if 8-bit, `scale`."""

    def tensor(self, name: str) -> Tensor: ...


class LibraryWeights:
    """The weights of the library's model, not copied."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        self._model = model
        self.dtype: torch.dtype = model.dtype

    def linear(self, name: str) -> Any:
        if expert := Expert.of_name(name):
            experts = self._model.get_submodule(expert.module)
            return experts.part(expert) if isinstance(experts, SeparateExperts) else of_module(experts, expert)
        return self._model.get_submodule(library_name(name))

    def tensor(self, name: str) -> Tensor:
        return self._model.get_parameter(name).detach()


def assemble(outline: Outline, weights: Weights, max_model_len: int) -> Blueprint:
    """Returns the outline with its weights, and rotary tables for the given number of positions."""
    norm_weight = weights.tensor(outline.norm)
    growing = _Tables(outline.rotaries, max_model_len, norm_weight.device)

    def norm(name: str | None) -> Any:
        if name is None:
            return None
        bias = weights.tensor(f"{name.removesuffix('weight')}bias") if outline.layer_norm else None
        own = None if bias is None else bias.to(torch.float32, copy=True)  # not the file's memory
        return Norm(weights.tensor(name).float() + outline.norm_offset, own)

    def linears(names: Seq[str]) -> tuple[Any, ...]:
        return tuple(weights.linear(name) for name in names)

    def qkv(layer: LayerOutline) -> tuple[Any, ...]:
        if not outline.interleaved:
            return linears(layer.qkv)
        return of_heads(weights.linear(layer.qkv[0]), outline.heads, outline.kv_heads, outline.head_dim)

    def spec(layer: LayerOutline) -> AttentionSpec:
        sinks = None if layer.sinks is None else weights.tensor(layer.sinks).float()
        return AttentionSpec(layer.scale, layer.window, layer.softcap, sinks=sinks)

    return Blueprint(
        outline=outline,
        dtype=weights.dtype,
        embedding=None if outline.embedding is None else weights.tensor(outline.embedding),
        tables=growing.tables,
        reach=growing.reach,
        layers=tuple(
            LayerPlan(
                qkv=qkv(layer),
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


class _Tables:
    """Cosines and sines of both halves, fp32 [positions, rotary dimensions], of each of the rotary positions. On a
    processor rows are computed when sequences come to them: memory that nothing was written to is none."""

    def __init__(self, rotaries: Seq[Rotary], positions: int, device: torch.device) -> None:
        self._rotaries = rotaries
        self._positions = positions
        self._done = 0
        sizes = [(positions, 2 * len(each.frequencies)) for each in rotaries]
        self.tables = tuple((torch.empty(size, device=device), torch.empty(size, device=device)) for size in sizes)
        if device.type != "cpu":
            self.reach(positions)

    @torch.inference_mode()
    def reach(self, positions: int) -> None:
        """Computes the rows of the first `positions`, in steps of `_ROWS`."""
        while self._done < min(positions, self._positions):
            rows = slice(self._done, min(self._done + _ROWS, self._positions))
            for rotary, (cos, sin) in zip(self._rotaries, self.tables, strict=True):
                places = torch.arange(rows.start, rows.stop, device=cos.device)[:, None].float()
                angles = places * torch.tensor(rotary.frequencies, device=cos.device)
                angles = torch.cat((angles, angles), dim=-1)
                cos[rows], sin[rows] = angles.cos() * rotary.scale, angles.sin() * rotary.scale
            self._done = rows.stop
