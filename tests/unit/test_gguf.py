"""GGUF files: the checkpoint that they were made of comes back, and what is not known is refused by name."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, dequantize
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from models.checkpoint import generation_defaults
from models.checkpoint.limited import Limits
from models.errors import InvalidSource
from models.imports import gguf_tokenizer
from models.imports.gguf_head import _NO_WEIGHTS
from models.imports.importing import import_source
from models.manifest import Manifest
from models.repository.repository import Repository
from tests import gguf_files
from tests.checkpoints import save_tokenizer
from tests.effort import drawn

SIZES: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, attention_bias=True, tie_word_embeddings=False),
    "llama-tied": LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, tie_word_embeddings=True
    ),
    "mistral": MistralConfig(**SIZES, sliding_window=24),
    "qwen2": Qwen2Config(**(SIZES | {"head_dim": 8}), tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, tie_word_embeddings=False),
    "qwen3_moe": Qwen3MoeConfig(
        **SIZES, num_experts=12, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True
    ),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=3, num_experts_per_tok=2),
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    gguf_files.convert_here(monkeypatch)
    return Repository(tmp_path / "data")


def saved(directory: Path, config: Any) -> Path:
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.to(torch.bfloat16).save_pretrained(directory)
    save_tokenizer(directory)
    return directory


def imported(repository: Repository, path: Path, precision: str = "bf16", **options: Any) -> Manifest:
    return import_source(repository, str(path), "model", precision=precision, **options)


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_checkpoint_comes_back(repository: Repository, tmp_path: Path, kind: str) -> None:
    """Weights, sizes, tokenizer and template, bit for bit; so do the logits."""
    source, path = saved(tmp_path / "source", CONFIGS[kind]), tmp_path / "model.gguf"
    window: dict[str, Any] = {"llama__attention__sliding_window": 24} if kind == "mistral" else {}
    weights = gguf_files.of_checkpoint(source, path, **window)
    manifest = imported(repository, path)
    found = repository.path(manifest)
    stored = load_file(found / "model.safetensors")
    assert stored.keys() == weights.keys()
    assert all(torch.equal(stored[name], weights[name]) for name in weights)
    ids = torch.arange(20)[None]
    before, after = (AutoModelForCausalLM.from_pretrained(each)(ids).logits for each in (source, found))
    assert torch.equal(before, after)
    tokenizer = AutoTokenizer.from_pretrained(found)
    text = "안녕 world <|end|>"
    assert tokenizer.encode(text) == AutoTokenizer.from_pretrained(source).encode(text)
    assert tokenizer.decode(tokenizer.encode("안녕")) == "안녕"
    assert len(tokenizer) <= 260 and max(tokenizer.encode("<|endoftext|>")) < 256, "no token of the library's own"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "user: hi\nassistant:"
    config = json.loads((found / "config.json").read_text())
    assert (config["eos_token_id"], config["rms_norm_eps"]) == (256, CONFIGS[kind].rms_norm_eps)
    assert manifest.architecture == json.loads((source / "config.json").read_text())["architectures"][0]


@pytest.mark.parametrize(("form", "name", "worst"), [(gguf_files.q8_0, "Q8_0", 0.51), (gguf_files.q4_0, "Q4_0", 1.01)])
def test_blocks_are_dequantized_and_their_file_is_named(
    repository: Repository, tmp_path: Path, form: Callable[[torch.Tensor], gguf_files.Stored], name: str, worst: float
) -> None:
    source, path = saved(tmp_path / "source", CONFIGS["llama"]), tmp_path / "model.gguf"
    weights = gguf_files.of_checkpoint(source, path, form)
    manifest = imported(repository, path)
    stored = load_file(repository.path(manifest) / "model.safetensors")
    for tensor, weight in weights.items():
        if weight.dim() > 1:  # in steps of the block: its largest magnitude over 127 or 8, and bf16 rounds
            blocks = weight.float().reshape(-1, 32)
            step = blocks.abs().amax(1, keepdim=True) / (127 if name == "Q8_0" else 8)
            off = (stored[tensor].float().reshape(-1, 32) - blocks).abs() - blocks.abs() / 128
            assert (off <= worst * step).all(), tensor
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert f"from GGUF of sha256 {digest}" in manifest.lineage.recipe
    assert f"tensors in F32, {name}, dequantized" in manifest.lineage.recipe
    assert manifest.lineage.source.startswith("gguf ")


def test_every_type_of_weights_is_dequantized_as_llama_cpp_does(repository: Repository, tmp_path: Path) -> None:
    """Types that llama.cpp's own package decodes, IQ types among them; what is left is refused by its name."""
    kinds = [each for each in GGML_QUANT_SIZES if each.value not in _NO_WEIGHTS]
    sizes = SIZES | {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 6}
    source, path, number = saved(tmp_path / "source", LlamaConfig(**sizes)), tmp_path / "model.gguf", count()
    wanted: list[tuple[str, torch.Tensor]] = []

    def form(tensor: torch.Tensor) -> gguf_files.Stored:
        kind = kinds[next(number) % len(kinds)]
        inputs, size = GGML_QUANT_SIZES[kind]
        data = np.random.default_rng(1).integers(0, 59, (len(tensor), tensor.shape[1] // inputs * size), np.uint8)
        wanted.append((kind.name, torch.from_numpy(dequantize(data, kind).astype(np.float32)).bfloat16()))
        return kind.value, tuple(tensor.shape), data.tobytes()

    weights = gguf_files.of_checkpoint(source, path, form)
    names = [name for name, tensor in weights.items() if tensor.dim() > 1]
    found = load_file(repository.path(imported(repository, path)) / "model.safetensors")
    assert {kind for kind, _ in wanted} == {kind.name for kind in kinds}
    for name, (kind, expected) in zip(names, wanted, strict=True):
        if not name.endswith(("q_proj.weight", "k_proj.weight")):  # their rows change places
            assert torch.equal(found[name], expected), kind


def test_llama_3_begins_with_bos_and_ends_with_a_turn_too(repository: Repository, tmp_path: Path) -> None:
    source, path = saved(tmp_path / "source", CONFIGS["llama"]), tmp_path / "model.gguf"
    told = {"pre": "llama-bpe", "bos_token_id": 10, "eot_token_id": 11, "eom_token_id": 256}
    for add_bos in (None, False):
        changes: dict[str, Any] = {f"tokenizer__ggml__{key}": value for key, value in told.items()}
        gguf_files.of_checkpoint(source, path, **changes, tokenizer__ggml__add_bos_token=add_bos)
        found = repository.path(imported(repository, path))
        assert (AutoTokenizer.from_pretrained(found).encode("a")[0] == 10) == (add_bos is None)
        assert json.loads((found / "config.json").read_text())["eos_token_id"] == [256, 11]


@pytest.mark.parametrize(
    ("texts", "eos", "wanted"),
    [
        (("<|eot_id|>", "<|end_of_text|>"), 256, [256, 97, 98]),
        (("<|eot_id|>", "a word"), None, 97),
        (("<|return|>", "<|call|>"), None, [97, 98]),
        (("a word", "another"), None, None),
    ],
)
def test_tokens_end_an_answer_by_their_texts(
    repository: Repository, tmp_path: Path, texts: tuple[str, str], eos: int | None, wanted: object
) -> None:
    """Files of older converters name one end or none. A plain token of such a text is none."""
    source, path = saved(tmp_path / "source", CONFIGS["llama"]), tmp_path / "model.gguf"
    tokens = [*(chr(0x100 + at) for at in range(256)), "<|end|>", "x", "y", "z"]
    kinds = [1] * 260
    tokens[97], tokens[98], tokens[99], kinds[97], kinds[98] = *texts, "<|im_end|>", 3, 3
    kinds[256] = 3 if "<|call|>" in texts else 1
    changes: dict[str, Any] = {"tokens": tokens, "token_type": kinds, "merges": [], "eos_token_id": eos}
    gguf_files.of_checkpoint(source, path, **{f"tokenizer__ggml__{key}": value for key, value in changes.items()})
    manifest = imported(repository, path)
    assert json.loads((repository.path(manifest) / "config.json").read_text())["eos_token_id"] == wanted
    assert ("no token of the file ends an answer" in manifest.lineage.recipe) == (wanted is None)


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("smollm", "I'm 42 years", ["I", "'m", "Ġ", "4", "2", "Ġyears"]),
        ("smollm", "a  b\n\n 7,50", ["a", "Ġ", "Ġb", "ĊĊĠ", "7", ",", "5", "0"]),
        ("smollm", "x2³ ½", ["x", "2", "Â³", "Ġ", "Â½"]),
        ("kimi-k2", "CamelCase's 1234", ["Camel", "Case's", "Ġ", "123", "4"]),
        ("youtu", "camelCase 1234/", ["camel", "Case", "Ġ", "1", "2", "3", "4", "/"]),
        ("tiny_aya", "CamelCase 1234567", ["Camel", "Case", "Ġ", "1", "234", "567"]),
        ("cohere2moe", "12345x", ["123", "45", "x"]),
    ],
)
def test_text_is_split_as_the_name_says(
    repository: Repository, tmp_path: Path, name: str, text: str, pieces: list[str]
) -> None:
    """SmolLM's digits stand alone. Words of the later three end before a capital; Cohere's digits are counted from the
    end of a number, unless a letter follows."""
    source, path = saved(tmp_path / "source", CONFIGS["llama-tied"]), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path, tokenizer__ggml__pre=name, general__license="apache-2.0")
    manifest = imported(repository, path)
    assert manifest.license == "apache-2.0"
    tokenizer: Any = AutoTokenizer.from_pretrained(repository.path(manifest))
    splits = tokenizer.backend_tokenizer.pre_tokenizer
    assert [piece for piece, _ in splits.pre_tokenize_str(text)] == pieces


