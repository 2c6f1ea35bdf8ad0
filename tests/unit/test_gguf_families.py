"""GGUF files of Gemma and gpt-oss: what llama.cpp's converter changes is taken back, to the same logits and ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GptOssConfig,
)

from models.errors import InvalidSource
from models.imports.importing import import_source
from models.repository.repository import Repository
from service.text.tokenizer import Tokenizer
from tests import gguf_files
from tests.checkpoints import save_gemma_tokenizer, save_gpt_oss_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 330,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 2,
    "eos_token_id": [1, 5],
}
CAPPED: dict[str, Any] = {**SIZES, "attn_logit_softcapping": 2.5, "final_logit_softcapping": 7.0, "sliding_window": 6}
OSS: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "sliding_window": 6,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "eos_token_id": 257,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def rotary(local: float, **of_all: Any) -> dict[str, Any]:
    return {
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0, **of_all},
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


CONFIGS: dict[str, Any] = {
    "gemma": GemmaConfig(**SIZES, num_hidden_layers=2),
    "gemma2": Gemma2Config(**CAPPED, num_hidden_layers=26, query_pre_attn_scalar=16),
    "gemma2-27b": Gemma2Config(**CAPPED, num_hidden_layers=46, query_pre_attn_scalar=8),
    "gemma3": Gemma3TextConfig(
        **SIZES, num_hidden_layers=18, sliding_window=6, query_pre_attn_scalar=16, rope_parameters=rotary(10000.0)
    ),
    "gemma3-27b": Gemma3TextConfig(
        **SIZES,
        num_hidden_layers=62,
        sliding_window=6,
        query_pre_attn_scalar=8,
        rope_parameters=rotary(10000.0, rope_type="linear", factor=8.0),
    ),
    "gemma3-no-window": Gemma3TextConfig(
        **SIZES,
        num_hidden_layers=32,
        sliding_window=256,
        query_pre_attn_scalar=16,
        final_logit_softcapping=7.0,
        layer_types=["full_attention"] * 32,
        rope_parameters=rotary(10000.0),
    ),
    "gpt_oss": GptOssConfig(**OSS, rope_parameters=dict(YARN)),
    "gpt_oss-unscaled": GptOssConfig(**OSS, rope_parameters={"rope_type": "default", "rope_theta": 150000.0}),
}
TEXTS = (
    "<start_of_turn>the 안녕하세요 and\n\n\n   a\tb<end_of_turn>\n",
    "     12345 they're THE's and  <table>xyz xyzx",
    "<|return|>the<|end|> é\n \n",
    "",
    "a▁▁ ▁the",
    "xyz\nxyz",
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    gguf_files.convert_here(monkeypatch)
    return Repository(tmp_path / "data")


def saved(directory: Path, kind: str) -> Path:
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_config(CONFIGS[kind])  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.to(torch.bfloat16).save_pretrained(directory)
    (save_gpt_oss_tokenizer if kind.startswith("gpt_oss") else save_gemma_tokenizer)(directory)
    return directory


def imported(repository: Repository, path: Path) -> Path:
    return repository.path(import_source(repository, str(path), "model", precision="bf16"))


def logits(directory: Path) -> torch.Tensor:
    """[1, 24, vocabulary]: longer than the windows, in fp32, so that no cap or base hides behind rounding."""
    torch.manual_seed(3)
    ids = torch.randint(0, 300, (1, 24))
    with torch.inference_mode():
        found: torch.Tensor = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)(ids).logits
    return found


@pytest.mark.parametrize(
    ("kind", "form"),
    [*((kind, gguf_files.f32) for kind in CONFIGS), ("gemma2", gguf_files.bf16), ("gpt_oss", gguf_files.bf16)],
)
def test_the_checkpoint_comes_back(repository: Repository, tmp_path: Path, kind: str, form: Any) -> None:
    source, path = saved(tmp_path / "source", kind), tmp_path / "model.gguf"
    weights = gguf_files.of_checkpoint(source, path, form)
    found = imported(repository, path)
    stored = load_file(found / "model.safetensors")
    assert stored.keys() == weights.keys()
    assert all(torch.equal(stored[name], weights[name]) for name in weights)
    assert torch.equal(logits(found), logits(source))


@pytest.mark.parametrize("kind", ["gemma", "gemma2", "gemma3", "gpt_oss"])
def test_texts_become_the_same_ids(repository: Repository, tmp_path: Path, kind: str) -> None:
    source, path = saved(tmp_path / "source", kind), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path)
    found = imported(repository, path)
    before, after = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained(found)
    for text in TEXTS:
        assert after.encode(text) == before.encode(text), text
        spelled = text if kind == "gpt_oss" else text.replace("▁", " ")
        assert after.decode(after.encode(text, add_special_tokens=False)) == spelled
    assert (after.encode("a")[0] == 2) == (kind != "gpt_oss"), "BOS before a text"
    assert set(Tokenizer.load(found).stop_token_ids) == ({256, 257, 258} if kind == "gpt_oss" else {1, 5})
    assert after.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "user: hi\nassistant:"


def packed(source: Path) -> dict[str, torch.Tensor]:
    """Makes the experts of a gpt-oss checkpoint random blocks of MXFP4, as published. Returns the tensors."""
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = (experts, outputs, inputs // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*blocks, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(110, 135, blocks, dtype=torch.uint8)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    told = json.loads((source / "config.json").read_text())
    told["quantization_config"] = {"quant_method": "mxfp4"}
    (source / "config.json").write_text(json.dumps(told))
    return tensors


def test_experts_in_mxfp4_are_those_of_the_published_blocks(repository: Repository, tmp_path: Path) -> None:
    source, path = saved(tmp_path / "source", "gpt_oss"), tmp_path / "model.gguf"
    packed(source)
    gguf_files.of_checkpoint(source, path)
    published = load_file(imported(repository, source) / "model.safetensors")
    manifest = import_source(repository, str(path), "model")
    stored = load_file(repository.path(manifest) / "model.safetensors")
    assert stored.keys() == published.keys()
    assert all(torch.equal(stored[name], published[name]) for name in published)
    assert "tensors in F32, MXFP4, dequantized" in manifest.lineage.recipe


@pytest.mark.parametrize("kind", ["gemma", "gemma2", "gemma3", "gpt_oss"])
def test_the_files_of_these_tests_have_llama_cpps_names(tmp_path: Path, kind: str) -> None:
    """llama.cpp's own package knows the tensors of an architecture and the keys of metadata."""
    source, path = saved(tmp_path / "source", kind), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path)
    reader = gguf.GGUFReader(path)
    name = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    architecture = next(key for key, each in gguf.MODEL_ARCH_NAMES.items() if each == name)
    known = {gguf.TENSOR_NAMES[each] for each in gguf.MODEL_TENSORS[architecture]}
    parts = {tensor.name.replace(f"blk.{at}.", "blk.{bid}.") for tensor in reader.tensors for at in range(26)}
    written = {part.rpartition(".")[0] for part in parts if "{bid}" in part or not part.startswith("blk.")}
    assert written <= known
    assert known - written <= {"output", "rope_freqs", "blk.{bid}.attn_rot_embd"}
    mapped = gguf.get_tensor_name_map(architecture, 26)
    for each in load_file(source / "model.safetensors"):
        if ".experts." not in each:
            module = each.removesuffix(".weight").removesuffix(".bias")
            assert (mapped.get_name(module) or "") in {tensor.name.rpartition(".")[0] for tensor in reader.tensors}
    keys = {
        value.replace("{arch}", name)
        for group in vars(gguf.Keys).values()
        if isinstance(group, type)
        for value in vars(group).values()
        if isinstance(value, str)
    }
    assert {key for key in reader.fields if not key.startswith("GGUF.")} <= keys


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("gemma2", {"gemma2__rope__freq_base_swa": 500.0}, r"base 500\.0 in layers with a window and 10000"),
        ("gemma2", {"gemma2__final_logit_softcapping": -1.0}, "final_logit_softcapping is -1.0"),
        ("gemma2", {"gemma2__attention__sliding_window_pattern": [1, 0]}, "is for 2 of 26 layers"),
        ("gemma3", {"gemma3__rope__freq_base": None}, "rope.freq_base is None"),
        ("gemma3", {"gemma3__attention__causal": False}, "looks ahead"),
        ("gpt_oss", {"gpt-oss__rope__scaling__yarn_attn_factor": 1.0}, "by gpt-oss.rope.scaling.yarn_attn_factor"),
        ("gpt_oss", {"gpt-oss__rope__scaling__yarn_ext_factor": 0.5}, "by gpt-oss.rope.scaling.yarn_ext_factor"),
        ("gpt_oss", {"gpt-oss__expert_feed_forward_length": 64}, "its sizes say"),
        ("gpt_oss", {"gpt-oss__attention__sliding_window": None}, "attention.sliding_window is None"),
    ],
)
def test_what_is_not_known_is_refused(
    repository: Repository, tmp_path: Path, kind: str, changes: dict[str, Any], reason: str
) -> None:
    source, path = saved(tmp_path / "source", kind), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path, **changes)
    with pytest.raises(InvalidSource, match=reason):
        imported(repository, path)


