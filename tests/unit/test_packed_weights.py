"""AWQ, GPTQ and MXFP4 checkpoints: each weight comes back as their papers' formula says, in any of their forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from models.checkpoint.config_policy import PACKING
from models.errors import InvalidSource
from models.imports.importing import import_source
from models.imports.packed_weights import unpack
from models.progress import silent
from models.repository.repository import Repository
from models.weights.quantize import quantize
from models.weights.skeleton import of_config
from tests.checkpoints import save_llama, save_tokenizer

WIDE = 64
LINEARS = (*(f"self_attn.{each}_proj" for each in "qkvo"), *(f"mlp.{each}_proj" for each in ("gate", "up", "down")))
FORMS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    "awq, AutoAWQ's names": {"quant_method": "awq", "w_bit": 4, "q_group_size": 32},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
    "gptq by activation": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
    "gptq of one group": {"quant_method": "gptq", "bits": 4, "group_size": -1},
    "gptq_v2": {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"},
    "gptq of 8 bits": {"quant_method": "gptq", "bits": 8, "group_size": 32},
}


def packed(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """[rows, n] codes → int32 [rows, n * bits / 32], one code after the other."""
    per_word = 32 // bits
    order = order or tuple(range(per_word))
    words = torch.zeros(len(codes), codes.shape[1] // per_word, dtype=torch.int64)
    for place, of_word in enumerate(order):
        words |= codes[:, of_word::per_word].long() << (place * bits)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def pack(weight: Tensor, form: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """Returns a layer's tensors for weights [out, in], and the weights that they mean."""
    is_awq, bits = form["quant_method"] == "awq", int(form.get("bits") or form["w_bit"])
    depth = weight.shape[1]
    size = int(form.get("group_size") or form["q_group_size"])
    size = depth if size == -1 else size
    groups = torch.arange(depth) // size
    if form.get("desc_act"):
        groups = groups[torch.randperm(depth, generator=torch.Generator().manual_seed(depth))]
    low = torch.stack([weight.T[groups == each].amin(0) for each in range(depth // size)])
    high = torch.stack([weight.T[groups == each].amax(0) for each in range(depth // size)])
    scales = ((high - low) / (2**bits - 1)).half()
    less = 1 if form["quant_method"] == "gptq" and form.get("checkpoint_format") != "gptq_v2" else 0
    zeros = (-low / scales.float()).round().clamp(less, 2**bits - 1)
    codes = (weight.T / scales.float()[groups] + zeros[groups]).round().clamp(0, 2**bits - 1)
    meant = ((codes - zeros[groups]) * scales.float()[groups]).T
    order = (0, 2, 4, 6, 1, 3, 5, 7) if is_awq else None
    qweight = packed(codes, bits, order) if is_awq else packed(codes.T.contiguous(), bits).T.contiguous()
    layer = {"qweight": qweight, "qzeros": packed(zeros - less, bits, order), "scales": scales}
    return layer | ({} if is_awq else {"g_idx": groups.to(torch.int32)}), meant


def checkpoint(directory: Path, form: dict[str, Any]) -> dict[str, Tensor]:
    """Saves a Llama whose layers are packed. Returns the weights that it means by name."""
    save_llama(directory, torch.float16, width=WIDE)
    weights = load_file(directory / "model.safetensors")
    for linear in LINEARS:
        name = f"model.layers.0.{linear}"
        parts, weights[f"{name}.weight"] = pack(weights[f"{name}.weight"].float(), form)
        weights |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
    plain = {f"model.layers.0.{linear}.weight" for linear in LINEARS}
    kept = {name: tensor for name, tensor in weights.items() if name not in plain}
    save_file(kept, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {PACKING: form}))
    return {name: weight for name, weight in weights.items() if name.endswith(".weight")}


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_weights_come_back(tmp_path: Path, form: dict[str, Any]) -> None:
    meant, repository = checkpoint(tmp_path / "source", form), Repository(tmp_path / "data")
    manifest = import_source(repository, str(tmp_path / "source"), "model")
    stored = load_file(repository.path(manifest) / "model.safetensors")
    assert stored.keys() == meant.keys()
    for name, weight in meant.items():
        assert torch.equal(stored[name], weight.to(torch.bfloat16)), name
    method, bits = form["quant_method"], form.get("bits", 4)
    assert f"{method} of {bits} bits" in manifest.lineage.recipe and "7 tensors unpacked" in manifest.lineage.recipe
    assert PACKING not in json.loads((repository.path(manifest) / "config.json").read_text())
    repository.verify(manifest)


@pytest.mark.parametrize("told", [{}, {"checkpoint_format": "gptq_v2"}, {"sym": True}])
@pytest.mark.parametrize(("word", "bits"), [(0x88888888, 4), (0x77777777, 4), (0x80808080, 8), (0x7F7F7F7F, 8)])
def test_symmetric_zeros_are_read_in_either_way(tmp_path: Path, told: dict[str, Any], word: int, bits: int) -> None:
    """Publishers write the other way's zeros beside a name of this way. A zero of the middle tells."""
    form = {"quant_method": "gptq", "bits": bits, "group_size": 32, **told}
    draw = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 1 << bits, (WIDE, WIDE), generator=draw)
    scales = torch.rand(WIDE // 32, WIDE, generator=draw).half()
    zeros = torch.full((WIDE // 32, WIDE * bits // 32), word - ((word >> 31) << 32)).to(torch.int32)
    parts = {"qweight": packed(codes.T.contiguous(), bits).T.contiguous(), "qzeros": zeros, "scales": scales}
    got = weight_of(tmp_path, parts, form)
    meant = (codes - (1 << (bits - 1))) * scales.float()[torch.arange(WIDE) // 32]
    assert torch.equal(got, meant.T.bfloat16())


def test_asymmetric_zeros_of_zero_borrow_from_the_next(tmp_path: Path) -> None:
    """As GPTQModel saves them: 0x11111111 less than the whole word."""
    draw = torch.Generator().manual_seed(2)
    codes, zeros = torch.randint(0, 16, (WIDE, WIDE), generator=draw), torch.randint(0, 3, (2, WIDE), generator=draw)
    scales = torch.rand(2, WIDE, generator=draw).half()
    words = (packed(zeros, 4).long() - 0x11111111) & 0xFFFFFFFF
    stored = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    parts = {"qweight": packed(codes.T.contiguous(), 4).T.contiguous(), "qzeros": stored, "scales": scales}
    got = weight_of(tmp_path, parts, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False})
    groups = torch.arange(WIDE) // 32
    assert torch.equal(got, ((codes - zeros[groups]) * scales.float()[groups]).T.bfloat16())


def weight_of(directory: Path, parts: dict[str, Tensor], form: dict[str, Any]) -> Tensor:
    """Returns the weight, bf16 [out, in], that the parts of one layer are unpacked to."""
    save_file({f"layer.{name}": tensor for name, tensor in parts.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({PACKING: form}))
    unpack(directory, silent)
    return load_file(directory / "model.safetensors")["layer.weight"]


def test_it_becomes_4_bits_of_our_own(tmp_path: Path) -> None:
    checkpoint(tmp_path / "source", FORMS["awq"])
    repository = Repository(tmp_path / "data")
    manifest = import_source(repository, str(tmp_path / "source"), "model", precision="int4")
    report = json.loads((repository.path(manifest) / "quantization.json").read_text())
    errors = [layer["error"] for layer in report["layers"].values() if layer["bits"] == 4]
    assert len(errors) == 7 and max(errors) < 1e-3, "the groups' own steps are found again"


def test_its_needs_are_known_before_it_is_fetched(tmp_path: Path) -> None:
    checkpoint(tmp_path / "source", FORMS["gptq"])
    assert of_config(tmp_path / "source" / "config.json").largest_matrix == 260 * WIDE


def _without(part: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda weights: weights.pop(f"model.layers.0.mlp.up_proj.{part}")


def _with(part: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], object]:
    name = f"model.layers.0.mlp.up_proj.{part}"
    return lambda weights: weights.update({name: change(weights[name])})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_without("scales"), "up_proj.scales is missing: gptq needs it"),
        (_without("qzeros"), "up_proj.qzeros is missing"),
        (_with("scales", lambda scales: scales[:1]), "do not fit each other"),
        (_with("qzeros", lambda zeros: zeros[:, :1]), "do not fit each other"),
        (_with("qweight", lambda words: words.float()), "do not fit each other"),
        (_with("qweight", lambda words: words.flatten()), "do not fit each other"),
        (_with("scales", lambda scales: scales / 0), "not finite"),
        (_with("g_idx", lambda groups: groups + 7), "g_idx names a group"),
        (_with("g_idx", lambda groups: groups[1:]), "g_idx has not one group"),
        (lambda weights: [weights.pop(name) for name in list(weights) if "qweight" in name], "no tensor is called"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], object], reason: str
) -> None:
    checkpoint(tmp_path / "source", FORMS["gptq"])
    weights = load_file(tmp_path / "source" / "model.safetensors")
    change(weights)
    save_file({name: each.contiguous() for name, each in weights.items()}, tmp_path / "source" / "model.safetensors")
    repository = Repository(tmp_path / "data")
    with pytest.raises(InvalidSource, match=reason):
        import_source(repository, str(tmp_path / "source"), "model")
    assert repository.models() == []


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"bits": 3}, "gptq of 3 bits"),
        ({"bits": None}, "gptq of None bits"),
        ({"group_size": "all"}, "groups of 'all'"),
        ({"group_size": 0}, "groups of 0"),
        ({"quant_method": "awq", "bits": 8}, "awq of 8 bits"),
        ({"quant_method": "awq", "version": "marlin"}, "AWQ in the form 'marlin'"),
        ({"quant_method": "bitsandbytes"}, "another method than awq, gptq and mxfp4"),
    ],
)
def test_forms_that_are_not_read_are_refused(tmp_path: Path, told: dict[str, Any], reason: str) -> None:
    checkpoint(tmp_path / "source", FORMS["gptq"])
    config = json.loads((tmp_path / "source" / "config.json").read_text())
    (tmp_path / "source" / "config.json").write_text(json.dumps(config | {PACKING: FORMS["gptq"] | told}))
    with pytest.raises(InvalidSource, match=reason):
        import_source(Repository(tmp_path / "data"), str(tmp_path / "source"), "model")


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
