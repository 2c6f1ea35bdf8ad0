"""The native decoder computes a whole step of a decoder-only model in one call: no Python runs between its layers.

It knows a blueprint and packed rows. It computes the same as `decoder.FusedDecoder`, with rows in fp32 between
products.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import POINTER, Array, c_void_p, cast
from typing import Final

import torch
from torch import Tensor, nn

from models.weights.blocks import BLOCKS
from models.weights.loading import LowRankWeights
from service.engine.runner.forwards.attention import AttentionPlan
from service.engine.runner.forwards.blueprint import (
    ACTIVATIONS,
    HEAD,
    PRODUCTS,
    Blueprint,
    ExpertsOutline,
    LayerOutline,
    LayerPlan,
    Norm,
    Outline,
    Place,
    places_of,
)
from service.engine.runner.forwards.forward import CannotServe
from service.engine.runner.forwards.native_parts import Parts
from service.engine.runner.forwards.step import Step
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.native.attention import heads_struct
from service.engine.runner.native.library import KINDS, WEIGHT_ONLY, Library, address, library, unavailable
from service.engine.runner.native.linear import NativeAdded, NativeLinear, Placed
from service.engine.runner.native.structs import (
    AdaptersStruct,
    AddedStruct,
    ExpertsStruct,
    GateStruct,
    LayerStruct,
    ModelStruct,
    NormStruct,
    StepStruct,
)

NO_ROWS: Final = torch.zeros(0, dtype=torch.long)


class NativeDecoder(nn.Module):
    """The whole model over one cache. Its description holds the cache's memory. The blueprint can be dropped."""

    kind = "decoder"
    attends = True
    invariant = True
    no_states = ""

    def __init__(self, whole: Blueprint, cache: KVCache) -> None:
        """Keeps the blueprint's embedding unchanged. Raises CannotServe without kernels, on other devices, and for
        heads or weights that no kernel fits."""
        super().__init__()
        kernels = library()
        if kernels is None or cache.device.type != "cpu" or cache.dtype not in KINDS:
            raise CannotServe(f"no native kernels: {unavailable() or f'{cache.dtype} on {cache.device}'}")
        if cache.shapes != whole.outline.shapes:
            raise CannotServe("the layers' heads differ")
        _check_kinds(whole.outline)
        _check_shapes(whole)
        self._library, self._cache = kernels, cache
        self._kept: list[Tensor] = []
        self._reach = whole.reach
        self._specs = [layer.spec for layer in whole.layers]  # its sinks are read at every step
        self._places = places_of(whole)
        self._adapters: dict[str, _Adapter] = {}
        pairs = zip(whole.outline.layers, whole.layers, strict=True)
        self.layers = nn.ModuleList(_linears(kernels, outline, layer) for outline, layer in pairs)
        self.head = NativeLinear(kernels, (whole.head,))
        self.embedding = None if whole.embedding is None else nn.Buffer(whole.embedding.contiguous(), persistent=False)
        if self.embedding is None and self.head.kind not in (KINDS[torch.int8], WEIGHT_ONLY, KINDS[BLOCKS]):
            raise CannotServe("no kernel reads an embedding from the rows of such a head")
        self.vocab_size = whole.vocab_size
        structs = [self._layer(index, layer, whole) for index, layer in enumerate(whole.layers)]
        self._layer_structs = (LayerStruct * len(structs))(*structs)
        self._struct = self._model(whole)

    @property
    def model(self) -> nn.Module:
        return self

    def load_adapter(self, name: str, weights: Mapping[str, LowRankWeights]) -> None:
        missing = sorted(weights.keys() - self._places.keys())
        if missing:
            raise CannotServe(f"no linear layer {missing[0]} to adapt")
        for module, each in weights.items():
            self._check_adapter(module, each)
        self._adapters[name] = _Adapter(weights, self._places, len(self.layers))

    def _check_adapter(self, module: str, weights: LowRankWeights) -> None:
        at = self._places[module]
        linear = self.head if at.product == HEAD else self.layers[at.layer][at.product]  # type: ignore[index]
        room = linear.out_features - at.first
        if weights.a.shape[1] != linear.in_features or weights.b.shape[1] > room or len(weights.a) != len(weights.b):
            shapes = f"{tuple(weights.a.shape)} and {tuple(weights.b.shape)}"
            raise CannotServe(f"matrices of shapes {shapes} do not fit the linear layer {module}")

    def unload_adapter(self, name: str) -> None:
        self._adapters.pop(name, None)

    def forward(self, step: Step) -> Tensor:
        logits = torch.empty(len(step.logit_rows), self.head.out_features)
        state_rows = NO_ROWS if step.final is None else step.final.rows
        states = self.run(self._struct, step, step.token_ids, logits, state_rows)
        if step.final is not None:
            step.final.states = states
        return logits

    def run(self, model: ModelStruct, step: Step, token_ids: Tensor, logits: Tensor, state_rows: Tensor) -> Tensor:
        """Computes a step of `model`. Fills `logits` [logit rows, vocabulary], if there are any, and returns the states
        of `state_rows`."""
        plan: AttentionPlan = step.plan
        if len(step.positions):
            self._reach(int(step.positions.max()) + 1)
        states = torch.empty(len(state_rows), self.head.in_features)
        read = (step.logit_rows[: len(logits)], state_rows)
        tables = (c_void_p * 2)(address(plan.tables), address(plan.windowed.tables))
        inputs = map(address, (token_ids, step.positions, *read))
        outputs = map(address, (plan.sequence_rows, logits, states))
        numbers = (len(token_ids), len(plan.sequences), *map(len, read), len(plan.tables))
        owners = torch.full((len(token_ids) if step.adapter_rows else 0,), -1)
        adapters = self._adapters_struct(step, owners)
        self._library.step(model, StepStruct(*numbers, *inputs, tables, *outputs, adapters))
        return states

    def parts(self, step: Step) -> Parts:
        """Returns the parts of a step, over the step's own cache."""
        return Parts(self, step)

    def _adapters_struct(self, step: Step, owners: Tensor) -> AdaptersStruct:
        """Returns the step's adapters. It fills `owners` [rows], which must live as long as the result."""
        if not step.adapter_rows:
            return AdaptersStruct()
        names = list(dict.fromkeys(each.adapter for each in step.adapter_rows))
        for each in step.adapter_rows:
            owners[each.rows] = names.index(each.adapter)
        linears = len(self.layers) * len(PRODUCTS) + 1
        added = (POINTER(AddedStruct) * len(names))(
            *(cast(self._adapters[name].table, POINTER(AddedStruct)) for name in names)
        )
        return AdaptersStruct(address(owners), len(names), linears, added)

    def layer_structs(self, cache: KVCache) -> Array[LayerStruct]:
        """Returns a copy of the layers' descriptions, over another cache of the same shapes."""
        layers = (LayerStruct * len(self.layers)).from_buffer_copy(self._layer_structs)
        for index, (layer, spec) in enumerate(zip(layers, self._specs, strict=True)):
            layer.heads = heads_struct(cache, index, layer.heads.heads, spec)
        return layers

    def model_struct(self) -> ModelStruct:
        return ModelStruct.from_buffer_copy(self._struct)

    def _layer(self, index: int, plan: LayerPlan, whole: Blueprint) -> LayerStruct:
        linears = self.layers[index]
        norms = (plan.input_norm, plan.attention_norm, plan.middle_norm, plan.mlp_norm, plan.query_norm, plan.key_norm)
        return LayerStruct(
            *(linears[name].struct for name in ("qkv", "output", "gate_up", "down")),  # type: ignore[index]
            *(self._norm(each) for each in norms),
            *(self._address(each) for each in whole.tables[whole.outline.layers[index].rotary]),
            heads_struct(self._cache, index, whole.outline.heads, plan.spec),
            _experts(linears, whole.outline.layers[index].experts),
        )

    def _model(self, whole: Blueprint) -> ModelStruct:
        return ModelStruct(
            whole.hidden,
            len(self.layers),
            whole.tables[0][0].shape[1],
            whole.outline.parallel_residual,
            GateStruct(ACTIVATIONS.index(whole.outline.activation), whole.outline.alpha, whole.outline.limit),
            self.head.out_features if self.embedding is None else len(self.embedding),
            min(len(table) for pair in whole.tables for table in pair),
            0 if self.embedding is None else KINDS[self.embedding.dtype],
            address(self.embedding),
            self._norm(whole.norm),
            whole.outline.eps,
            whole.outline.embedding_scale,
            whole.outline.logit_softcap or 0.0,
            self.head.struct,
            self._layer_structs,
        )

    def _norm(self, norm: Norm | None) -> NormStruct:
        return NormStruct() if norm is None else NormStruct(self._address(norm.weight), self._address(norm.bias))

    def _address(self, tensor: Tensor | None) -> int | None:
        """Returns the address of a tensor that lives as long as this model."""
        if tensor is None:
            return None
        self._kept.append(tensor.contiguous())
        return address(self._kept[-1])


