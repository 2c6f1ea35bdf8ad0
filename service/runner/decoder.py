"""Our own forward for Llama-shaped models: fused query-key-value and gate-up products, few operations a layer.

Knows one architecture family and packed rows; nothing of batches or sampling. It must repeat the library's logits,
which `probe.verify` checks at load and tests/golden hold token for token. Anything unusual in a config goes to
the library.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from service.runner.attention import AttentionPlan, AttentionSpec
from service.runner.foreign import CannotServe
from service.runner.linear import DenseLinear, Int8Linear
from service.runner.step import Step

FAMILY = ("llama", "mistral", "qwen2", "qwen3")
STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose table depends on the position alone, so that it can be made once."""


class Layer(nn.Module):
    """One decoder layer over packed rows [rows, hidden]."""

    def __init__(self, source: Any, index: int, eps: float, spec: AttentionSpec) -> None:
        super().__init__()
        attention, mlp = source.self_attn, source.mlp
        self.index, self.eps, self.spec = index, eps, spec
        self.head_dim: int = attention.head_dim
        self.qkv = fuse([attention.q_proj, attention.k_proj, attention.v_proj])
        self.output = fuse([attention.o_proj])
        self.gate_up = fuse([mlp.gate_proj, mlp.up_proj])
        self.down = fuse([mlp.down_proj])
        self.kv_heads: int = attention.k_proj.out_features // self.head_dim
        self.heads: int = attention.q_proj.out_features // self.head_dim
        self.input_norm: Tensor = source.input_layernorm.weight
        self.middle_norm: Tensor = source.post_attention_layernorm.weight
        self.query_norm: Tensor | None = getattr(getattr(attention, "q_norm", None), "weight", None)
        self.key_norm: Tensor | None = getattr(getattr(attention, "k_norm", None), "weight", None)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
        mixed = self._attend(rms_norm(x, self.input_norm, self.eps), cos, sin, plan)
        x = x + self.output(mixed)
        gate, up = self.gate_up(rms_norm(x, self.middle_norm, self.eps)).chunk(2, dim=-1)
        out: Tensor = x + self.down(F.silu(gate).mul_(up))
        return out

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
        qkv = self.qkv(x).view(len(x), -1, self.head_dim)
        both, value = torch.split(qkv, [self.heads + self.kv_heads, self.kv_heads], dim=1)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = torch.split(both, [self.heads, self.kv_heads], dim=1)
            query, key = rms_norm(query, self.query_norm, self.eps), rms_norm(key, self.key_norm, self.eps)
            both = torch.cat((query, key), dim=1)
        query, key = torch.split(rotate(both, cos, sin), [self.heads, self.kv_heads], dim=1)
        return plan.attend(self.index, query, key, value, self.spec).view(len(x), -1)


class FusedDecoder(nn.Module):
    """The whole model. Holds fused copies; the library's model can be dropped afterwards."""

    kind = "decoder"
    invariant = True

    def __init__(self, model: transformers.PreTrainedModel, max_model_len: int) -> None:
        super().__init__()
        config: Any = model.config
        check_family(config)
        body: Any = model.model
        self.eps: float = config.rms_norm_eps
        self.embedding: Tensor = body.embed_tokens.weight
        self.norm: Tensor = body.norm.weight
        self.head = fuse([model.lm_head])
        self.layers = nn.ModuleList(
            Layer(layer, index, self.eps, _spec(layer.self_attn, config)) for index, layer in enumerate(body.layers)
        )
        positions = torch.arange(max_model_len, device=self.embedding.device)[None]
        cos, sin = body.rotary_emb(self.embedding, positions)
        half = sin.shape[-1] // 2
        self.cos, self.sin = cos[0][:, None], torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)[:, None]

    @property
    def model(self) -> nn.Module:
        return self

    def forward(self, step: Step) -> Tensor:
        x = F.embedding(step.token_ids, self.embedding)
        cos, sin = self.cos[step.positions], self.sin[step.positions]
        for layer in self.layers:
            x = layer(x, cos, sin, step.plan)
        logits: Tensor = self.head(rms_norm(x.index_select(0, step.logit_rows), self.norm, self.eps))
        return logits


def check_family(config: Any) -> None:
    """Raises CannotServe, with the reason, for a config that this forward does not compute."""
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if config.model_type not in FAMILY:
        raise CannotServe(f"the fused forward does not know {config.model_type}")
    if config.hidden_act != "silu" or rope not in STATIC_ROPE:
        raise CannotServe(f"the fused forward does not compute {config.hidden_act} with {rope} rotary embeddings")


def _spec(attention: Any, config: Any) -> AttentionSpec:
    has_own = hasattr(attention, "sliding_window")
    return AttentionSpec(attention.scaling, (attention if has_own else config).__dict__.get("sliding_window"))


def fuse(parts: Seq[Any]) -> nn.Module:
    """One layer that gives the parts' outputs side by side. Exact for 8-bit parts: their scales are per channel."""
    biases = [part.bias for part in parts]
    bias = None if all(b is None for b in biases) else torch.cat([_bias(part) for part in parts])
    if all(isinstance(part, Int8Linear) for part in parts):
        return Int8Linear(torch.cat([p.weight for p in parts]), torch.cat([p.scale for p in parts]), bias)
    weight = parts[0].weight if len(parts) == 1 else torch.cat([part.weight for part in parts])
    return DenseLinear(weight, bias)


def _bias(part: Any) -> Tensor:
    return torch.zeros(part.out_features, device=part.weight.device) if part.bias is None else part.bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm (Zhang and Sennrich, 2019) of each row, computed in fp32."""
    return F.rms_norm(x, weight.shape, weight, eps)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotary positions of [rows, heads, dim] by halves; the sine's first half carries the minus of rotate-half."""
    half = x.shape[-1] // 2
    return (x * cos).addcmul_(x.roll(half, -1), signed_sin)
