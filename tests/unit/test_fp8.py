"""FP8 checkpoints: weights come back as code times scale, whatever the scale is of, or are refused by name."""

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
from models.weights.skeleton import of_config
from tests.checkpoints import save_llama

LLM_COMPRESSOR: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
    "ignore": ["lm_head"],
}
INT4 = LLM_COMPRESSOR | {"config_groups": {"a": {"weights": {"type": "int", "num_bits": 4}}}, "format": "packed"}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "deepseek": ({"quant_method": "fp8", "weight_block_size": [32, 16], "fmt": "e4m3"}, "blocks"),
    "deepseek's own size": ({"quant_method": "fp8", "fmt": "e4m3"}, "blocks of 128"),
    "autofp8": ({"quant_method": "fp8", "activation_scheme": "static"}, "tensor"),
    "compressed-tensors by output": (LLM_COMPRESSOR, "outputs"),
    "compressed-tensors by tensor": (LLM_COMPRESSOR, "tensor"),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "scalar"),
}


def scale_for(weight: Tensor, kind: str) -> tuple[str, Tensor, Tensor]:
    """Returns the name of the scale behind `.weight`, the scale, and the scale of each weight."""
    if kind.startswith("blocks"):
        rows, columns = (128, 128) if "128" in kind else (32, 16)
        scale = torch.rand(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns)) * 0.01 + 0.01
        whole = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        return "_scale_inv", scale, whole[: weight.shape[0], : weight.shape[1]]
    shape = {"outputs": (len(weight), 1), "tensor": (1,), "scalar": ()}[kind]
    scale = torch.rand(shape) * 0.01 + 0.01
    return "_scale", scale, scale.expand_as(weight)


def checkpoint(directory: Path, told: dict[str, Any], kind: str) -> dict[str, Tensor]:
    """Saves a Llama whose layers are in FP8. Returns the weights that it means."""
    save_llama(directory, tied=False, width=64)
    weights, stored = load_file(directory / "model.safetensors"), dict[str, Tensor]()
    for name, weight in weights.items():
        if "_proj" not in name:
            stored[name] = weight
            continue
        suffix, scale, whole = scale_for(weight, kind)
        codes = (weight.float() / whole).to(torch.float8_e4m3fn)
        stored |= {name: codes, name + suffix: scale, name.replace("weight", "input_scale"): torch.ones(1)}
        weights[name] = (codes.float() * whole).bfloat16()
    save_file(stored, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {PACKING: told}))
    return weights


@pytest.mark.parametrize("form", FORMS)
def test_weights_come_back(tmp_path: Path, form: str) -> None:
    meant, repository = checkpoint(tmp_path / "source", *FORMS[form]), Repository(tmp_path / "data")
    manifest = import_source(repository, str(tmp_path / "source"), "demo")
    found = load_file(repository.path(manifest) / "model.safetensors")
    assert found.keys() == meant.keys()
    for name, weight in meant.items():
        assert torch.equal(found[name], weight), name
    assert "fp8, 7 tensors unpacked" in manifest.lineage.recipe
    assert of_config(tmp_path / "source" / "config.json").parameters == manifest.parameters


@pytest.mark.parametrize(
    ("told", "change", "said"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, None, "NVFP4"),
        (INT4, None, "'packed' is not read"),
        ({"quant_method": "compressed-tensors", "config_groups": [[]]}, None, "is not read"),
        ({"quant_method": "fp8", "weight_block_size": [0, "x"]}, None, "two sizes"),
        ({"quant_method": "fp8"}, "scale", "up_proj.weight is in FP8 without its scale"),
        ({"quant_method": "fp8"}, "shape", "does not fit"),
        ({"quant_method": "fp8"}, "nan", "not finite"),
        ({"quant_method": "fp8"}, "config", "accepted are"),
    ],
)
def test_what_is_not_read_is_refused(tmp_path: Path, told: dict[str, Any], change: str | None, said: str) -> None:
    directory, name = tmp_path / "source", "model.layers.0.mlp.up_proj.weight"
    checkpoint(directory, told, "tensor")
    tensors = load_file(directory / "model.safetensors")
    if change == "scale":
        del tensors[f"{name}_scale"]
    if change == "shape":
        tensors[f"{name}_scale"] = torch.ones(3)
    if change == "nan":
        tensors[f"{name}_scale"] = torch.tensor([float("nan")])
    if change == "config":
        config = json.loads((directory / "config.json").read_text())
        del config[PACKING]
        (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(InvalidSource, match=said):
        import_source(Repository(tmp_path / "data"), str(directory), "demo")
