"""This module makes checkpoints of a published shape with random weights: every kernel works as on the real model.

Their text is by design, for two reasons. Speed that depends on the text (most of all n-gram drafts) can be measured
both ways. And every system makes the same text, however it rounds the weights. If input and output embedding are
separate, the next token is a permutation of the last one:

    ids   [ 0 .. 299 ][ 300 ....... half-1 ][ half ............. vocabulary-1 ]
           not used    one long cycle:       many cycles of REPEAT tokens:
                       never repeats         repeats itself

If they are tied, the next token is a fixed random function of the last one. The first layer's MLP outweighs the
embedding. The embedding's rows have equal length, so that no token is likelier than others. The text repeats only after
hundreds of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Final

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from models.imports.starter import DEMO as DEMO_NAME
from models.imports.starter import WEIGHTS

FIRST_PLAIN_ID: Final = 300
REPEAT: Final = 48
WINDOW: Final = 8192
SHARD_BYTES: Final = 4 << 30
SPECIAL: Final = ("<|pad|>", "<|begin|>", "<|end|>")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama; with `experts`, of a Qwen3-MoE, whose rows pass `active` MLPs of the width `intermediate`.
    `tied`: one matrix for both embeddings. `agreement`: the share of tokens after which an untied shape goes on as the
    others of its vocabulary do."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool
    experts: int = 0
    active: int = 0
    agreement: float = 1.0

    @property
    def half(self) -> int:
        return self.vocabulary // 2

    @property
    def linear_weights(self) -> int:
        """Weights that one row multiplies with: those of the layers, and the head."""
        kv_width = self.hidden // self.heads * self.kv_heads
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * kv_width
        mlp = 3 * self.hidden * self.intermediate * max(1, self.active) + self.experts * self.hidden
        return self.layers * (attention + mlp) + self.vocabulary * self.hidden

    def kv_bytes(self, tokens: int, bytes_per_value: int = 2) -> int:
        return 2 * self.layers * self.hidden // self.heads * self.kv_heads * tokens * bytes_per_value


TINYLLAMA: Final = Shape("tinyllama", 22, 2048, 32, 4, 5632, 32000, tied=False)
SMALL: Final = Shape("small", 30, 576, 9, 3, 1536, 49152, tied=True)
WIDE: Final = Shape("wide-vocabulary", 24, 896, 14, 2, 4864, 151936, tied=True)
"""Qwen2.5-0.5B's sizes."""
MIDDLE: Final = Shape("3b", 36, 2048, 16, 2, 11008, 151936, tied=True)
"""Qwen2.5-3B's sizes."""
LARGE: Final = Shape("7b", 28, 3584, 28, 4, 18944, 152064, tied=False)
"""Qwen2.5-7B's sizes."""
MIXTURE: Final = Shape("mixture", 12, 2048, 16, 4, 512, 32000, tied=False, experts=32, active=4)


def draft_shape(agreement: float) -> Shape:
    """Returns the shape of a draft model for TINYLLAMA: a sixteenth of its weights, right after so many tokens."""
    return Shape(f"draft-{round(100 * agreement)}", 6, 768, 12, 4, 2048, 32000, tied=False, agreement=agreement)


def shape_of(name: str, directory: Path) -> Shape:
    """Returns the shape of a Llama that was trained. Its text is its own, so nothing that depends on text is measured
    on it."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return Shape(
        name,
        config["num_hidden_layers"],
        config["hidden_size"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["intermediate_size"],
        config["vocab_size"],
        config["tie_word_embeddings"],
    )


DEMO: Final = shape_of(DEMO_NAME, WEIGHTS)


def next_token(shape: Shape, token: int) -> int:
    """Returns the next token of the model of an untied `shape` after `token`, where it agrees with the others of its
    vocabulary; see the module's picture."""
    if token < FIRST_PLAIN_ID:
        return token
    if token < shape.half:
        return FIRST_PLAIN_ID + (token + 1 - FIRST_PLAIN_ID) % (shape.half - FIRST_PLAIN_ID)
    start = token - (token - shape.half) % REPEAT
    length = min(REPEAT, shape.vocabulary - start)
    return start + (token + 1 - start) % length


def successors(shape: Shape) -> list[int]:
    """Returns the next token after each token, as the weights have it: a permutation. Tokens after which the shape does
    not agree with the others have one another's next tokens."""
    draw = Random(0)
    found = [next_token(shape, token) for token in range(shape.vocabulary)]
    wrong = [token for token in range(shape.vocabulary) if draw.random() >= shape.agreement]
    for token, successor in zip(wrong, [found[token] for token in (*wrong[1:], *wrong[:1])], strict=True):
        found[token] = successor
    return found


