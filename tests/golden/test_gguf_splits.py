"""The ids that our pre-tokenizers give are llama.cpp's, for every name that both read, or are explained by what it
computes in place of the published expressions. The vocabulary merges across
spaces, digits, signs and scripts, so that a split in another place is another id.

llama.cpp runs in the benchmark's environment (`python -m loadtest.bench --model smollm2` makes it)."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from loadtest.bench.cache import CACHE, Cache
from models.imports.gguf_splits import SPLITS
from tests import gguf_files

pytestmark = pytest.mark.nightly
PUBLISHED_OTHERWISE: Final = {"deepseek-coder": 0.05, "deepseek-llm": 0.05, "superbpe": 0.01}
"""Shares of texts where llama.cpp differs from the published tokenizer, which is what a model was trained with."""
_AFTER_WORDS: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASELESS: Final = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_TINY_AYA: Final = (
    r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    rf"{_CASELESS}|\p{{N}}{{1,3}}{_AFTER_WORDS}",
)
LLAMA_CPPS: Final[dict[str, tuple[str, ...]]] = {
    "youtu": (SPLITS["youtu"][0], rf"{_CASELESS}|\p{{N}}{_AFTER_WORDS}"),
    "tiny_aya": _TINY_AYA,
    "cohere2moe": _TINY_AYA,
    "kimi-k2": (
        r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
        + _AFTER_WORDS.replace("/", ""),
    ),
}
"""What llama.cpp computes in place of the published expressions: it knows letters without their case, and of Kimi's
words no marks; what stands before a number stays with its first digits. A model was trained with the published ones."""
_PIECES: Final = (
    "the lunch box|don't|I'LL|we've|İstanbul'da|naïve| |  |   |\t|\n|\n\n|\r\n| \n |\u3000|\u00a0|123|4|56789|1,234.50|"
    "٣٤٥|½|도시락|김밥 하나|ㅋㅋㅋ|漢字|ひらがな|カタカナ|ㄅㄆㄇ|，|。|！|…|“quoted”|—|...|!!!|()|[x]|{y}|<=>|a+b=c|$9|"
    "^_^|`code`|http://a.b/c?d=e&f|def f(x):\n    return x|//|\r|CamelCaseWord|aBC|e\u0301|"
    "ก็|नमस्ते|مرحبا|🙂|__init__|\u200b|ß|A1b2|v2.0|«x»|।"
)
PIECES: Final = _PIECES.split("|")
TOKENIZING: Final = """
import json, sys
from llama_cpp import Llama
paths, texts = json.load(sys.stdin)
told = {}
for name, path in paths.items():
    model = Llama(path, vocab_only=True, verbose=False)
    told[name] = [model.tokenize(text.encode(), add_bos=False, special=False) for text in texts]
print(json.dumps(told))
"""


def texts_of(draw: random.Random, count: int) -> list[str]:
    return ["".join(draw.choice(PIECES) + draw.choice(("", "", " ")) for _ in range(9)) for _ in range(count)]


def vocabulary() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4000, initial_alphabet=alphabet, show_progress=False, max_token_length=24)
    tokenizer.train_from_iterator(texts_of(random.Random(5), 6000), trainer)
    return tokenizer


def vocab_only(path: Path, name: str, told: dict[str, Any]) -> None:
    """Writes a GGUF file of a tokenizer and no tensor."""
    vocab, merges = told["model"]["vocab"], [" ".join(merge) for merge in told["model"]["merges"]]
    tokens = [*sorted(vocab, key=lambda token: int(vocab[token])), "<|endoftext|>"]
    sizes = {"context_length": 128, "embedding_length": 32, "block_count": 1, "feed_forward_length": 48}
    end = len(tokens) - 1
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        **{f"llama.{key}": value for key, value in sizes.items()},
        "llama.attention.head_count": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * end + [3],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }
    gguf_files.write(path, metadata, {})


def test_ids_are_llama_cpps(tmp_path: Path) -> None:
    python = Cache(CACHE.expanduser()).python("llama_cpp")
    if not python.exists():
        pytest.skip("the benchmark's environment of llama.cpp is not there")
    base, texts = vocabulary(), texts_of(random.Random(6), 5000)
    paths = {name: str(tmp_path / f"{name}.gguf") for name in SPLITS}
    for name, path in paths.items():
        vocab_only(Path(path), name, json.loads(base.to_str()))
    asked = json.dumps([paths, texts])
    done = subprocess.run([str(python), "-c", TOKENIZING], input=asked, capture_output=True, text=True, check=True)
    differing = {}
    for name, ids in json.loads(done.stdout).items():
        tokenizer = Tokenizer.from_str(base.to_str())
        splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in LLAMA_CPPS.get(name, SPLITS[name])]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, base.pre_tokenizer])
        share = sum(tokenizer.encode(text).ids != own for text, own in zip(texts, ids, strict=True)) / len(texts)
        if share > PUBLISHED_OTHERWISE.get(name, 0):
            differing[name] = share
    assert not differing
