"""The fused decoder is our own forward for decoder-only models in torch operations, with few operations per layer.

It is the readable form of `native/src/decoder.h`, which computes the same in one call. It serves on other devices, and
where the native decoder cannot be built. It must repeat the library's logits: `probe.verify` checks that at load, and
tests/golden checks it token for token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.weights.blocks import BlockWeight, plain
from models.weights.int4 import joined
from models.weights.loading import CodedEmbedding, LowRankWeights, Outliers
from service.engine.runner.block_linear import BlockLinear
from service.engine.runner.forwards.adapters import Adapted
from service.engine.runner.forwards.attention import AttentionPlan
from service.engine.runner.forwards.blueprint import HEAD, PRODUCTS, Blueprint, LayerPlan, Norm, places_of
from service.engine.runner.forwards.forward import CannotServe
from service.engine.runner.forwards.step import Step
from service.engine.runner.linear import DenseLinear, Int8Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # those of models without experts
    "silu": F.silu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
}


class Layer(nn.Module):
    """One decoder layer over packed rows [rows, hidden]."""

    def __init__(self, plan: LayerPlan, index: int, whole: Blueprint) -> None:
        super().__init__()
        if plan.router is not None:
            raise CannotServe("the fused forward in torch operations does not compute experts")
        outline = whole.outline
        self.index, self.eps = index, outline.eps
        self.plan = replace(plan, qkv=(), output=(), gate_up=(), down=())  # the fused ones take their place
        self.heads, self.kv_heads, self.head_dim = outline.heads, outline.kv_heads, outline.head_dim
        self.activation = ACTIVATIONS[outline.activation]
        self.parallel, self.gated = outline.parallel_residual, outline.gated
        self.qkv, self.output = fuse(plan.qkv), fuse(plan.output)
        self.gate_up, self.down = fuse(plan.gate_up), fuse(plan.down)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionPlan) -> Tensor:
        plan, eps = self.plan, self.eps
        mixed = self.output(self._attend(normed(x, plan.input_norm, eps), cos, sin, attention))
        read = x  # by the MLP, with a parallel residual
        x = x + (mixed if plan.attention_norm is None else normed(mixed, plan.attention_norm, eps))
        down = self._mlp(normed(read if self.parallel else x, plan.middle_norm, eps))
        return x + (down if plan.mlp_norm is None else normed(down, plan.mlp_norm, eps))

    def _mlp(self, x: Tensor) -> Tensor:
        inner = self.gate_up(x)
        if self.gated:
            gate, up = inner.chunk(2, dim=-1)
            out: Tensor = self.down(self.activation(gate) * up)
        else:
            out = self.down(self.activation(inner))
        return out

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionPlan) -> Tensor:
        qkv = self.qkv(x).view(len(x), -1, self.head_dim)
        both, value = torch.split(qkv, [self.heads + self.kv_heads, self.kv_heads], dim=1)
        if self.plan.query_norm is not None and self.plan.key_norm is not None:
            query, key = torch.split(both, [self.heads, self.kv_heads], dim=1)
            query, key = normed(query, self.plan.query_norm, self.eps), normed(key, self.plan.key_norm, self.eps)
            both = torch.cat((query, key), dim=1)
        query, key = torch.split(rotate(both, cos, sin), [self.heads, self.kv_heads], dim=1)
        return attention.attend(self.index, query, key, value, self.plan.spec).view(len(x), -1)


class FusedDecoder(nn.Module):
    """The whole model. It holds fused copies, so the blueprint can be dropped."""

    kind = "decoder"
    attends = True
    invariant = True
    no_states = ""

    def __init__(self, whole: Blueprint) -> None:
        super().__init__()
        self.eps, self.norm, self.logit_softcap = whole.outline.eps, whole.norm, whole.outline.logit_softcap
        self.embedding, self.embedding_scale = embedding_of(whole), whole.outline.embedding_scale
        self.head = fuse((whole.head,))
        self.vocab_size = whole.vocab_size
        self.layers = nn.ModuleList(Layer(layer, index, whole) for index, layer in enumerate(whole.layers))
        modules = {
            (index, product): getattr(layer, product) for index, layer in enumerate(self.layers) for product in PRODUCTS
        }
        modules[len(self.layers), HEAD] = self.head
        self._places = places_of(whole)
        places = {name: (modules[at.layer, at.product], at.first) for name, at in self._places.items()}
        self._adapted = Adapted(self.head, places)
        self.rotaries = [layer.rotary for layer in whole.outline.layers]
        self.tables, self._reach, self._dtype = whole.tables, whole.reach, whole.dtype

    @property
    def model(self) -> nn.Module:
        return self

    def load_adapter(self, name: str, weights: Mapping[str, LowRankWeights]) -> None:
        places = self._places
        ordered = {name: places[name].ordered(each) if name in places else each for name, each in weights.items()}
        self._adapted.load_adapter(name, ordered)

    def unload_adapter(self, name: str) -> None:
        self._adapted.unload_adapter(name)

    def forward(self, step: Step) -> Tensor:
        with self._adapted.rows_of(step):
            return self._logits(step)

    def _logits(self, step: Step) -> Tensor:
        x = self.embedding(step.token_ids)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        if step.positions.device.type == "cpu" and len(step.positions):
            self._reach(int(step.positions.max()) + 1)
        tables = [_signed(cos[step.positions], sin[step.positions], self._dtype) for cos, sin in self.tables]
        for layer, rotary in zip(self.layers, self.rotaries, strict=True):
            x = layer(x, *tables[rotary], step.plan)
        if step.final is not None:
            step.final.states = normed(x.index_select(0, step.final.rows), self.norm, self.eps)
        logits: Tensor = self.head(normed(x.index_select(0, step.logit_rows), self.norm, self.eps))
        cap = self.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def embedding_of(whole: Blueprint) -> Callable[[Tensor], Tensor]:
    """Returns the function from token ids [n] to the rows of the embedding [n, hidden]."""
    table = whole.embedding
    return CodedEmbedding(whole.head, whole.dtype) if table is None else lambda token_ids: F.embedding(token_ids, table)


def fuse(parts: Seq[Any]) -> nn.Module:
    """Returns one layer with the parts' outputs side by side. It is exact for 8-bit parts: their scales are per
    channel.
    """
    biases = [getattr(part, "bias", None) for part in parts]
    bias = None if all(b is None for b in biases) else torch.cat([_bias(part) for part in parts])
    if all(getattr(part, "scale", None) is not None for part in parts):
        weight, scale = joined([part.weight for part in parts]), torch.cat([part.scale for part in parts])
        try:
            outliers = Outliers.joined([part.outliers for part in parts])
        except ValueError as error:
            raise CannotServe(str(error)) from None
        return Int8Linear(weight, scale, bias, outliers, parts[0].weight_only, parts[0].hadamard)
    weights = [part.weight for part in parts]
    if all(isinstance(weight, BlockWeight) for weight in weights) and len({weight.type for weight in weights}) == 1:
        return BlockLinear(BlockWeight(torch.cat([weight.data for weight in weights]), weights[0].type), bias)
    weights = [plain(weight, torch.bfloat16) for weight in weights]
    weight = weights[0] if len(parts) == 1 else torch.cat(weights)
    return DenseLinear(weight, bias)


def _bias(part: Any) -> Tensor:
    return torch.zeros(len(part.weight), device=part.weight.device) if part.bias is None else part.bias


def _signed(cos: Tensor, sin: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns rows of the tables for `rotate` [rows, 1, rotary dimensions]."""
    half = sin.shape[-1] // 2
    signed = torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)
    return cos[:, None].to(dtype), signed[:, None].to(dtype)


def normed(x: Tensor, norm: Norm, eps: float) -> Tensor:
    """Returns the layer norm (Ba et al., 2016) or, without a bias, the root mean square norm (Zhang and Sennrich, 2019)
    of each row, computed in fp32."""
    shape = norm.weight.shape
    if norm.bias is None:
        return F.rms_norm(x.float(), shape, norm.weight, eps).to(x.dtype)
    return F.layer_norm(x.float(), shape, norm.weight, norm.bias, eps).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Applies rotary positions to [rows, heads, dim] by halves of the first dimensions, as many as the tables have. The
    sine's first half carries the minus of rotate-half."""
    rotary = cos.shape[-1]
    if rotary < x.shape[-1]:
        return torch.cat((rotate(x[..., :rotary], cos, signed_sin), x[..., rotary:]), dim=-1)
    return (x * cos).addcmul_(x.roll(rotary // 2, -1), signed_sin)
