"""Weights that compressed-tensors packed come back as (code - zero) * scale, or are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.checkpoint.config_policy import PACKING
from models.errors import InvalidSource
from models.imports.importing import import_source
from models.repository.repository import Repository
from tests.checkpoints import save_llama

FORMS: dict[str, dict[str, Any]] = {
    "W4A16": {"num_bits": 4, "group_size": 16},
    "asymmetric": {"num_bits": 4, "group_size": 16, "symmetric": False},
    "W8A16 by output": {"num_bits": 8, "group_size": None},
    "inputs in another order": {"num_bits": 4, "group_size": 16, "actorder": "group"},
}


def words(codes: Tensor, bits: int) -> Tensor:
    """[rows, n] codes from 0 on → int32 words, the first code in the lowest bits, padded with 0."""
    per_word = 32 // bits
    padded = torch.nn.functional.pad(codes.long(), (0, -codes.shape[1] % per_word)).view(len(codes), -1, per_word)
    sums = (padded << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(sums >= 1 << 31, sums - (1 << 32), sums).int()


def pack(weight: Tensor, form: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """Returns random parts in the shape of a weight, and the weight that they mean."""
    (outputs, inputs), bits = weight.shape, form["num_bits"]
    size = form["group_size"] or inputs
    codes = torch.randint(0, 1 << bits, (outputs, inputs))
    scales = torch.rand(outputs, -(-inputs // size)) * 0.01 + 0.01
    zeros = torch.full_like(scales, 1 << (bits - 1)).long()
    group = torch.arange(inputs) // size
    parts = {"packed": words(codes, bits), "scale": scales, "shape": torch.tensor([outputs, inputs])}
    if form.get("symmetric") is False:
        zeros = torch.randint(0, 1 << bits, scales.shape)
        parts["zero_point"] = words(zeros.T, bits).T.contiguous()
    if form.get("actorder"):
        group = group[torch.randperm(inputs)]
        parts["g_idx"] = group.int()
    return parts, (codes - zeros[:, group]) * scales[:, group]


def checkpoint(directory: Path, form: dict[str, Any], **quantization: Any) -> dict[str, Tensor]:
    """Saves a Llama with packed layers, whose MLP has rows of 48 numbers. Returns the weights that it means."""
    torch.manual_seed(2)
    save_llama(directory, tied=False)
    weights, stored = load_file(directory / "model.safetensors"), dict[str, Tensor]()
    for name, weight in weights.items():
        if "_proj" not in name:
            stored[name] = weight
            continue
        parts, weights[name] = pack(weight, form)
        stored |= {f"{name}_{part}": tensor for part, tensor in parts.items()}
    save_file(stored, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    groups = {"group_0": {"targets": ["Linear"], "weights": {"type": "int", **form}}}
    config[PACKING] = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    config[PACKING] |= quantization
    (directory / "config.json").write_text(json.dumps(config))
    return weights


@pytest.mark.parametrize("form", FORMS)
def test_weights_come_back(tmp_path: Path, form: str) -> None:
    meant, repository = checkpoint(tmp_path / "source", FORMS[form]), Repository(tmp_path / "data")
    version = import_source(repository, str(tmp_path / "source"), "demo")
    assert f"pack-quantized of {FORMS[form]['num_bits']} bits, 7 tensors unpacked" in version.lineage.recipe
    for name, tensor in load_file(repository.path(version) / "model.safetensors").items():
        assert torch.equal(tensor, meant[name].to(torch.bfloat16)), name


@pytest.mark.parametrize(
    ("form", "change", "named"),
    [
        ({"num_bits": 3}, None, "integers of 4 or 8 bits"),
        ({"type": "float"}, None, "integers of 4 or 8 bits"),
        ({"num_bits": [4]}, None, "integers of 4 or 8 bits"),
        ({}, ("shape", None), "weight_shape is missing"),
        ({}, ("shape", torch.tensor([32, 33])), "does not fit"),
        ({}, ("shape", torch.tensor(32)), "does not fit"),
        ({}, ("scale", torch.ones(32, 3)), "weight_scale does not fit"),
        ({}, ("g_idx", torch.full((32,), 2).int()), "names a group"),
        ({}, ("scale", torch.full((32, 2), float("nan"))), "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, form: dict[str, Any], change: tuple[str, Tensor | None] | None, named: str
) -> None:
    source = tmp_path / "source"
    checkpoint(source, FORMS["W4A16"])
    if form:
        config = json.loads((source / "config.json").read_text())
        config[PACKING]["config_groups"]["group_0"]["weights"] |= form
        (source / "config.json").write_text(json.dumps(config))
    if change:
        stored, name = load_file(source / "model.safetensors"), "model.layers.0.self_attn.q_proj.weight_" + change[0]
        stored = {key: tensor for key, tensor in stored.items() if key != name}
        stored |= {} if change[1] is None else {name: change[1]}
        save_file(stored, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(InvalidSource, match=named):
        import_source(Repository(tmp_path / "data"), str(source), "demo")
