"""An adapter that cannot run beside its base becomes a version whose weights are those of PEFT's own merge, and whose
logits are those of PEFT's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from models.imports.importing import import_source
from models.manifest import Manifest
from models.repository.repository import Repository
from models.weights.quantize import quantize
from tests.checkpoints import save_gpt2, save_llama, save_t5
from tests.golden.adapters import base_model, train

DORA = {"use_dora": True}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "DoRA": ("llama", DORA, "DoRA"),
    "DoRA of layers stored [in, out]": (
        "gpt2",
        {**DORA, "fan_in_fan_out": True, "target_modules": ["c_attn", "c_fc"]},
        "DoRA",
    ),
    "DoRA by module": ("llama", {**DORA, "use_rslora": True, "rank_pattern": {"q_proj": 2}}, "DoRA"),
    "the head": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "modules_to_save"),
    "the head of a tied base": ("tied", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "modules_to_s"),
    "the embedding of a tied base": ("tied", {"modules_to_save": ["embed_tokens"]}, "modules_to_save"),
    "head and embedding": ("tied", {"modules_to_save": ["embed_tokens", "lm_head"]}, "modules_to_save"),
    "norms": ("llama", {**DORA, "modules_to_save": ["norm", "input_layernorm"]}, "DoRA and modules_to_save"),
    "an embedding": (
        "llama",
        {"target_modules": ["embed_tokens", "v_proj"], "save_embedding_layers": "auto"},
        "LoRA on embeddings",
    ),
    "an embedding with DoRA": ("llama", {**DORA, "target_modules": ["embed_tokens", "v_proj"]}, "DoRA and LoRA on em"),
    "an embedding of a tied base": ("tied", {"target_modules": ["embed_tokens"]}, "LoRA on embeddings"),
    "head and embedding trained as one": (
        "tied",
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        "modules_to_save",
    ),
    "head and embedding adapted as one": (
        "tied",
        {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
        "LoRA on embeddings",
    ),
    "positions": ("gpt2", {"target_modules": ["wpe", "c_attn"], "fan_in_fan_out": True}, "LoRA on embeddings"),
    "DoRA on the head of a tied base": ("tied", {**DORA, "target_modules": ["lm_head"]}, "DoRA"),
    "an encoder-decoder model": ("t5", {"target_modules": ["q", "v", "wo"]}, "encoder-decoder"),
}
ONE_WEIGHT = {"an embedding of a tied base", "DoRA on the head of a tied base", "head and embedding adapted as one"}
"""Where PEFT's merge adds to the one weight what belongs to another, or twice; answers are its model's."""


def save_base(name: str, directory: Path) -> Path:
    match name:
        case "gpt2":
            return save_gpt2(directory)
        case "t5":
            return save_t5(directory)
    return save_llama(directory, tied=name == "tied")


def merged(tmp_path: Path, case: str, precision: str = "fp32") -> tuple[Repository, Manifest, Path, Path]:
    """(repository, the merged version, base, PEFT's adapter)"""
    kind, config, _ = CASES[case]
    repository, base = Repository(tmp_path / "data"), save_base(kind, tmp_path / "base")
    parent = import_source(repository, str(base), "demo", precision=precision)
    adapter = train(base, tmp_path / "adapter", 3, **config)
    return repository, import_source(repository, str(adapter), "demo", adapter_of=parent.reference), base, adapter


def logits(model: Any) -> torch.Tensor:
    ids = torch.tensor([[3, 65, 12, 200, 7, 7, 30]])
    other = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids, **other).logits[0]
    return found


@pytest.mark.parametrize("case", CASES)
def test_weights_and_logits_are_pefts(tmp_path: Path, case: str) -> None:
    repository, version, base, adapter = merged(tmp_path, case)
    repository.verify(version)
    assert not version.has_adapter and not version.is_conversion
    assert (version.lineage.parent, version.precision) == ("demo:1", "fp32")
    assert CASES[case][2] in version.lineage.recipe and "merged, as" in version.lineage.recipe
    own = peft.PeftModel.from_pretrained(base_model(base), str(adapter))
    expected = logits(own)
    served = base_model(repository.path(version))
    assert (logits(base_model(base)) - expected).abs().max() > 1e-3, "the adapter changes nothing that this test sees"
    torch.testing.assert_close(logits(served), expected, rtol=1e-4, atol=1e-5)
    assert version.parameters == sum(each.numel() for each in served.parameters())
    if case not in ONE_WEIGHT:
        theirs = own.merge_and_unload().state_dict()
        for name, tensor in served.state_dict().items():
            assert torch.allclose(tensor, theirs[name], rtol=1e-5, atol=1e-6), name


def test_a_merged_version_is_quantized_as_others_are(tmp_path: Path) -> None:
    repository, version, *_ = merged(tmp_path, "DoRA", "bf16")
    small = quantize(repository, version, "int8")
    assert small.is_conversion and small.lineage.parent == version.reference
