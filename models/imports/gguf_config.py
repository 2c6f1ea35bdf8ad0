"""This module makes the config.json of a checkpoint from the metadata of the GGUF file that was made of it.

The keys are llama.cpp's. A value that llama.cpp itself takes for granted, because files need not have it, is taken as
there; one that no reader can know is refused. Of tensors the module reads shapes, and the divisors of frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from models.checkpoint.config_policy import refuse_unusable
from models.errors import InvalidSource
from models.imports.gguf_weights import ROTARY_FACTORS, dequantized

if TYPE_CHECKING:
    from models.imports.gguf_head import GgufTensor

ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
}
"""llama.cpp's name of an architecture to the class that serves it. Files of Mistral and Mixtral say `llama`."""
_YARN_OPTIONS: Final = {"rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow"}
_UNKNOWN_SCALINGS: Final = {
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": None,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": None,
}
"""Keys of scalings that are not read, and the value that changes nothing, if there is one."""
_WITHOUT_EFFECT: Final[Mapping[str, tuple[Any, ...]]] = {
    "vocab_size": (),
    "pooling_type": (),
    "tensor_data_layout": (),
    "rope.scaling.finetuned": (),
    "rope.scaling.original_context_length": (),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "attention.scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.sliding_window": (0,),
    "use_parallel_residual": (False,),
    "expert_weights_scale": (0.0, 1.0),
    "expert_weights_norm": (True,),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_shared_count": (0,),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
}
"""Keys that a model may leave unread, with the values that change nothing in it; () is any value."""
_SAMPLING: Final = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "xtc_probability": "xtc_probability",
    "mirostat": "mirostat",
}
"""llama.cpp's `general.sampling.*` by the names of `generation_config.json`."""
_SOFTMAX_OF_CHOSEN: Final = 3
"""llama.cpp's number of the gating of gpt-oss: softmax of the chosen experts' logits."""
_QUERIES_BY_HIDDEN_SIZE: Final = {"gemma2": 46, "gemma3": 62}
"""The layers of the 27B models, whose queries are divided by the root of hidden size / heads and not of the head."""
_PUBLISHED_LAYERS: Final = {"gemma2": (26, 42, 46), "gemma3": (18, 26, 32, 34, 48, 62)}


