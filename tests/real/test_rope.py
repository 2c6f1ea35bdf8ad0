"""Each kind of rotary embedding at far positions of a model that others trained, against transformers in fp32."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from loadtest.bench.quality import TEXT
from loadtest.peers.on_dosirak import Core
from models.imports.importing import import_source
from models.manifest import Manifest
from models.repository.disk.staging import MANIFEST
from models.repository.repository import Repository
from service.evaluation.offline import load
from service.text.tokenizer import Tokenizer
from tests.real.conftest import settings

pytestmark = pytest.mark.nightly
WINDOW = 7168
"""Tokens of the text, and of the window: then the library's tables, which follow the text, are those of the window."""
FIRST = 1000
"""Positions before it show little of a wrong table."""
LIMIT = 0.02
HALF = 32
"""Frequencies of a head of 64 numbers."""
KV_BYTES = 1 << 30
THETA = 100000.0

KINDS: dict[str, dict[str, object]] = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 2048},
    "yarn, its ends told": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 2048,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    },
    "longrope": {
        "original_max_position_embeddings": 2048,
        "short_factor": [1.0] * HALF,
        "long_factor": [1.0 + at / 16 for at in range(HALF)],
    },
}


@pytest.fixture(scope="module")
def text(versions: Callable[[str], Manifest], repository: Repository) -> list[int]:
    """WINDOW tokens of this project's texts."""
    folder = resources.files("service.evaluation.general")
    texts = [folder.joinpath(name).read_text(encoding="utf-8") for name in ("measured.txt", "calibration.txt")]
    whole = "\n".join([TEXT.read_text(encoding="utf-8"), *texts])
    ids = Tokenizer.load(repository.path(versions("bf16"))).encode(whole)
    assert len(ids) >= WINDOW
    return list(ids[:WINDOW])


def _checkpoint(source: Path, folder: Path, rope: dict[str, object]) -> Path:
    """A copy of the checkpoint at `source` with another rotary embedding."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(MANIFEST))
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= {"max_position_embeddings": WINDOW, "rope_parameters": rope | {"rope_theta": THETA}}
    config.pop("rope_scaling", None)
    file.write_text(json.dumps(config), encoding="utf-8")
    return folder


def _of_true_tokens(logits: Tensor, ids: list[int]) -> Tensor:
    """Log-probabilities of the tokens that follow, from logits [positions, vocabulary]."""
    rows = logits[FIRST:]
    true = torch.tensor(ids[FIRST + 1 :])
    return rows.gather(1, true[:, None])[:, 0] - rows.logsumexp(1)


@torch.inference_mode()
def _of_library(folder: Path, ids: list[int]) -> Tensor:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return _of_true_tokens(model(torch.tensor([ids]), use_cache=False).logits[0, :-1], ids)


@pytest.mark.parametrize("kind", KINDS)
def test_far_positions_are_the_librarys(
    versions: Callable[[str], Manifest], repository: Repository, text: list[int], tmp_path: Path, kind: str
) -> None:
    rope = {"rope_type": kind} | KINDS[kind]
    folder = _checkpoint(repository.path(versions("bf16")), tmp_path / "checkpoint", rope)
    manifest = import_source(repository, str(folder), "rope", precision="fp32")
    loaded = load(settings(repository).model_copy(update={"kv_cache_bytes": KV_BYTES}), repository, manifest)
    rows = torch.frombuffer(bytearray(Core(loaded.core(), loaded.runner).predict(text)), dtype=torch.float32)
    ours = _of_true_tokens(rows.view(WINDOW - 1, -1), text)
    difference = float((ours - _of_library(folder, text)).square().mean().sqrt())
    print(f"\n{kind}: {difference:.6f} by the {loaded.info.forward} forward")
    assert difference <= LIMIT