class _Adapter:
    """One adapter's `table` [linear layers of the model], in the order of `decoder.h`. It holds all targets of the
    table's pointers."""

    def __init__(self, weights: Mapping[str, LowRankWeights], places: Mapping[str, Place], layers: int) -> None:
        parts: dict[int, list[Placed]] = {}
        for module, each in weights.items():
            at = places[module]
            number = at.layer * len(PRODUCTS) + (PRODUCTS.index(at.product) if at.product in PRODUCTS else 0)
            parts.setdefault(number, []).append((at.ordered(each), at.first))
        self._kept = {number: NativeAdded(found) for number, found in parts.items()}
        self.table = (AddedStruct * (layers * len(PRODUCTS) + 1))()
        for number, added in self._kept.items():
            self.table[number] = added.struct


def _check_kinds(outline: Outline) -> None:
    """Raises CannotServe for parts of layers that no kernel computes together."""
    layers = outline.layers
    if outline.parallel_residual and any(layer.experts or layer.attention_norm for layer in layers):
        raise CannotServe("no kernel for experts, or norms of outputs, beside a parallel residual")
    if not outline.gated and (outline.activation == "clamped_silu" or any(layer.experts for layer in layers)):
        raise CannotServe(f"no kernel for experts, or {outline.activation}, without a gate")


