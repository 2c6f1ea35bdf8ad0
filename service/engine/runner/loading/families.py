"""The families are the architectures whose outline is known. It is read from the library's model and its config.

The library computes a model with anything unusual in its config.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

from models.weights.experts import FAMILIES as FAMILIES_OF_EXPERTS
from models.weights.loading import CodedEmbedding
from models.weights.names import HEAD
from service.engine.runner.forwards.blueprint import ACTIVATIONS, ExpertsOutline, LayerOutline, Outline, Rotary
from service.engine.runner.forwards.forward import CannotServe

if TYPE_CHECKING:
    import transformers

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3")
NORMS_ADD_ONE = frozenset({"gemma", "gemma2", "gemma3_text"})
STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose table depends on the position only, so it can be made once."""
OTHER_NAMES = {"gelu_new": "gelu_pytorch_tanh", "gelu_fast": "gelu_pytorch_tanh", "gelu_python": "gelu"}
"""Names in configs of activations that are known by another name."""


def outline_of(model: transformers.PreTrainedModel) -> Outline:
    """Returns the outline of a model. Raises CannotServe, with the reason, for a config that our forwards do not
    compute."""
    config: Any = model.config
    readers = dict.fromkeys((*LLAMA_LIKE, *FAMILIES_OF_EXPERTS), _llama_like) | {"gpt_neox": _gpt_neox}
    if config.model_type not in readers:
        raise CannotServe(f"the fused forward does not know {config.model_type}")
    if _activation(config) not in ACTIVATIONS:
        raise CannotServe(f"the fused forward does not compute {_activation(config)}")
    return readers[config.model_type](model, config)


def _llama_like(model: Any, config: Any) -> Outline:
    body = model.model
    rotaries = _rotaries(body.rotary_emb)
    scale = getattr(body.embed_tokens, "embed_scale", None)
    attention = body.layers[0].self_attn
    return Outline(
        embedding=_embedding(body.embed_tokens, "model.embed_tokens"),
        embedding_scale=1.0 if scale is None else float(scale.to(model.dtype)),
        rotaries=tuple(rotaries.values()),
        layers=tuple(_layer(index, layer, config, list(rotaries)) for index, layer in enumerate(body.layers)),
        norm="model.norm.weight",
        norm_offset=1.0 if config.model_type in NORMS_ADD_ONE else 0.0,
        head=_head(model, "model.embed_tokens"),
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
    name = str(getattr(config, "hidden_activation", None) or config.hidden_act)
    return OTHER_NAMES.get(name, name)


def _head(model: Any, embedding: str) -> str:
    """Returns the head's module, or the `embedding`'s if the head has no weights of its own; files hold them once
    then."""
    table = model.get_input_embeddings()
    if isinstance(table, CodedEmbedding):
        return HEAD
    tied = model.lm_head.weight.data_ptr() == table.weight.data_ptr() and model.lm_head.bias is None
    return embedding if tied else HEAD


def _embedding(module: Any, name: str) -> str | None:
    """Returns the name of the embedding's weights; None if the head's matrix serves as embedding."""
    return None if isinstance(module, CodedEmbedding) else f"{name}.weight"


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


def _gpt_neox(model: Any, config: Any) -> Outline:
    attention = model.gpt_neox.layers[0].attention

    def layer(prefix: str) -> LayerOutline:
        return LayerOutline(
            qkv=(f"{prefix}attention.query_key_value",),
            output=(f"{prefix}attention.dense",),
            gate_up=(f"{prefix}mlp.dense_h_to_4h",),
            down=(f"{prefix}mlp.dense_4h_to_h",),
            input_norm=f"{prefix}input_layernorm.weight",
            attention_norm=None,
            middle_norm=f"{prefix}post_attention_layernorm.weight",
            mlp_norm=None,
            query_norm=None,
            key_norm=None,
            scale=attention.scaling,
            window=None,
            softcap=None,
        )

    return Outline(
        embedding=_embedding(model.gpt_neox.embed_in, "gpt_neox.embed_in"),
        embedding_scale=1.0,
        rotaries=tuple(_rotaries(model.gpt_neox.rotary_emb).values()),
        layers=tuple(layer(f"gpt_neox.layers.{index}.") for index in range(config.num_hidden_layers)),
        norm="gpt_neox.final_layer_norm.weight",
        norm_offset=0.0,
        head=_head(model, "gpt_neox.embed_in"),
        heads=config.num_attention_heads,
        kv_heads=config.num_attention_heads,
        head_dim=attention.head_size,
        eps=config.layer_norm_eps,
        activation=_activation(config),
        logit_softcap=None,
        layer_norm=True,
        parallel_residual=bool(config.use_parallel_residual),
        gated=False,
        interleaved=True,
    )
