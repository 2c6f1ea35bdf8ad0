"""The config.json of well-known models: the keys and values that decide what they mean, as published, at tiny sizes."""

from __future__ import annotations

from typing import Any, Final

Config = dict[str, Any]
VOCABULARY: Final = 260


def _of(model_type: str, architecture: str, **own: Any) -> Config:
    return {"model_type": model_type, "architectures": [architecture], "vocab_size": VOCABULARY, **own}


def _llama(model_type: str = "llama", architecture: str = "LlamaForCausalLM", **own: Any) -> Config:
    """A model of Llama's keys."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "transformers_version": "4.43.0",
    }
    return _of(model_type, architecture, **sizes | own)


def _rope3(factor: float) -> Config:
    return {
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    }


def _longrope(pairs: int) -> Config:
    return {"type": "longrope", "short_factor": [1.0] * pairs, "long_factor": [1.0 + at / 4 for at in range(pairs)]}


def _code(prefix: str, name: str) -> Config:
    """Code of its own, which published files name."""
    return {
        "auto_map": {"AutoConfig": f"configuration_{prefix}.C", "AutoModelForCausalLM": f"modeling_{prefix}.{name}"}
    }


_GEMMA: Final[Config] = {
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "pad_token_id": 0,
}
_VISION: Final[Config] = {"hidden_size": 16, "model_type": "siglip_vision_model", "num_hidden_layers": 1}
_EXPERTS: Final[Config] = {"num_experts_per_tok": 2, "output_router_logits": False, "router_aux_loss_coef": 0.001}
_DEEPSEEK: Final[Config] = {
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "moe_intermediate_size": 32,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "norm_topk_prob": False,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
    "v_head_dim": 16,
    "seq_aux": True,
    "ep_size": 1,
    "pretraining_tp": 1,
}

SERVED: Final[dict[str, Config]] = {
    "Llama-2-7b": _llama(pretraining_tp=1, rope_scaling=None, tie_word_embeddings=False, num_key_value_heads=4),
    "Llama-3-8B-Instruct": _llama(rope_theta=500000.0, attention_bias=False, attention_dropout=0.0, mlp_bias=False),
    "Llama-3.1-8B-Instruct": _llama(rope_theta=500000.0, rope_scaling=_rope3(8.0), eos_token_id=[3, 4, 5]),
    "Llama-3.2-1B": _llama(rope_theta=500000.0, rope_scaling=_rope3(32.0), head_dim=16, tie_word_embeddings=True),
    "TinyLlama-1.1B-Chat": _llama(pretraining_tp=1, max_position_embeddings=128),
    "SmolLM2-135M": _llama(is_llama_config=True, rope_interleaved=False, tie_word_embeddings=True, rope_theta=100000),
    "Yi-1.5-9B": _llama(rope_theta=5000000.0, rope_scaling=None, pad_token_id=0),
    "deepseek-coder-6.7b": _llama(rope_scaling={"factor": 4.0, "type": "linear"}, rope_theta=100000),
    "Mistral-7B-v0.1": _llama("mistral", "MistralForCausalLM", sliding_window=32),
    "Mistral-7B-v0.3": _llama("mistral", "MistralForCausalLM", sliding_window=None, rope_theta=1000000.0),
    "Mistral-Nemo": _llama("mistral", "MistralForCausalLM", head_dim=32, sliding_window=None),
    "Mixtral-8x7B": _llama("mixtral", "MixtralForCausalLM", num_local_experts=4, sliding_window=None, **_EXPERTS),
    "Qwen1.5-0.5B": _llama(
        "qwen2", "Qwen2ForCausalLM", max_window_layers=21, sliding_window=64, use_sliding_window=False
    ),
    "Qwen2.5-7B-Instruct": _llama(
        "qwen2", "Qwen2ForCausalLM", max_window_layers=2, sliding_window=64, use_sliding_window=False, rope_theta=1e6
    ),
    "Qwen2.5-1M": _llama(
        "qwen2",
        "Qwen2ForCausalLM",
        rope_scaling={"factor": 4.0, "original_max_position_embeddings": 64, "type": "yarn"},
    ),
    "Qwen2-57B-A14B": _llama(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        decoder_sparse_step=1,
        moe_intermediate_size=32,
        norm_topk_prob=False,
        num_experts=4,
        shared_expert_intermediate_size=48,
        sliding_window=64,
        use_sliding_window=False,
        **_EXPERTS,
    ),
    "Qwen3-0.6B": _llama("qwen3", "Qwen3ForCausalLM", head_dim=32, sliding_window=None, tie_word_embeddings=True),
    "Qwen3-30B-A3B": _llama(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        head_dim=32,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        moe_intermediate_size=32,
        norm_topk_prob=True,
        num_experts=4,
        **_EXPERTS,
    ),
    "gemma-2b": _llama("gemma", "GemmaForCausalLM", **_GEMMA | {"hidden_act": "gelu", "num_key_value_heads": 1}),
    "gemma-2-2b": _llama(
        "gemma2",
        "Gemma2ForCausalLM",
        **_GEMMA,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        cache_implementation="hybrid",
        query_pre_attn_scalar=16,
        sliding_window=32,
    ),
    "gemma-3-1b-it": _llama(
        "gemma3_text",
        "Gemma3ForCausalLM",
        **_GEMMA,
        query_pre_attn_scalar=16,
        rope_local_base_freq=10000,
        rope_theta=1000000,
        rope_scaling=None,
        sliding_window=32,
        sliding_window_pattern=6,
    ),
    "gemma-3-4b-it": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "boi_token_index": 250,
        "eoi_token_index": 251,
        "eos_token_id": [1, 106],
        "image_token_index": 252,
        "mm_tokens_per_image": 4,
        "text_config": _llama(
            "gemma3_text", "", **_GEMMA, sliding_window=32, rope_scaling={"factor": 8.0, "rope_type": "linear"}
        ),
        "vision_config": _VISION,
    },
    "Mistral-Small-3.1": {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "image_token_index": 10,
        "multimodal_projector_bias": False,
        "spatial_merge_size": 2,
        "text_config": _llama("mistral", "", head_dim=16, sliding_window=None, tie_word_embeddings=False),
        "vision_config": _VISION | {"model_type": "pixtral"},
    },
    "Phi-3-mini-4k": _llama(
        "phi3",
        "Phi3ForCausalLM",
        **_code("phi3", "Phi3ForCausalLM"),
        sliding_window=64,
        rope_scaling=None,
        pad_token_id=2,
    ),
    "Phi-3.5-mini": _llama(
        "phi3",
        "Phi3ForCausalLM",
        **_code("phi3", "Phi3ForCausalLM"),
        original_max_position_embeddings=256,
        rope_scaling=_longrope(8),
        pad_token_id=2,
    ),
    "Phi-4-mini": _llama(
        "phi3",
        "Phi3ForCausalLM",
        **_code("phi3", "Phi3ForCausalLM"),
        _attn_implementation="flash_attention_2",
        original_max_position_embeddings=256,
        partial_rotary_factor=0.75,
        rope_scaling=_longrope(6),
        tie_word_embeddings=True,
        pad_token_id=2,
    ),
    "phi-2": _llama(
        "phi",
        "PhiForCausalLM",
        hidden_act="gelu_new",
        layer_norm_eps=1e-5,
        partial_rotary_factor=0.5,
        qk_layernorm=False,
    ),
    "OLMo-2-7B": _llama("olmo2", "Olmo2ForCausalLM", rms_norm_eps=1e-6, rope_theta=500000, pad_token_id=1),
    "granite-3.1-2b": _llama(
        "granite",
        "GraniteForCausalLM",
        attention_multiplier=0.0625,
        embedding_multiplier=12.0,
        logits_scaling=8.0,
        residual_multiplier=0.22,
        tie_word_embeddings=True,
    ),
    "c4ai-command-r": _llama(
        "cohere", "CohereForCausalLM", layer_norm_eps=1e-5, logit_scale=0.0625, use_qk_norm=False, pad_token_id=0
    ),
    "starcoder2-3b": _llama(
        "starcoder2",
        "Starcoder2ForCausalLM",
        hidden_act="gelu_pytorch_tanh",
        norm_epsilon=1e-5,
        sliding_window=32,
        use_bias=True,
    ),
    "stablelm-2-1_6b": _llama(
        "stablelm", "StableLmForCausalLM", layer_norm_eps=1e-5, partial_rotary_factor=0.25, use_qkv_bias=True
    ),
    "glm-4-9b-chat-hf": _llama(
        "glm", "GlmForCausalLM", head_dim=16, attention_bias=True, partial_rotary_factor=0.5, pad_token_id=0
    ),
    "EXAONE-4.0-1.2B": _llama(
        "exaone4",
        "Exaone4ForCausalLM",
        head_dim=16,
        layer_types=["full_attention", "full_attention"],
        sliding_window=None,
        tie_word_embeddings=True,
    ),
    "DeepSeek-V2-Lite": _llama("deepseek_v2", "DeepseekV2ForCausalLM", **_code("deepseek", "D"), **_DEEPSEEK),
    "gpt-oss-20b": _llama(
        "gpt_oss",
        "GptOssForCausalLM",
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        experts_per_token=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=32,
        swiglu_limit=7.0,
        attention_bias=True,
        pad_token_id=3,
        rope_scaling={
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_type": "yarn",
            "truncate": False,
        },
    ),
    "gpt2": _of(
        "gpt2",
        "GPT2LMHeadModel",
        activation_function="gelu_new",
        attn_pdrop=0.1,
        layer_norm_epsilon=1e-5,
        n_ctx=256,
        n_embd=64,
        n_head=4,
        n_layer=2,
        n_positions=256,
        bos_token_id=1,
        eos_token_id=2,
        task_specific_params={"text-generation": {"do_sample": True}},
    ),
    "pythia-160m": _llama(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        hidden_act="gelu",
        rotary_pct=0.25,
        rotary_emb_base=10000,
        use_parallel_residual=True,
    ),
    "opt-125m": _of(
        "opt",
        "OPTForCausalLM",
        activation_function="relu",
        do_layer_norm_before=True,
        ffn_dim=96,
        hidden_size=64,
        max_position_embeddings=256,
        num_attention_heads=4,
        num_hidden_layers=2,
        word_embed_proj_dim=64,
        prefix="</s>",
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=2,
    ),
    "bloom-560m": _of(
        "bloom",
        "BloomForCausalLM",
        hidden_size=64,
        n_head=4,
        n_layer=2,
        seq_length=256,
        pad_token_id=3,
        bos_token_id=1,
        eos_token_id=2,
        apply_residual_connection_post_layernorm=False,
    ),
    "falcon-7b": _of(
        "falcon",
        "FalconForCausalLM",
        **_code("falcon", "FalconForCausalLM"),
        alibi=False,
        bias=False,
        hidden_size=64,
        multi_query=True,
        new_decoder_architecture=False,
        num_attention_heads=4,
        num_hidden_layers=2,
        parallel_attn=True,
        bos_token_id=2,
        eos_token_id=2,
    ),
}
"""Published name → what its config.json says."""

REFUSED: Final[dict[str, tuple[Config, str]]] = {
    "internlm2_5-7b": (_llama("internlm2", "InternLM2ForCausalLM", **_code("internlm2", "I")), "needs code of its own"),
    "glm-4-9b-chat": (_of("chatglm", "ChatGLMModel", **_code("chatglm", "C")), "needs code of its own"),
    "Baichuan2-7B": (_llama("baichuan", "BaichuanForCausalLM", **_code("baichuan", "B")), "needs code of its own"),
    "Qwen2-VL-7B": (_llama("qwen2_vl", "Qwen2VLForConditionalGeneration", vision_config=_VISION), "multimodal"),
    "Llama-3.2-11B-Vision": (
        {
            "architectures": ["MllamaForConditionalGeneration"],
            "model_type": "mllama",
            "text_config": _llama("mllama_text_model", "", cross_attention_layers=[1]),
            "vision_config": {"model_type": "mllama_vision_model"},
        },
        "multimodal",
    ),
    "bert-base-uncased": (_of("bert", "BertForMaskedLM", hidden_size=64), "'BertForMaskedLM' is not served"),
    "Llama-3.1-8B-NVFP4": (
        _llama(quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"}),
        "'NVFP4' is not read",
    ),
    "Sparse-Llama-3.1-8B-2of4-w4a16": (
        _llama(
            quantization_config={
                "quant_method": "compressed-tensors",
                "format": "marlin-24",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            }
        ),
        "'marlin-24' is not read",
    ),
    "Llama-3-8B-bnb-4bit": (_llama(quantization_config={"quant_method": "bitsandbytes"}), "of another method"),
}
"""Published name → what its config.json says, and what is answered."""
