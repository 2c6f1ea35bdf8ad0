"""The families are the architectures whose outline is known. It is read from the library's model and its config.

The library computes a model with anything unusual in its config.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

from models.experts import FAMILIES as FAMILIES_OF_EXPERTS
from service.runner.forwards.forward import CannotServe
from service.runner.loading.blueprint import ACTIVATIONS, ExpertsOutline, LayerOutline, Outline, Rotary

if TYPE_CHECKING:
    import transformers

DENSE_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3")
NORMS_ADD_ONE = frozenset({"gemma", "gemma2", "gemma3_text"})
STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose table depends on the position only, so it can be made once."""


def outline_of(model: transformers.PreTrainedModel) -> Outline:
    """Returns the outline of a model. Raises CannotServe, with the reason, for a config that our forwards do not
    compute."""
    config: Any = model.config
    if config.model_type not in {*DENSE_FAMILIES, *FAMILIES_OF_EXPERTS}:
        raise CannotServe(f"the fused forward does not know {config.model_type}")
    if _activation(config) not in ACTIVATIONS:
        raise CannotServe(f"the fused forward does not compute {_activation(config)}")
    body: Any = model.model
    rotaries = _rotaries(body.rotary_emb)
    scale = getattr(body.embed_tokens, "embed_scale", None)
    attention = body.layers[0].self_attn
    return Outline(
        embedding="model.embed_tokens.weight",
        embedding_scale=1.0 if scale is None else float(scale.to(body.embed_tokens.weight.dtype)),
        rotaries=tuple(rotaries.values()),
        layers=tuple(_layer(index, layer, config, list(rotaries)) for index, layer in enumerate(body.layers)),
        norm="model.norm.weight",
        norm_offset=1.0 if config.model_type in NORMS_ADD_ONE else 0.0,
        head=_head(model),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        eps=config.rms_norm_eps,
        activation=_activation(config),
        logit_softcap=getattr(config, "final_logit_softcapping", None),
        alpha=getattr(config, "swiglu_alpha", 1.0),
        limit=getattr(config, "swiglu_limit", 0.0),
    )


def _rotaries(rope: Any) -> dict[str, Rotary]:
    """Returns the rotary positions by type of layer; of the type "" if all layers have the same. Raises CannotServe for
    a table that does not only depend on the position."""
    kinds = getattr(rope, "rope_type", "default")
    types = kinds if isinstance(kinds, dict) else {"": kinds}
    if moving := sorted(set(types.values()) - STATIC_ROPE):
        raise CannotServe(f"the fused forward does not compute {moving[0]} rotary embeddings")

    def of_type(name: str) -> Rotary:
        prefix = f"{name}_" if name else ""
        frequencies = getattr(rope, f"{prefix}inv_freq").float().tolist()
        return Rotary(tuple(frequencies), float(getattr(rope, f"{prefix}attention_scaling")))

    return {name: of_type(name) for name in types}


def _activation(config: Any) -> str:
    if config.model_type == "gpt_oss":  # says silu, and computes more
        return "clamped_silu"
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def _head(model: Any) -> str:
    """Returns the head's module, or the embedding's if the head has no weights of its own; files hold them once
    then."""
    tied = model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr() and model.lm_head.bias is None
    return "model.embed_tokens" if tied else "lm_head"


def _layer(index: int, source: Any, config: Any, rotaries: Seq[str]) -> LayerOutline:
    prefix, attention = f"model.layers.{index}.", source.self_attn
    after = hasattr(source, "pre_feedforward_layernorm")
    of_heads = hasattr(attention, "q_norm")
    has_own = hasattr(attention, "sliding_window")

    def parts(module: str, fused: str, names: Seq[str]) -> tuple[str, ...]:
        found = (fused,) if hasattr(getattr(source, module), fused) else names
        return tuple(f"{prefix}{module}.{name}" for name in found)

    def norm(name: str) -> str:
        return f"{prefix}{name}.weight"

    experts, gate_up, down = _experts(prefix, source.mlp, config)
    return LayerOutline(
        qkv=parts("self_attn", "qkv_proj", ("q_proj", "k_proj", "v_proj")),
        output=(f"{prefix}self_attn.o_proj",),
        gate_up=gate_up or parts("mlp", "gate_up_proj", ("gate_proj", "up_proj")),
        down=down or (f"{prefix}mlp.down_proj",),
        input_norm=norm("input_layernorm"),
        attention_norm=norm("post_attention_layernorm") if after else None,
        middle_norm=norm("pre_feedforward_layernorm" if after else "post_attention_layernorm"),
        mlp_norm=norm("post_feedforward_layernorm") if after else None,
        query_norm=norm("self_attn.q_norm") if of_heads else None,
        key_norm=norm("self_attn.k_norm") if of_heads else None,
        scale=attention.scaling,
        window=(attention if has_own else config).__dict__.get("sliding_window"),
        softcap=getattr(attention, "attn_logit_softcapping", None),
        sinks=f"{prefix}self_attn.sinks" if hasattr(attention, "sinks") else None,
        rotary=rotaries.index(config.layer_types[index]) if len(rotaries) > 1 else 0,
        experts=experts,
    )


def _experts(prefix: str, mlp: Any, config: Any) -> tuple[ExpertsOutline | None, tuple[str, ...], tuple[str, ...]]:
    """Returns the outline of a layer's mixture of experts, and the names of their gates and ups, and of their downs;
    None and nothing for a single MLP."""
    if not hasattr(mlp, "experts"):
        return None, (), ()
    names = FAMILIES_OF_EXPERTS[config.model_type]
    router = getattr(mlp, names.router)
    experts = ExpertsOutline(
        names.router_of(prefix),
        router.num_experts,
        router.top_k,
        bool(getattr(router, "norm_topk_prob", True)),
    )
    return (
        experts,
        names.parts(prefix, experts.count, names.gate, names.up),
        names.parts(prefix, experts.count, names.down),
    )
