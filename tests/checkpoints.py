"""Tiny random checkpoints on disk, as `save_pretrained` writes them, with a byte-level tokenizer that knows Hangul."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
)
from transformers import T5ForConditionalGeneration as T5

VOCABULARY = 260
START: dict[str, Any] = {"decoder_start_token_id": 256}
SPREAD = 0.05
"""Of the weights: predictions hardly differ from a flat distribution."""


def save_llama(
    directory: Path,
    dtype: torch.dtype = torch.bfloat16,
    tied: bool = True,
    shards: str = "5GB",
    width: int = 32,
    window: int = 128,
) -> Path:
    """A Llama of one layer, `width` wide, two key-value heads."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=width * 3 // 2,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=window,
        tie_word_embeddings=tied,
    )
    return _save(LlamaForCausalLM(config), directory, dtype, shards)


def save_gpt2(directory: Path, spread: float = SPREAD) -> Path:
    """A GPT-2 of one layer: Conv1D weights, tied head."""
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=128, n_embd=32, n_layer=1, n_head=4, bos_token_id=256, eos_token_id=256
    )
    return _save(GPT2LMHeadModel(config), directory, torch.bfloat16, spread=spread)


def save_t5(directory: Path, spread: float = SPREAD) -> Path:
    """An encoder-decoder of one layer each, without an end-of-sequence token."""
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=1,
        num_heads=4,
        eos_token_id=None,
        **START,
    )
    return _save(T5(config), directory, torch.bfloat16, spread=spread)


def save_bart(directory: Path, spread: float = SPREAD) -> Path:
    """An encoder-decoder with learned positions, whose answers always begin with token 65."""
    config = BartConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=128,
        forced_eos_token_id=None,
        bos_token_id=256,
        pad_token_id=257,
        eos_token_id=None,
        **START,
    )
    model = BartForConditionalGeneration(config)
    model.generation_config.forced_bos_token_id = 65
    return _save(model, directory, torch.bfloat16, spread=spread)


def save_tokenizer(directory: Path) -> None:
    """A tokenizer.json of the 256 bytes and one end-of-text token, id 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(directory / "tokenizer.json"))


def _save(
    model: PreTrainedModel, directory: Path, dtype: torch.dtype, shards: str = "5GB", spread: float = SPREAD
) -> Path:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    model.to(dtype).save_pretrained(directory, max_shard_size=shards)  # type: ignore[arg-type]
    save_tokenizer(directory)
    return directory
