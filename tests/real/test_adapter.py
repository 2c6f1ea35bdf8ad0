"""A LoRA adapter of random weights on a model that others trained: each precision's predictions are those of PEFT in
fp32, within the precision's own bounds, and the base in the same engine stays what it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor

from loadtest.bench.quality import distances
from loadtest.peers.on_dosirak import Core
from models.imports.importing import import_source
from models.repository.repository import Repository
from service.engine.protocol.messages import Request, SamplingParams
from service.evaluation.offline import load, run_all
from tests.golden.adapters import base_model, train
from tests.real.conftest import NAME, Versions, settings
from tests.real.precisions import BOUNDS, DEFAULTS

pytestmark = pytest.mark.nightly
SPREAD = 0.06
"""Predictions move by about as much as a fine-tuning moves them, and the model still writes sentences."""
MOVED = 0.1
"""Nats of KL between the base and the adapted model, at least: far more than any precision loses."""


@pytest.fixture(scope="module")
def adapter(versions: Versions, repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = repository.path(versions("bf16"))
    return train(base, tmp_path_factory.mktemp("peft") / "adapter", seed=5, spread=SPREAD)


@pytest.fixture(scope="module")
def expected(
    versions: Versions, repository: Repository, adapter: Path, prose: list[list[int]]
) -> tuple[Tensor, Tensor]:
    """The logits of the base and of PEFT's model in fp32, on the first window."""
    base = base_model(repository.path(versions("bf16")))
    with torch.inference_mode():
        plain = base(torch.tensor([prose[0]])).logits[0, :-1]
        return plain, peft.PeftModel.from_pretrained(base, adapter)(torch.tensor([prose[0]])).logits[0, :-1]


@pytest.mark.parametrize("precision", DEFAULTS)
def test_an_adapter_is_added_to_every_precision(
    versions: Versions,
    repository: Repository,
    adapter: Path,
    expected: tuple[Tensor, Tensor],
    prose: list[list[int]],
    precision: str,
    tmp_path: Path,
) -> None:
    plain, theirs = expected
    base = versions(precision)
    shutil.copytree(adapter, tmp_path / "adapter")
    manifest = import_source(
        repository, str(tmp_path / "adapter"), NAME, version=f"{precision}-adapted", adapter_of=base.reference
    )
    version = load(settings(repository), repository, manifest)
    engine: Any = Core(version.core(), version.runner, version.adapter)
    rows = torch.frombuffer(bytearray(engine.predict(prose[0])), dtype=torch.float32).view_as(theirs)
    change, same, kl = distances(theirs, rows, prose[0])
    moved = float(distances(plain, theirs, prose[0])[2].mean())
    print(f"\n{precision}: {float(change.abs().mean()):.4f}, top-1 {float(same.mean()):.2%}, moved by KL {moved:.3f}")
    assert moved > MOVED
    assert float(change.abs().mean()) <= 1.5 * BOUNDS[precision].logprob_change
    assert float(kl.mean()) <= 2.5 * BOUNDS[precision].kl
    asked = [
        Request(str(n), tuple(prose[0][n : n + 40]), SamplingParams(max_tokens=8, logprobs=1)) for n in (0, 50, 90)
    ]
    together = run_all(version.core(), asked)
    for each in asked:
        [alone] = run_all(version.core(speculation=False), [each]).values()
        assert [one.token_ids for one in alone] == [one.token_ids for one in together[each.id]]
        assert [one.logprobs for one in alone] == [one.logprobs for one in together[each.id]]
