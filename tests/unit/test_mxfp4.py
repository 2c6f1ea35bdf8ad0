"""gpt-oss as it is published: experts in MXFP4 become what the library makes of the same blocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from models.errors import InvalidSource
from models.imports.importing import import_source
from models.repository.repository import Repository
from models.weights.quantize import quantize
from models.weights.skeleton import of_config
from tests.checkpoints import save_tokenizer

FUSED = [f"model.layers.{layer}.mlp.experts.{part}" for layer in (0, 1) for part in ("gate_up_proj", "down_proj")]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tiny gpt-oss whose experts are random blocks, as the published files hold them."""
    directory = tmp_path / "source"
    torch.manual_seed(2)
    config = GptOssConfig(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=3,
        num_experts_per_tok=2,
        max_position_embeddings=256,
        eos_token_id=256,
    )
    GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)  # type: ignore[arg-type]
    save_tokenizer(directory)
    tensors = load_file(directory / "model.safetensors")
    for name in FUSED:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = (experts, outputs, inputs // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*blocks, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(110, 135, blocks, dtype=torch.uint8)
    write(directory, tensors)
    told = json.loads((directory / "config.json").read_text())
    told["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (directory / "config.json").write_text(json.dumps(told))
    return directory


def write(directory: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def test_experts_are_what_the_library_makes_of_them(source: Path, tmp_path: Path) -> None:
    repository, packed = Repository(tmp_path / "data"), load_file(source / "model.safetensors")
    manifest = import_source(repository, str(source), "oss")
    stored = load_file(repository.path(manifest) / "model.safetensors")
    for name in FUSED:
        want = convert_moe_packed_tensors(packed[f"{name}_blocks"], packed[f"{name}_scales"], dtype=torch.bfloat16)
        assert torch.equal(stored[name], want)
    others = [name for name in packed if not name.endswith(("_blocks", "_scales"))]
    assert len(stored) == len(others) + len(FUSED)
    assert all(torch.equal(stored[name], packed[name]) for name in others)
    assert "mxfp4, 4 tensors unpacked" in manifest.lineage.recipe
    small = quantize(repository, manifest, "int4")
    assert "int4 in groups of 32" in small.lineage.recipe


def test_needs_are_told_before_the_import(source: Path) -> None:
    skeleton = of_config(source / "config.json")
    assert len(skeleton.experts) == 2 * 3 * 3
    assert skeleton.weight_bytes("int4") < skeleton.weight_bytes("int8") < skeleton.weight_bytes("bf16")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda name, tensors: tensors.pop(f"{name}_scales"), "_scales is missing"),
        (lambda name, tensors: tensors.update({f"{name}_scales": tensors[f"{name}_scales"][:1]}), "do not fit"),
        (lambda name, tensors: tensors.update({f"{name}_blocks": tensors[f"{name}_blocks"].to(torch.int8)}), "do not"),
        (lambda name, tensors: tensors[f"{name}_scales"].fill_(255), "no number"),
        (lambda name, tensors: [tensors.pop(key) for key in list(tensors) if key.endswith("_blocks")], "no tensor is"),
    ],
    ids=["missing", "shape", "type", "not a number", "none"],
)
def test_what_does_not_fit_is_refused(source: Path, tmp_path: Path, change: object, said: str) -> None:
    tensors = load_file(source / "model.safetensors")
    change(FUSED[1], tensors)  # type: ignore[operator]
    write(source, tensors)
    with pytest.raises(InvalidSource, match=said):
        import_source(Repository(tmp_path / "data"), str(source), "oss")