TEXT = "I'LL pay 12345\r\n\n  x+y, 김밥3개。漢字ひらがな (don't)!"


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("exaone", "I|'|LL| pay| |1|2|3|4|5|\r\n\n | x|+|y|,| 김밥|3|개|。|漢字ひらがな| (|don|'t|)!"),
        ("glm4", "I|'LL| pay| |123|45|\r\n\n| | x|+y|,| 김밥|3|개|。漢字ひらがな| (|don|'t|)!"),
        ("deepseek-v3", "I|'LL| pay| |123|45|\r\n\n| | x|+y|,| 김밥|3|개|。|漢字ひらがな| (|don|'t|)!"),
        ("deepseek-coder", "I|'|LL| pay| |1|2|3|4|5|\r|\n|\n| | x|+|y|,| |김밥|3|개|。|漢字ひらがな| (|don|'|t|)!"),
        ("viking", "I'LL| pay| |1|2|3|4|5|\r\n\n | x+y|,| 김밥|3|개|。|漢字ひらがな| (|don't|)!"),
        (None, "I|'|LL| pay| |123|45|\r\n\n | x|+|y|,| 김밥|3|개|。|漢字ひらがな| |(|don|'|t|)!"),
    ],
)
def test_texts_are_split_as_a_name_says(repository: Repository, tmp_path: Path, name: str | None, pieces: str) -> None:
    source, path = saved(tmp_path / "source", CONFIGS["llama"]), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path, tokenizer__ggml__pre=name)
    manifest = imported(repository, path)
    tokenizer = AutoTokenizer.from_pretrained(repository.path(manifest)).backend_tokenizer
    spans = [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)]
    assert [TEXT[begin:end] for begin, end in spans] == pieces.split("|")
    assert ("llama.cpp's default is taken" in manifest.lineage.recipe) == (name is None)


