"""Tiny random models of many architectures, and a driver that decodes requests on them through the real engine core."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from models.weights import skeleton
from models.weights.hadamard import BLOCK, of_weights
from models.weights.int8 import quantize_rows
from service.engine.kv_cache.block_manager import BlockManager
from service.engine.kv_cache.offload import Offload
from service.engine.process.core import EngineCore
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import EngineInfo, Request, SamplingParams, TokenLogprobs
from service.engine.runner.loading.building import build_runner
from service.engine.runner.model_runner import ModelRunner
from service.engine.scheduling.batching import BatchingPolicy
from service.engine.scheduling.scheduler import Scheduler
from service.engine.sequences.batch import SampledToken

DEVICE = os.environ.get("DOSIRAK_DEVICE", "cpu")
"""Where the models of golden tests run: `DOSIRAK_DEVICE=cuda python -m pytest tests/golden`."""
VOCABULARY = 199
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
WINDOW = 24
MIN_PREFILL = 3  # so chunks end within blocks

CONFIGS: dict[str, transformers.PretrainedConfig] = {
    "llama": transformers.LlamaConfig(**GROUPED),
    "llama-rope3": transformers.LlamaConfig(
        **GROUPED,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2": transformers.Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "qwen3": transformers.Qwen3Config(**GROUPED, head_dim=24),
    "mistral": transformers.MistralConfig(**GROUPED, sliding_window=WINDOW),
    "gemma": transformers.GemmaConfig(**GROUPED, head_dim=16),
    "gemma2": transformers.Gemma2Config(**GROUPED, head_dim=16, sliding_window=WINDOW),
    "gemma3_text": transformers.Gemma3TextConfig(
        **GROUPED, head_dim=16, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"]
    ),
    "phi3": transformers.Phi3Config(**GROUPED, sliding_window=WINDOW),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **GROUPED | {"head_dim": 24},
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        norm_topk_prob=False,
        mlp_only_layers=[0],
    ),
    "mixtral": transformers.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "gpt_oss": transformers.GptOssConfig(
        **GROUPED,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "phi3-longrope": transformers.Phi3Config(
        **GROUPED,
        original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 8,
            "long_factor": [1.0 + i / 4 for i in range(8)],
        },
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=512, bos_token_id=1, eos_token_id=None
    ),
    "gpt_neox": transformers.GPTNeoXConfig(**SIZES),
    "gpt_neox-sequential": transformers.GPTNeoXConfig(
        **SIZES | {"hidden_size": 72, "intermediate_size": 100},  # no whole vectors
        tie_word_embeddings=True,
        attention_bias=False,
        hidden_act="gelu_fast",
        use_parallel_residual=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    ),
    "opt": transformers.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=96,
        word_embed_proj_dim=64,
        max_position_embeddings=512,
        eos_token_id=None,
    ),
    "falcon": transformers.FalconConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, eos_token_id=None
    ),
    "falcon-alibi": transformers.FalconConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        alibi=True,
        multi_query=False,
        parallel_attn=False,
        eos_token_id=None,
    ),
}

SPECIAL: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 2}
T5_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "d_kv": 24,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_max_distance": 40,
    "relative_attention_num_buckets": 16,
    **SPECIAL,
}
BART_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "forced_eos_token_id": None,
    **SPECIAL,
}
SEQ2SEQ: dict[str, transformers.PretrainedConfig] = {
    "t5": transformers.T5Config(**T5_SIZES),
    "t5-gated": transformers.T5Config(
        **T5_SIZES | {"num_layers": 3, "num_decoder_layers": 2, "tie_word_embeddings": False},
        feed_forward_proj="gated-gelu",
    ),
    "mt5": transformers.MT5Config(**T5_SIZES),
    "umt5": transformers.UMT5Config(**T5_SIZES),
    "bart": transformers.BartConfig(**BART_SIZES),
    "mbart": transformers.MBartConfig(**BART_SIZES, scale_embedding=True),
    "pegasus": transformers.PegasusConfig(**BART_SIZES),
    "marian": transformers.MarianConfig(**BART_SIZES, decoder_vocab_size=VOCABULARY),
    "blenderbot": transformers.BlenderbotConfig(**BART_SIZES),
    "plbart": transformers.PLBartConfig(**BART_SIZES),
}


def family(config: transformers.PretrainedConfig) -> Any:
    return transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM


def save_tiny(name: str, directory: Path) -> Path:
    return save_random((CONFIGS | SEQ2SEQ)[name], directory, seed=len(name))


def save_random(
    config: transformers.PretrainedConfig, directory: Path, seed: int, dtype: torch.dtype = torch.float32
) -> Path:
    """A model with random weights, spread widely enough that its greedy tokens vary."""
    torch.manual_seed(seed)
    model = family(config).from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.08)
    model.to(dtype).save_pretrained(directory)
    return directory


def save_int8(source: Path, directory: Path, block: int = BLOCK) -> Path:
    """The 8-bit form of a version: every linear layer symmetric per output channel, behind a Hadamard transform, the
    rest bf16. With a block of 1, as earlier releases wrote it: without the transform, a tied head beside the
    embedding."""
    config = transformers.AutoConfig.from_pretrained(source, local_files_only=True)
    model = family(config).from_pretrained(source, dtype=torch.float32, local_files_only=True)
    model.config.save_pretrained(directory)
    tensors: dict[str, torch.Tensor] = {}
    linear = {
        f"{name}.weight": isinstance(module, transformers.pytorch_utils.Conv1D)
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, transformers.pytorch_utils.Conv1D))
    }
    shared = skeleton.build(source).tied.get("lm_head.weight") if skeleton.build(source).shares_head else None
    for name, tensor in {**model.state_dict(), "lm_head.weight": model.lm_head.weight}.items():
        if name == shared and block > 1:
            continue
        if name not in linear:
            tensors[name] = tensor.detach().to(torch.bfloat16).clone()
            continue
        weight = (tensor.T if linear[name] else tensor).detach()
        tensors[name], tensors[f"{name}_scale"] = quantize_rows(of_weights(weight, block))
        if block > 1:
            tensors[f"{name.removesuffix('.weight')}.hadamard"] = torch.tensor([block], dtype=torch.int32)
    save_file(tensors, directory / "model.safetensors")
    return directory


def tensor_names(directory: Path) -> set[str]:
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        return set(file.keys())


@dataclass(frozen=True)
class Loaded:
    """A runner with what is needed to drive it again and again."""

    runner: ModelRunner
    info: EngineInfo
    config: EngineConfig

    @classmethod
    def of(cls, directory: Path, precision: str, **changes: Any) -> Loaded:
        dtype = "fp32" if precision == "fp32" else "bf16"
        fields: dict[str, Any] = {"max_model_len": 400, "max_num_seqs": 16, "threads": 1, "device": DEVICE, **changes}
        config = EngineConfig(model_dir=str(directory), precision=precision, dtype=dtype, **fields)
        return cls(*build_runner(config, lambda phase, fraction: None), config)

    def core(
        self, budget: int = 512, caching: bool = True, blocks: int | None = None, speculation: bool = False
    ) -> EngineCore:
        """A fresh scheduler over the runner's blocks; fewer `blocks` make it preempt."""
        offload = Offload(self.runner.num_disk_blocks)
        total, windows = blocks or self.info.blocks_total, self.runner.windows()
        manager = BlockManager(total, self.info.block_size, caching, offload, lambda index: 1e9, windows)
        budget = min(budget, self.config.step_tokens)
        policy = BatchingPolicy(max(budget, self.config.max_num_seqs + MIN_PREFILL), MIN_PREFILL, 1e9)
        speculation = speculation and self.runner.verifies_drafts
        config = self.config
        scheduler = Scheduler(
            manager,
            policy,
            config.max_num_seqs,
            config.max_model_len,
            speculation,
            config.decoder_start,
            self.runner.draft_model,
        )
        return EngineCore(self.runner, scheduler, itertools.count().__next__)


@dataclass
class Answer:
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0
    pooled: bytes = b""


def answer(core: EngineCore, arrivals: Mapping[int, Iterable[Request]]) -> dict[str, Answer]:
    """Runs the core until idle; `arrivals` are requests by the number of the step before which they come."""
    answers: dict[str, Answer] = {}
    last = max(arrivals, default=0)
    for step in itertools.count():
        for request in arrivals.get(step, ()):
            answers[request.id] = Answer()
            core.add(request)
        if step > last and not core.has_work:
            return answers
        for output in core.step() if core.has_work else ():
            found = answers[output.request_id]
            found.token_ids += output.token_ids
            found.logprobs += output.logprobs
            found.prompt_logprobs += output.prompt_logprobs
            found.pooled += output.pooled
            found.num_cached_tokens = max(found.num_cached_tokens, output.num_cached_tokens)
    raise AssertionError("unreachable")


def request(name: str, token_ids: Iterable[int], params: SamplingParams) -> Request:
    return Request(name, tuple(token_ids), params)


def token(result: SampledToken | None) -> int:
    assert result is not None and result.token_id is not None
    return result.token_id
