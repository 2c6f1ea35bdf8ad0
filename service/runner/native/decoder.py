"""A whole step of a Llama-shaped model in one call of the native kernels: no Python between its layers.

Knows a blueprint and packed rows. What it computes is `decoder.FusedDecoder` with rows kept in fp32 between products.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from service.runner.attention import AttentionPlan
from service.runner.blueprint import ACTIVATIONS, Blueprint, LayerPlan
from service.runner.forward import CannotServe
from service.runner.kv_cache import KVCache
from service.runner.native.attention import heads_struct
from service.runner.native.library import (
    KINDS,
    LayerStruct,
    Library,
    ModelStruct,
    StepStruct,
    address,
    library,
    unavailable,
)
from service.runner.native.linear import NativeLinear
from service.runner.step import Step


class NativeDecoder(nn.Module):
    """The whole model over one cache, whose memory its description holds. The blueprint can be dropped."""

    kind = "decoder"
    invariant = True

    def __init__(self, whole: Blueprint, cache: KVCache) -> None:
        """Keeps the blueprint's embedding as it is. Raises CannotServe without kernels, on other devices, and for heads
        or weights that no kernel fits."""
        super().__init__()
        kernels = library()
        if kernels is None or cache.device.type != "cpu" or cache.dtype not in KINDS:
            raise CannotServe(f"no native kernels: {unavailable() or f'{cache.dtype} on {cache.device}'}")
        if cache.shapes != whole.outline.shapes:
            raise CannotServe("the layers' heads differ")
        self._library, self._cache = kernels, cache
        self._kept: list[Tensor] = []
        self.layers = nn.ModuleList(_linears(kernels, layer) for layer in whole.layers)
        self.head = NativeLinear(kernels, (whole.head,))
        self.embedding = nn.Buffer(whole.embedding.contiguous(), persistent=False)
        structs = [self._layer(index, layer, whole) for index, layer in enumerate(whole.layers)]
        self._layer_structs = (LayerStruct * len(structs))(*structs)
        self._struct = self._model(whole)

    @property
    def model(self) -> nn.Module:
        return self

    def forward(self, step: Step) -> Tensor:
        plan: AttentionPlan = step.plan
        logits = torch.empty(len(step.logit_rows), self.head.out_features)
        tensors = (step.token_ids, step.positions, step.logit_rows, plan.tables, plan.span_rows, logits)
        numbers = (len(step.token_ids), len(plan.spans), len(step.logit_rows))
        self._library.step(self._struct, StepStruct(*numbers, *map(address, tensors)))
        return logits

    def _layer(self, index: int, plan: LayerPlan, whole: Blueprint) -> LayerStruct:
        linears = self.layers[index]
        norms = (plan.input_norm, plan.attention_norm, plan.middle_norm, plan.mlp_norm, plan.query_norm, plan.key_norm)
        return LayerStruct(
            *(linears[name].struct for name in ("qkv", "output", "gate_up", "down")),  # type: ignore[index]
            *(self._address(norm) for norm in norms),
            heads_struct(self._cache, index, whole.outline.heads, plan.spec),
        )

    def _model(self, whole: Blueprint) -> ModelStruct:
        first = self.layers[0]
        return ModelStruct(
            whole.embedding.shape[1],
            first["down"].in_features,  # type: ignore[index]
            len(self.layers),
            whole.cos.shape[1],
            ACTIVATIONS.index(whole.outline.activation),
            KINDS[self.embedding.dtype],
            address(self.embedding),
            self._address(whole.cos),
            self._address(whole.sin),
            self._address(whole.norm),
            whole.outline.eps,
            whole.outline.embedding_scale,
            whole.outline.logit_softcap or 0.0,
            self.head.struct,
            self._layer_structs,
        )

    def _address(self, tensor: Tensor | None) -> int | None:
        """Of a tensor that lives as long as this model."""
        if tensor is None:
            return None
        self._kept.append(tensor.contiguous())
        return address(self._kept[-1])


def _linears(kernels: Library, plan: LayerPlan) -> nn.ModuleDict:
    parts = {"qkv": plan.qkv, "output": plan.output, "gate_up": plan.gate_up, "down": plan.down}
    try:
        return nn.ModuleDict({name: NativeLinear(kernels, modules) for name, modules in parts.items()})
    except ValueError as error:
        raise CannotServe(str(error)) from error