def test_it_becomes_4_bits_in_one_step(repository: Repository, tmp_path: Path) -> None:
    source, path = saved(tmp_path / "source", CONFIGS["llama"]), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path, gguf_files.q4_0)
    manifest = imported(repository, path, precision="int4", calibrate=lambda directory, window: [[1, 2, 3]])
    assert manifest.precision == "int4" and manifest.lineage.source.startswith("gguf ")
    report = json.loads((repository.path(manifest) / "quantization.json").read_text())
    errors = [layer["error"] for layer in report["layers"].values() if layer["bits"] == 4]
    assert len(errors) == 14 and max(errors) < 2.5e-3, "the blocks' own steps are found again"


def factors(theta: float, factor: float) -> list[float]:
    """The published rule of Llama 3.1, as its converter writes the divisors for heads of 16."""
    found = []
    for at in range(8):
        wave = 2 * math.pi * theta ** (at / 8)
        smooth = (8192 / wave - 1) / 3
        found.append(1.0 if wave < 2048 else factor if wave > 8192 else 1 / ((1 - smooth) / factor + smooth))
    return found


def with_tensor(monkeypatch: pytest.MonkeyPatch, name: str, tensor: torch.Tensor) -> None:
    """Files have one tensor more."""
    write = gguf_files.write
    monkeypatch.setattr(
        gguf_files, "write", lambda path, told, tensors: write(path, told, {**tensors, name: gguf_files.f32(tensor)})
    )