@dataclass(frozen=True, slots=True)
class Metadata:
    """Values by llama.cpp's keys; those of the architecture without its name before them."""

    values: Mapping[str, Any]
    architecture: str
    _read: set[str] = field(default_factory=set)

    def own(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return self.values.get(f"{self.architecture}.{key}", default)

    def size(self, key: str, default: int | None = None) -> int:
        """Raises InvalidSource for a size that is missing or no size."""
        value = self.own(key, default)
        if not isinstance(value, int) or value <= 0:
            raise InvalidSource(f"the file's {self.architecture}.{key} is {value!r}, which is no size")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Raises InvalidSource for a positive number that is missing or none."""
        value = self.own(key, default)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InvalidSource(f"the file's {self.architecture}.{key} is {value!r}, which is no positive number")
        return _decimal(value)

    def refuse_unread(self) -> None:
        """Raises InvalidSource for a key of the architecture that nothing has read and that may change the model."""
        for name, value in self.values.items():
            key = name.removeprefix(f"{self.architecture}.")
            if key == name or key in self._read:
                continue
            neutral = _WITHOUT_EFFECT.get(key)
            if neutral is None or (neutral and value not in neutral):
                raise InvalidSource(
                    f"the file says {name[:80]} = {str(value)[:40]}, which is not read from GGUF: import the "
                    "safetensors checkpoint that it was made of"
                )


def config_json(metadata: Metadata, tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    """Returns the content of config.json. Raises InvalidSource for what is missing, damaged or not known."""
    blocks = len({name.split(".")[1] for name in tensors if name.startswith("blk.")})
    if metadata.size("block_count") != blocks:  # before a model of a damaged number of layers is built
        raise InvalidSource(f"the file says {metadata.size('block_count'):,} blocks and has tensors of {blocks:,}")
    if metadata.own("attention.causal", True) is not True:
        raise InvalidSource("the file's attention also looks ahead: it generates no text")
    heads, hidden = metadata.size("attention.head_count"), metadata.size("embedding_length")
    config: dict[str, Any] = {
        "model_type": metadata.architecture,
        "architectures": [ARCHITECTURES[metadata.architecture]],
        "hidden_size": hidden,
        "intermediate_size": metadata.size("feed_forward_length"),
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.size("attention.head_count_kv", heads),
        "head_dim": metadata.size("attention.key_length", hidden // heads),
        "max_position_embeddings": metadata.size("context_length"),
        "rms_norm_eps": _decimal(metadata.own("attention.layer_norm_rms_epsilon", 1e-6)),
        "rope_theta": _decimal(metadata.own("rope.freq_base", 10000.0)),
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": metadata.values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.values.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.values.get("tokenizer.ggml.padding_token_id"),
    }
    scaling = _rope_scaling(metadata, tensors.get(ROTARY_FACTORS), config)
    config |= {"rope_scaling": scaling} if scaling else {}
    for key in ("attention.value_length", "rope.dimension_count"):
        if metadata.size(key, config["head_dim"]) != config["head_dim"]:
            raise InvalidSource(
                f"the file's {metadata.architecture}.{key} is {metadata.own(key)}, and its heads have "
                f"{config['head_dim']} numbers: such a model is not read from GGUF"
            )
    config |= _OF_FAMILY.get(metadata.architecture, _plain)(metadata, tensors, config)
    metadata.refuse_unread()
    refuse_unusable({key: value for key, value in config.items() if key.endswith("experts")})
    return config


def generation_json(metadata: Metadata) -> dict[str, Any]:
    """Returns the content of generation_config.json: how the file wants tokens chosen; empty where it does not say."""
    defaults = {name: metadata.values.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()}
    return {
        name: _decimal(value) if isinstance(value, float) else value
        for name, value in defaults.items()
        if value is not None
    }


def _plain(metadata: Metadata, tensors: Mapping[str, GgufTensor], config: Mapping[str, Any]) -> dict[str, Any]:
    if metadata.own("expert_count"):
        return {"hidden_act": "silu"} | _experts(metadata)
    return {"hidden_act": "silu"}


def _llama(metadata: Metadata, tensors: Mapping[str, GgufTensor], config: Mapping[str, Any]) -> dict[str, Any]:
    own = _plain(metadata, tensors, config)
    if window := metadata.own("attention.sliding_window"):
        own = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window} | own
    return own if metadata.own("expert_count") else own | {"attention_bias": "blk.0.attn_q.bias" in tensors}


def _experts(metadata: Metadata) -> dict[str, Any]:
    """Returns what config.json says of a mixture of experts. Raises InvalidSource for an architecture whose mixtures
    are not served."""
    active, width = metadata.size("expert_used_count"), metadata.own("expert_feed_forward_length")
    if metadata.architecture == "qwen3moe":
        return {
            "model_type": "qwen3_moe",
            "num_experts": metadata.size("expert_count"),
            "num_experts_per_tok": active,
            "moe_intermediate_size": metadata.size("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    if metadata.architecture == "llama" and width is None:
        return {
            "model_type": "mixtral",
            "architectures": ["MixtralForCausalLM"],
            "num_local_experts": metadata.size("expert_count"),
            "num_experts_per_tok": active,
        }
    raise InvalidSource("the file is a mixture of experts of another kind than Qwen3-MoE's and Mixtral's")


def _gemma(metadata: Metadata, tensors: Mapping[str, GgufTensor], config: Mapping[str, Any]) -> dict[str, Any]:
    return {"hidden_act": "gelu_pytorch_tanh"}


def _gemma2(metadata: Metadata, tensors: Mapping[str, GgufTensor], config: Mapping[str, Any]) -> dict[str, Any]:
    _require_one_theta(metadata)
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _query_scalar(metadata, config),
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.number("final_logit_softcapping", 30.0),
        "sliding_window": metadata.size("attention.sliding_window", 4096),
        "layer_types": _layer_types(metadata, config, 2),
    }


def _gemma3(metadata: Metadata, tensors: Mapping[str, GgufTensor], config: Mapping[str, Any]) -> dict[str, Any]:
    """Layers with a window have rotary positions of their own, never scaled. A file without a window is of a model
    whose layers all look back to the start."""
    window, capping = metadata.own("attention.sliding_window", 0), metadata.own("final_logit_softcapping")
    return {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _query_scalar(metadata, config),
        "final_logit_softcapping": None if capping is None else metadata.number("final_logit_softcapping"),
        "rope_theta": metadata.number("rope.freq_base"),
        "rope_local_base_freq": metadata.number("rope.freq_base_swa", 10000.0),
        "sliding_window": metadata.size("attention.sliding_window") if window else config["max_position_embeddings"],
        "layer_types": _layer_types(metadata, config, 6 if window else 1),
    }


def _gpt_oss(metadata: Metadata, tensors: Mapping[str, GgufTensor], config: Mapping[str, Any]) -> dict[str, Any]:
    """The clamped activation's two numbers are in no file; llama.cpp and the library have the same."""
    _require_one_theta(metadata)
    if metadata.own("expert_gating_func", _SOFTMAX_OF_CHOSEN) != _SOFTMAX_OF_CHOSEN:
        raise InvalidSource("the file's experts are chosen in another way than gpt-oss's")
    scaling = config.get("rope_scaling") or {"rope_type": "default"}  # where none is said, the library takes YaRN
    return {
        "model_type": "gpt_oss",
        "hidden_act": "silu",
        "intermediate_size": metadata.size("expert_feed_forward_length"),
        "num_local_experts": metadata.size("expert_count"),
        "num_experts_per_tok": metadata.size("expert_used_count"),
        "attention_bias": True,
        "rope_theta": metadata.number("rope.freq_base"),
        "rope_scaling": scaling | ({"truncate": False} if scaling["rope_type"] == "yarn" else {}),
        "sliding_window": metadata.size("attention.sliding_window"),
        "layer_types": _layer_types(metadata, config, 2),
    }


_OF_FAMILY: Final[Mapping[str, Callable[[Metadata, Mapping[str, GgufTensor], Mapping[str, Any]], dict[str, Any]]]] = {
    "llama": _llama,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
}


def _require_one_theta(metadata: Metadata) -> None:
    """Raises InvalidSource for layers with a window that have rotary positions of their own, which this model has no
    place for."""
    base = metadata.own("rope.freq_base", 10000.0)
    if (own := metadata.own("rope.freq_base_swa", base)) != base:
        raise InvalidSource(f"the file has rotary positions of base {own} in layers with a window and {base} in others")


def _layer_types(metadata: Metadata, config: Mapping[str, Any], period: int) -> list[str]:
    """Returns what each layer looks at: of `period` layers all but the last have a window, unless the file says another
    period or each layer's own. Raises InvalidSource for a pattern of another length."""
    key, layers = "attention.sliding_window_pattern", int(config["num_hidden_layers"])
    pattern = metadata.own(key, period)
    if isinstance(pattern, list):
        if len(pattern) != layers:
            raise InvalidSource(
                f"the file's {metadata.architecture}.{key} is for {len(pattern):,} of {layers:,} layers"
            )
        windows = [bool(each) for each in pattern]
    else:
        period = metadata.size(key, period)
        windows = [layer % period < period - 1 for layer in range(layers)]
    return ["sliding_attention" if window else "full_attention" for window in windows]


def _query_scalar(metadata: Metadata, config: Mapping[str, Any]) -> int:
    """Returns the number by whose root queries are divided. No file has it: llama.cpp goes by the published numbers of
    layers. Raises InvalidSource for other models of that architecture, unless both rules say the same."""
    by_head, by_hidden_size = int(config["head_dim"]), config["hidden_size"] // config["num_attention_heads"]
    layers = config["num_hidden_layers"]
    if layers == _QUERIES_BY_HIDDEN_SIZE[metadata.architecture]:
        return int(by_hidden_size)
    if layers in _PUBLISHED_LAYERS[metadata.architecture] or by_head == by_hidden_size:
        return by_head
    raise InvalidSource(
        f"the file does not say how its queries are scaled, which is known of {metadata.architecture} with "
        f"{', '.join(map(str, _PUBLISHED_LAYERS[metadata.architecture]))} layers; this one has {layers}: import the "
        "safetensors checkpoint that it was made of"
    )


def _decimal(value: float) -> float:
    """Returns the number that was meant by an fp32 one, as 1e-05 by 9.999999747378752e-06."""
    return float(f"{value:.6g}")


def _rope_scaling(metadata: Metadata, factors: GgufTensor | None, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns transformers' form of the scaling of positions. Raises InvalidSource for one that has none."""
    for key, without in _UNKNOWN_SCALINGS.items():
        if metadata.own(key, without) != without:
            raise InvalidSource(
                f"the file scales positions by {metadata.architecture}.{key}, which is not read from GGUF"
            )
    kind, old = metadata.own("rope.scaling.type", "linear"), metadata.own("rope.scale_linear")
    factor = metadata.own("rope.scaling.factor", old)
    scales = kind != "none" and factor not in (None, 0, 1)
    if factors is not None and scales:
        raise InvalidSource(
            "the file scales positions twice, by a factor and by rope_freqs, which is not read from GGUF"
        )
    if factors is not None:
        return _divided(dequantized(factors).tolist(), config)
    if not scales:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = metadata.size("rope.scaling.original_context_length")
        scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        return scaling | {
            name: metadata.number(key) for key, name in _YARN_OPTIONS.items() if metadata.own(key) is not None
        }
    raise InvalidSource(f"the file scales positions by {str(kind)[:40]!r}, which is not read from GGUF")


def _divided(factors: list[float], config: Mapping[str, Any]) -> dict[str, Any]:
    """The file has one divisor for each frequency, and not the rule that made them. Returns Llama 3.1's rule, which
    divides slow frequencies, if it makes the same ones; else the divisors themselves, which `longrope` takes."""
    if len(factors) != int(config["head_dim"]) // 2 or not all(0 < each < math.inf for each in factors):
        raise InvalidSource(f"the file's {ROTARY_FACTORS} has not one positive divisor for each frequency")
    low, high, original, factor = 1.0, 4.0, 8192, max(factors)
    half = int(config["head_dim"]) // 2
    made = []
    for at in range(half):
        wave = 2 * math.pi * float(config["rope_theta"]) ** (at / half)
        smooth = (original / wave - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth) if smooth else factor
        made.append(1.0 if wave < original / high else factor if wave > original / low else between)
    if any(abs(a / b - 1) > 1e-3 for a, b in zip(made, factors, strict=True)):
        whole = int(config["max_position_embeddings"])
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": whole,
        }
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
