"""One model as GGUF in F16, Q8_0 and Q4_K_M's mixture, in one file and in three, with and without `output.weight`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig

from models.imports.importing import import_source
from models.repository.repository import Repository
from tests import gguf_files
from tests.block_weights import stored
from tests.gguf_files import Stored
from tests.unit.test_gguf import SIZES, saved

WIDE: dict[str, Any] = SIZES | {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}


def f16(tensor: torch.Tensor) -> Stored:
    return 1, tuple(tensor.shape), tensor.half().contiguous().numpy().tobytes()


def q4_k_m() -> Callable[[torch.Tensor], Stored]:
    """Most matrices in Q4_K, some in Q6_K."""
    number = count()
    return lambda tensor: stored(tensor, "Q4_K" if (at := next(number)) % 3 else "Q6_K", at)


FORMS: dict[str, Callable[[], Callable[[torch.Tensor], Stored]]] = {
    "F16": lambda: f16,
    "Q8_0": lambda: gguf_files.q8_0,
    "Q4_K_M": q4_k_m,
}


def logits_of(directory: Path) -> torch.Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = model(torch.arange(3, 60)[None]).logits[0]
    return logits


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tied", [True, False])
def test_parts_change_nothing_and_f16_is_the_checkpoint(tmp_path: Path, form: str, tied: bool) -> None:
    source, repository = saved(tmp_path / "source", LlamaConfig(**WIDE, tie_word_embeddings=tied)), Repository(tmp_path)
    found = {}
    for parts in (0, 3):
        directory = tmp_path / str(parts)
        directory.mkdir()
        weights = gguf_files.of_checkpoint(source, directory / "m.gguf", FORMS[form](), parts=parts)
        assert ("lm_head.weight" in weights) is not tied
        first = min(directory.glob("*.gguf"))
        made = import_source(repository, str(first), f"model{parts}", precision="bf16")
        found[parts] = load_file(repository.path(made) / "model.safetensors")
        served = import_source(repository, str(first), f"served{parts}")
        assert served.precision == ("bf16" if form == "F16" else "file")
    assert found[0].keys() == found[3].keys()
    assert all(torch.equal(found[0][name], tensor) for name, tensor in found[3].items())
    if form == "F16":
        ours, theirs = logits_of(repository.path(made)), logits_of(source)
        assert (ours - theirs).abs().max() < 1e-2
        assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