def test_divided_frequencies_become_the_published_rule(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_tensor(monkeypatch, "rope_freqs.weight", torch.tensor(factors(500000.0, 8.0)))
    source, path = saved(tmp_path / "source", CONFIGS["llama-tied"]), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path)
    config = json.loads((repository.path(imported(repository, path)) / "config.json").read_text())
    rope = config.get("rope_scaling") or config["rope_parameters"]
    assert (rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"]) == ("llama3", 8.0, 8192)


def test_frequencies_divided_by_another_rule_are_divided_so(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    divisors = torch.tensor([1.0, 1.0, 1.5, 2.0, 3.0, 5.0, 6.0, 9.0])
    with_tensor(monkeypatch, "rope_freqs.weight", divisors)
    source, path = saved(tmp_path / "source", CONFIGS["llama-tied"]), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path)
    found: Any = AutoModelForCausalLM.from_pretrained(repository.path(imported(repository, path)), dtype=torch.float32)
    wanted: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    wanted.model.rotary_emb.inv_freq /= divisors
    ids = torch.arange(50)[None]
    with torch.no_grad():
        torch.testing.assert_close(found(ids).logits, wanted(ids).logits, rtol=1e-4, atol=1e-4)


def test_a_llama_may_have_biases_of_queries_keys_and_values_alone(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, bias = gguf_files.write, "attn_output.bias"

    def without(path: Path, told: Any, tensors: Any) -> None:
        write(path, told, {name: tensor for name, tensor in tensors.items() if not name.endswith(bias)})

    monkeypatch.setattr(gguf_files, "write", without)
    source, path = saved(tmp_path / "source", CONFIGS["llama"]), tmp_path / "model.gguf"
    weights = gguf_files.of_checkpoint(source, path)
    found = load_file(repository.path(imported(repository, path)) / "model.safetensors")
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(found[name], torch.zeros_like(tensor) if name.endswith("o_proj.bias") else tensor), name


@pytest.mark.parametrize(
    ("scaling", "wanted"),
    [
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
        ({"type": "none", "factor": 4.0}, None),
        ({"factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    ],
)
def test_scaled_positions_are_kept(
    repository: Repository, tmp_path: Path, scaling: dict[str, Any], wanted: dict[str, Any] | None
) -> None:
    source, path = saved(tmp_path / "source", CONFIGS["qwen2"]), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path, **{f"qwen2__rope__scaling__{key}": each for key, each in scaling.items()})
    config = json.loads((repository.path(imported(repository, path)) / "config.json").read_text())
    assert config.get("rope_scaling") == wanted


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"general__architecture": "gemma3n"}, "architecture 'gemma3n'; from GGUF there are llama, qwen2, qwen3"),
        ({"general__architecture": None}, "no general.architecture"),
        ({"llama__expert_count": 8}, "expert_used_count is None"),
        (
            {"llama__expert_count": 8, "llama__expert_used_count": 2, "llama__expert_feed_forward_length": 64},
            "experts of another kind",
        ),
        ({"llama__embedding_length": None}, "llama.embedding_length is None"),
        ({"llama__embedding_length": 64}, "its sizes say"),
        ({"llama__block_count": 3}, "says 3 blocks and has tensors of 2"),
        ({"llama__block_count": 1 << 31}, "says 2,147,483,648 blocks and has tensors of 2"),
        ({"llama__attention__head_count": 1 << 31}, "sizes are of no model that can be built"),
        ({"llama__rope__scaling__type": "longrope", "llama__rope__scaling__factor": 2.0}, "scales positions by 'longr"),
        ({"llama__rope__dimension_count": 8}, "rope.dimension_count is 8, and its heads have 16"),
        ({"llama__attention__value_length": 32}, "attention.value_length is 32"),
        ({"llama__logit_scale": 0.25}, "llama.logit_scale = 0.25, which is not read"),
        ({"llama__residual_scale": 0.2}, "residual_scale"),
        ({"llama__embedding_scale": 12.0}, "embedding_scale"),
        ({"llama__attention__scale": 0.5}, "attention.scale"),
        ({"llama__attention__clamp_kqv": 8.0}, "clamp_kqv"),
        ({"llama__attention__temperature_length": 8192}, "temperature_length"),
        ({"llama__expert_weights_scale": 2.5}, "expert_weights_scale"),
        ({"llama__attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"llama__rope__freq_base_swa": 1000.0}, "freq_base_swa"),
        ({"llama__what_a_later_release_says": "x"}, "what_a_later_release_says = x"),
        ({"tokenizer__ggml__model": "rwkv"}, "Cannot build a tokenizer"),
        ({"tokenizer__ggml__tokens": None}, "can be read"),
        ({"tokenizer__ggml__merges": ["\u0120 t"]}, "out of vocabulary"),
        ({"llama__expert_count": 10**9, "llama__expert_used_count": 2}, "at most 10,000 are accepted"),
        ({"tokenizer__ggml__pre": "of-tomorrow"}, "splits text by 'of-tomorrow'"),
    ],
)
def test_what_is_not_known_is_refused(
    repository: Repository, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    source, path = saved(tmp_path / "source", CONFIGS["llama"]), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path, **changes)
    with pytest.raises(InvalidSource, match=reason):
        imported(repository, path)
    assert repository.models() == []


def test_an_older_key_and_keys_without_effect(repository: Repository, tmp_path: Path) -> None:
    source, path = saved(tmp_path / "source", CONFIGS["llama"]), tmp_path / "model.gguf"
    neutral: dict[str, Any] = {
        "llama__logit_scale": 1.0,
        "llama__vocab_size": 260,
        "llama__rope__scaling__finetuned": False,
    }
    gguf_files.of_checkpoint(source, path, llama__rope__scale_linear=4.0, llama__rope__dimension_count=16, **neutral)
    config = json.loads((repository.path(imported(repository, path)) / "config.json").read_text())
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


def test_how_the_author_samples_comes_along(repository: Repository, tmp_path: Path) -> None:
    """What llama.cpp takes as its defaults; the file's fp32 numbers are those that were meant."""
    source, path = saved(tmp_path / "source", CONFIGS["qwen2"]), tmp_path / "m.gguf"
    told: dict[str, Any] = {"temp": 0.6, "top_p": 0.95, "top_k": 20, "penalty_repeat": 1.1, "mirostat": 2}
    gguf_files.of_checkpoint(source, path, **{f"general__sampling__{key}": value for key, value in told.items()})
    manifest = imported(repository, path)
    found = generation_defaults.of_version(repository.path(manifest))
    assert found.sampling == {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.1}
    assert "generation_config.json without mirostat" in manifest.lineage.recipe


@pytest.mark.parametrize("offset", [0, 4, 1 << 40, 2**64 - 4096])
def test_tensors_lie_one_behind_the_other(repository: Repository, tmp_path: Path, offset: int) -> None:
    """One that overlaps, lies unaligned, or outside of the file."""
    source, path = saved(tmp_path / "source", CONFIGS["llama"]), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path)
    whole, name = path.read_bytes(), b"blk.1.ffn_up.weight"
    at = whole.index(name) + len(name) + 4 + 2 * 8 + 4
    path.write_bytes(whole[:at] + offset.to_bytes(8, "little") + whole[at + 8 :])
    with pytest.raises(InvalidSource, match=r"blk\.1\.ffn_up|no GGUF file that can be read"):
        imported(repository, path)
    assert repository.models() == []


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("blk.0.attn_sinks.weight", torch.zeros(4), "blk.0.attn_sinks.weight"),
        ("blk.0.attn_q_norm.weight", torch.zeros(16), "which its sizes do not have"),
        ("rope_freqs.weight", torch.tensor([1.0, 2.0, 3.0]), "not one positive divisor for each frequency"),
        ("rope_freqs.weight", torch.tensor([1.0] * 7 + [0.0]), "not one positive divisor for each frequency"),
    ],
)
def test_tensors_that_are_not_known_are_refused(
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    tensor: torch.Tensor,
    reason: str,
) -> None:
    with_tensor(monkeypatch, name, tensor)
    source, path = saved(tmp_path / "source", CONFIGS["llama"]), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path)
    with pytest.raises(InvalidSource, match=reason):
        imported(repository, path)