def _check_shapes(whole: Blueprint) -> None:
    """Raises CannotServe for weights that do not fit together, because the kernels trust the outline."""
    outline, hidden, rotary = whole.outline, whole.hidden, whole.tables[0][0].shape[1]
    dim, heads, kv_heads = outline.head_dim, outline.heads, outline.kv_heads
    fits = rotary <= dim and rotary % 2 == 0 and heads % kv_heads == 0
    fits &= len({table.shape for pair in whole.tables for table in pair}) == 1
    fits &= _has_size(whole.norm, hidden) and (whole.embedding is None or whole.embedding.shape[1] == hidden)
    ups = 2 if outline.gated else 1
    for names, layer in zip(outline.layers, whole.layers, strict=True):
        wide, mlps = layer.down[0].weight.shape[1], 1 if names.experts is None else names.experts.count
        products = (
            (layer.qkv, hidden, (heads + 2 * kv_heads) * dim),
            (layer.output, heads * dim, hidden),
            (layer.gate_up, hidden, ups * wide * mlps),
            (layer.down, wide, hidden * mlps),
        )
        if names.experts is not None and layer.router is not None:
            fits &= layer.router.weight.shape == (mlps, hidden) and 0 < names.experts.active <= mlps
            fits &= len({part.weight.shape for part in layer.gate_up}) == len({p.weight.shape for p in layer.down}) == 1
        for parts, depth, outputs in products:
            fits &= sum(len(part.weight) for part in parts) == outputs
            fits &= all(part.weight.shape[1] == depth for part in parts)
        norms = (layer.input_norm, layer.attention_norm, layer.middle_norm, layer.mlp_norm)
        fits &= all(_has_size(norm, hidden) for norm in norms)
        fits &= all(_has_size(norm, dim) for norm in (layer.query_norm, layer.key_norm))
    if not fits:
        raise CannotServe("the shapes of the weights do not fit the outline")


def _has_size(norm: Norm | None, size: int) -> bool:
    tensors = () if norm is None else (norm.weight, norm.bias)
    return all(each is None or each.shape == (size,) for each in tensors)


def _linears(kernels: Library, outline: LayerOutline, plan: LayerPlan) -> nn.ModuleDict:
    parts = {"qkv": plan.qkv, "output": plan.output, "gate_up": plan.gate_up, "down": plan.down}
    if plan.router is not None:
        parts["router"] = (plan.router,)
    try:
        linears = {name: NativeLinear(kernels, modules) for name, modules in parts.items()}
    except ValueError as error:
        raise CannotServe(str(error)) from error
    if outline.experts is not None:
        for name in ("gate_up", "down"):
            if linears[name].out_features % (outline.experts.count * kernels.panel) or len(linears[name].columns):
                raise CannotServe(f"experts whose outputs are no multiple of {kernels.panel}, or with outliers")
    return nn.ModuleDict(linears)


def _experts(linears: nn.Module, outline: ExpertsOutline | None) -> ExpertsStruct:
    """Returns the description of a layer's experts; of none if the layer is dense."""
    if outline is None:
        return ExpertsStruct()
    router = linears["router"].struct  # type: ignore[index]
    return ExpertsStruct(outline.count, outline.active, outline.renormalized, router)
