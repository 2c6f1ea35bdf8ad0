"""What a Llama-shaped model computes, read from the library's model: which weights, norms and numbers, in which places.

Knows architectures and nothing of how they are computed. Both forwards of our own start from it. What it says is
checked at load, by `probe.verify`, and by tests/golden; anything unusual in a config goes to the library.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from service.runner.attention import AttentionSpec
from service.runner.foreign import CannotServe

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3")
NORMS_ADD_ONE = frozenset({"gemma", "gemma2"})
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose table depends on the position alone, so that it can be made once."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerPlan:
    """One decoder layer. Linear layers are the library's modules, those of one tuple read the same rows. Norms are fp32
    [hidden] or [head_dim]; `attention_norm` and `mlp_norm`, where there are any, are of what is added to the rows."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Blueprint:
    """`cos` and `sin` are fp32 [max_model_len, rotary dimensions]; a softcap of None is none."""

    embedding: Tensor
    embedding_scale: float
    cos: Tensor
    sin: Tensor
    layers: tuple[LayerPlan, ...]
    norm: Tensor
    head: Any
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    activation: str
    logit_softcap: float | None


def read_blueprint(model: transformers.PreTrainedModel, max_model_len: int) -> Blueprint:
    """Raises CannotServe, with the reason, for a config that our forwards do not compute."""
    config: Any = model.config
    check_family(config)
    body: Any = model.model
    rope = getattr(body.rotary_emb, "rope_type", "default")
    if rope not in STATIC_ROPE:
        raise CannotServe(f"the fused forward does not compute {rope} rotary embeddings")
    embedding: Tensor = body.embed_tokens.weight
    scale = getattr(body.embed_tokens, "embed_scale", None)
    positions = torch.arange(max_model_len, device=embedding.device)[None]
    cos, sin = body.rotary_emb(embedding.new_zeros(1, dtype=torch.float32), positions)
    offset = 1.0 if config.model_type in NORMS_ADD_ONE else 0.0
    attention = body.layers[0].self_attn
    return Blueprint(
        embedding=embedding,
        embedding_scale=1.0 if scale is None else float(scale.to(embedding.dtype)),
        cos=cos[0].contiguous(),
        sin=sin[0].contiguous(),
        layers=tuple(_layer(layer, config, offset) for layer in body.layers),
        norm=_norm(body.norm, offset),
        head=model.lm_head,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        eps=config.rms_norm_eps,
        activation=_activation(config),
        logit_softcap=getattr(config, "final_logit_softcapping", None),
    )


def check_family(config: Any) -> None:
    """Raises CannotServe for a family or activation that our forwards do not compute."""
    if config.model_type not in FAMILIES:
        raise CannotServe(f"the fused forward does not know {config.model_type}")
    if _activation(config) not in ACTIVATIONS:
        raise CannotServe(f"the fused forward does not compute {_activation(config)}")


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def _layer(source: Any, config: Any, offset: float) -> LayerPlan:
    attention, mlp = source.self_attn, source.mlp
    after = hasattr(source, "pre_feedforward_layernorm")
    return LayerPlan(
        qkv=_parts(attention, "qkv_proj", ("q_proj", "k_proj", "v_proj")),
        output=(attention.o_proj,),
        gate_up=_parts(mlp, "gate_up_proj", ("gate_proj", "up_proj")),
        down=(mlp.down_proj,),
        input_norm=_norm(source.input_layernorm, offset),
        attention_norm=_norm(source.post_attention_layernorm, offset) if after else None,
        middle_norm=_norm(source.pre_feedforward_layernorm if after else source.post_attention_layernorm, offset),
        mlp_norm=_norm(source.post_feedforward_layernorm, offset) if after else None,
        query_norm=_norm(attention.q_norm, offset) if hasattr(attention, "q_norm") else None,
        key_norm=_norm(attention.k_norm, offset) if hasattr(attention, "k_norm") else None,
        spec=_spec(attention, config),
    )


def _parts(module: Any, fused: str, names: Seq[str]) -> tuple[Any, ...]:
    return (getattr(module, fused),) if hasattr(module, fused) else tuple(getattr(module, name) for name in names)


def _norm(module: Any, offset: float) -> Tensor:
    weight: Tensor = module.weight
    return weight.detach().float() + offset


def _spec(attention: Any, config: Any) -> AttentionSpec:
    has_own = hasattr(attention, "sliding_window")
    window = (attention if has_own else config).__dict__.get("sliding_window")
    return AttentionSpec(attention.scaling, window, getattr(attention, "attn_logit_softcapping", None))