def test_damaged_files_are_refused(repository: Repository, tmp_path: Path) -> None:
    """Cut anywhere, or with any byte of the head changed: it is refused, or is a file that only says something else."""
    source, path = saved(tmp_path / "source", CONFIGS["llama"]), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path)
    whole, draw = path.read_bytes(), random.Random(3)
    for cut in (0, 3, 4, 20, 24, 500, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(drawn(5, 50)))):
        path.write_bytes(whole[:cut])
        with pytest.raises(InvalidSource):
            imported(repository, path)
    for _ in range(drawn(10, 200)):
        at = draw.randrange(0, 900)
        path.write_bytes(whole[:at] + bytes([draw.randrange(256)]) + whole[at + 1 :])
        try:
            imported(repository, path)
        except InvalidSource:
            continue


def test_a_vocabulary_whose_merges_take_all_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file without merges, each token has as many as it can be cut into two tokens: here a million in all."""
    monkeypatch.setattr(gguf_tokenizer, "_LIMITS", Limits(seconds=30, bytes=1 << 30, written=1 << 20))
    tokens, path = ["a" * length for length in range(1, 1_500)], tmp_path / "model.gguf"
    told = {"model": "llama", "tokens": tokens, "scores": [0.0] * len(tokens)}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in told.items()}
    gguf_files.write(path, {"general.architecture": "llama", **metadata}, {})
    with pytest.raises(InvalidSource, match=r"The tokenizer of model\.gguf needs more than 1 GiB of memory; import"):
        gguf_tokenizer.write_tokenizer(path, tmp_path)


def test_another_file_of_that_name(repository: Repository, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 this is a zip")
    with pytest.raises(InvalidSource, match=r"model\.gguf is no GGUF file that can be read"):
        imported(repository, path)