def weights(shape: Shape) -> Iterator[tuple[str, Tensor]]:
    """Yields every tensor in bf16, from a fixed seed. The embedding outweighs the layers, so that it decides."""
    generator = torch.Generator().manual_seed(0)

    def normal(rows: int, columns: int, std: float) -> Tensor:
        return torch.empty(rows, columns).normal_(0.0, std, generator=generator).to(torch.bfloat16)

    embedding = normal(shape.vocabulary, shape.hidden, 1.0)
    if shape.tied:
        embedding = (embedding.float() / embedding.float().norm(dim=1, keepdim=True) * shape.hidden**0.5).bfloat16()
    kv_width = shape.hidden // shape.heads * shape.kv_heads
    yield "model.embed_tokens.weight", embedding
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        for name, rows in (("q", shape.hidden), ("k", kv_width), ("v", kv_width)):
            yield f"{prefix}.self_attn.{name}_proj.weight", normal(rows, shape.hidden, 0.02)
        yield f"{prefix}.self_attn.o_proj.weight", normal(shape.hidden, shape.hidden, 0.002)
        if shape.experts:
            yield f"{prefix}.mlp.gate.weight", normal(shape.experts, shape.hidden, 0.02)
            for name in ("q", "k"):
                head_dim = shape.hidden // shape.heads
                yield f"{prefix}.self_attn.{name}_norm.weight", torch.ones(head_dim, dtype=torch.bfloat16)
        for mlp in [f"mlp.experts.{number}" for number in range(shape.experts)] or ["mlp"]:
            for name in ("gate", "up"):
                yield f"{prefix}.{mlp}.{name}_proj.weight", normal(shape.intermediate, shape.hidden, 0.02)
            yield (
                f"{prefix}.{mlp}.down_proj.weight",
                normal(shape.hidden, shape.intermediate, 6.0 if shape.tied and layer == 0 else 0.002),
            )
        for name in ("input", "post_attention"):
            yield f"{prefix}.{name}_layernorm.weight", torch.ones(shape.hidden, dtype=torch.bfloat16)
    if shape.tied:  # signs of its own, or tokens would be followed by themselves
        signs = torch.randint(0, 2, (shape.hidden,), generator=generator) * 2 - 1
        yield "model.norm.weight", signs.to(torch.bfloat16)
        return
    yield "model.norm.weight", torch.ones(shape.hidden, dtype=torch.bfloat16)
    head = torch.empty_like(embedding)
    head[successors(shape)] = embedding * 0.02
    yield "lm_head.weight", head


def config(shape: Shape) -> dict[str, object]:
    """The config.json of LlamaForCausalLM, or of Qwen3MoeForCausalLM."""
    kind: dict[str, object] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False}
    if shape.experts:
        kind = {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.active,
            "moe_intermediate_size": shape.intermediate,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return {
        **kind,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu",
        "max_position_embeddings": WINDOW,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "tie_word_embeddings": shape.tied,
        "use_cache": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def tokenizer(vocabulary: int) -> Tokenizer:
    """Byte-level BPE of exactly `vocabulary` tokens: bytes, then pairs, triples and quadruples of small letters."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: list[tuple[str, str]] = []
    pairs = [first + second for first, second in product(ascii_lowercase, repeat=2)]
    grown = [*product(ascii_lowercase, repeat=2), *product(pairs, ascii_lowercase), *product(pairs, pairs)]
    for left, right in grown[: vocabulary - len(tokens)]:
        merges.append((left, right))
    tokens += [left + right for left, right in merges]
    made = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    return made


def save(shape: Shape, directory: Path) -> None:
    """Write the checkpoint into `directory`, which is made, as a Hugging Face directory."""
    directory.mkdir(parents=True)
    _save_weights(shape, directory)
    _write(directory / "config.json", config(shape))
    _write(directory / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})
    tokenizer(shape.vocabulary).save(str(directory / "tokenizer.json"))
    names = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    _write(directory / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})


def _save_weights(shape: Shape, directory: Path) -> None:
    """Writes the weights as one file, or as shards of about SHARD_BYTES with an index, one in memory at a time."""
    shards: list[list[str]] = []
    pending: dict[str, Tensor] = {}

    def flush() -> None:
        save_file(pending, directory / f"{len(shards)}.safetensors", metadata={"format": "pt"})
        shards.append(list(pending))
        pending.clear()

    for name, tensor in weights(shape):
        if pending and sum(each.nbytes for each in pending.values()) + tensor.nbytes > SHARD_BYTES:
            flush()
        pending[name] = tensor
    flush()
    names = [f"model-{number + 1:05}-of-{len(shards):05}.safetensors" for number in range(len(shards))]
    if len(shards) == 1:
        names = ["model.safetensors"]
    else:
        owners = {name: file for file, held in zip(names, shards, strict=True) for name in held}
        _write(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": owners})
    for number, name in enumerate(names):
        (directory / f"{number}.safetensors").rename(directory / name)


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
