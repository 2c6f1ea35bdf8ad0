"""Tiny random checkpoints on disk, as `save_pretrained` writes them, with a byte-level tokenizer that knows Hangul."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel, T5Config
from transformers import T5ForConditionalGeneration as T5

VOCABULARY = 260


def save_llama(directory: Path, dtype: torch.dtype = torch.bfloat16, tied: bool = True, shards: str = "5GB") -> Path:
    """A Llama of one layer, 32 wide, two key-value heads."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
    )
    return _save(LlamaForCausalLM(config), directory, dtype, shards)


def save_gpt2(directory: Path) -> Path:
    """A GPT-2 of one layer: Conv1D weights, tied head."""
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=128, n_embd=32, n_layer=1, n_head=4, bos_token_id=256, eos_token_id=256
    )
    return _save(GPT2LMHeadModel(config), directory, torch.bfloat16)


def save_t5(directory: Path) -> Path:
    """An encoder-decoder of one layer each."""
    config = T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    return _save(T5(config), directory, torch.bfloat16)


def save_tokenizer(directory: Path) -> None:
    """A tokenizer.json of the 256 bytes and one end-of-text token, id 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(directory / "tokenizer.json"))


def _save(model: PreTrainedModel, directory: Path, dtype: torch.dtype, shards: str = "5GB") -> Path:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    model.to(dtype).save_pretrained(directory, max_shard_size=shards)  # type: ignore[arg-type]
    save_tokenizer(directory)
    return directory