def test_queries_of_an_unknown_size_are_refused(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Gemma2Config(**CAPPED, num_hidden_layers=3, query_pre_attn_scalar=16)
    monkeypatch.setitem(CONFIGS, "gemma2", config)
    source, path = saved(tmp_path / "source", "gemma2"), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path)
    with pytest.raises(InvalidSource, match="known of gemma2 with 26, 42, 46 layers; this one has 3"):
        imported(repository, path)


@pytest.mark.parametrize(
    ("kind", "name", "shape", "reason"),
    [
        ("gpt_oss", "blk.0.ffn_norm.weight", (32,), "its architecture does not have"),
        ("gpt_oss", "blk.0.ffn_gate_exps.weight", (3, 32, 32), "shapes that do not fit"),
        ("gpt_oss", "blk.0.ffn_down_exps.weight", (3, 32), "shapes that do not fit"),
        ("gemma", "blk.0.post_ffw_norm.weight", (32,), "its architecture does not have"),
        ("gemma2", "blk.0.attn_sinks.weight", (4,), "its architecture does not have"),
        ("gemma2", "blk.0.attn_q_norm.weight", (16,), "which its sizes do not have"),
        ("gpt_oss", "blk.0.ffn_up_exps.weight", None, "no tensor for model.layers.0.mlp.experts.gate_up_proj|does not"),
        ("gpt_oss", "blk.2.attn_sinks.weight", None, r"no tensor for model\.layers\.2\.self_attn\.sinks"),
        ("gemma3", "blk.2.post_ffw_norm.weight", None, "no tensor for model.layers.2.post_feedforward_layernorm"),
    ],
)
def test_tensors_that_are_not_known_or_missing_are_refused(
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    name: str,
    shape: tuple[int, ...] | None,
    reason: str,
) -> None:
    write = gguf_files.write

    def changed(path: Path, told: Any, tensors: Any) -> None:
        others = {each: tensor for each, tensor in tensors.items() if each != name}
        write(path, told, others | ({} if shape is None else {name: gguf_files.f32(torch.ones(shape))}))

    monkeypatch.setattr(gguf_files, "write", changed)
    source, path = saved(tmp_path / "source", kind), tmp_path / "model.gguf"
    gguf_files.of_checkpoint(source, path)
    with pytest.raises(InvalidSource, match=reason):
        imported(repository, path)


def test_layers_may_say_themselves_what_they_look_at(repository: Repository, tmp_path: Path) -> None:
    source, path = saved(tmp_path / "source", "gemma3"), tmp_path / "model.gguf"
    for pattern, full in (([1, 0] * 9, list(range(1, 18, 2))), (3, [2, 5, 8, 11, 14, 17])):
        changes: dict[str, Any] = {
            "gemma3__attention__sliding_window_pattern": pattern,
            "gemma3__rope__freq_base_swa": 500.0,
        }
        gguf_files.of_checkpoint(source, path, **changes)
        config = json.loads((imported(repository, path) / "config.json").read_text())
        assert [at for at, kind in enumerate(config["layer_types"]) if kind == "full_attention"] == full
        assert (config["rope_local_base_freq"], config["rope_theta"]) == (500.0, 1000000.0)
