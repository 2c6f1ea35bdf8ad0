"""Tiny random checkpoints on disk, as `save_pretrained` writes them, with a byte-level tokenizer that knows Hangul."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
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


def save_gemma_tokenizer(directory: Path) -> None:
    """A tokenizer.json as Gemma's: pieces of sentencepiece with U+2581 for spaces, bytes for what they do not spell,
    and runs of lines and spaces as tokens, whose merges come first, the longest before all. Ids 0 to 5 are <pad>,
    <eos>, <bos>, <unk> and a turn's begin and end."""
    named = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    runs = ["\n", "\n\n", "▁▁", "▁▁▁", "<table>"]
    pieces = ["▁t", "he", "▁the", "in", "er", "▁a", "an", "and", "▁and", "안녕", "안녕하", "ing", "12", "ab"]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz1234.,!<>", *"안녕하세"]
    tokens = [*named, *runs, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *letters]
    vocabulary = {token: index for index, token in enumerate(tokens)}

    def merges_of(texts: list[str]) -> list[tuple[str, str]]:
        splits = [(text[:at], text[at:]) for text in texts for at in range(len(text) - 1, 0, -1)]
        return [pair for pair in splits if all(part in vocabulary for part in pair)]

    merges = sorted(merges_of(runs), key=lambda pair: (-len(pair[0]), -len(pair[1]))) + merges_of(pieces)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in named])
    tokenizer.add_tokens([AddedToken(run, normalized=False) for run in runs])
    tokenizer.save(str(directory / "tokenizer.json"))


O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How gpt-oss splits text."""


def save_gpt_oss_tokenizer(directory: Path) -> None:
    """A tokenizer.json as gpt-oss's, with ids 256 to 259 for the tokens that end a message or an answer. Its piece 260
    is only found whole: no merge leads there."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    named = ["<|endoftext|>", "<|return|>", "<|call|>", "<|end|>"]
    tokens = [*alphabet, *named, "xyz", "12", "123", "th", "Ġth", "the", "'s"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [("1", "2"), ("12", "3"), ("t", "h"), ("Ġ", "th"), ("th", "e"), ("'", "s")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(O200K), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in named])
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
