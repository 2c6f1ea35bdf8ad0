"""A version's report: what it is compared with, on which text, and that its figures are of these engines."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.checkpoint.decoder_start import decoder_start
from models.errors import Conflict, NotFound
from models.imports.importing import import_source
from models.manifest import ADAPTER_WEIGHTS
from models.repository.gate import Limits, Measured, checks
from models.repository.published import baseline_of
from models.repository.repository import Repository
from models.weights.quantize import quantize
from service.engine.process.core import EngineCore
from service.engine.runner import scoring
from service.errors import GenerationFailed, InvalidRequest
from service.evaluation.evaluate import evaluate
from service.evaluation.planning import EFFORTS, Extent
from service.evaluation.predictions import Predictions, predict
from service.evaluation.speed import ROUNDS, Pace, SpeedPlan, paces
from service.evaluation.texts import Text, calibration, of_file
from service.settings import Settings
from service.text.tokenizer import Tokenizer
from tests.checkpoints import save_bart, save_gpt2, save_t5
from tests.effort import usual
from tests.fakes import FakeRunner, make_core
from tests.golden.adapters import train
from tests.reports import beside, report
from tests.versions import FACTS, publish, write_weights

DEMO = Path(__file__).parents[2] / "models" / "demo" / "weights"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "data")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "quick", Extent(2, 256, 1, 1, 0.5))


def settings(repository: Repository) -> Settings:
    return Settings(data_dir=repository.layout.data_dir, threads=1)


def test_the_parent_then_production_then_the_newest_other(repository: Repository) -> None:
    one, two, three = (publish(repository, content) for content in ("one", "two", "three"))
    assert baseline_of(repository, one) == three
    repository.promote("demo", "production", "2", "a test")
    assert baseline_of(repository, one) == two
    assert baseline_of(repository, two) == three, "never itself"
    with repository.stage() as staged:
        write_weights(staged, "child")
        lineage = replace(FACTS.lineage, parent="demo:1", parent_digest=one.digest)
        child = repository.publish(staged, replace(FACTS, lineage=lineage), "demo")
    assert baseline_of(repository, child) == one
    repository.promote("demo", "production", child.version, "a test")
    assert baseline_of(repository, one) == three, "never its own descendant"
    assert baseline_of(repository, two) == child
    with repository.stage() as staged:
        write_weights(staged, "other words")
        stranger = repository.publish(staged, replace(FACTS, vocab_size=7), "demo")
    assert baseline_of(repository, stranger) is None
    assert baseline_of(repository, publish(repository, "alone", "other")) is None


@pytest.mark.usefixtures("short")
def test_a_report_of_the_demo_model(repository: Repository) -> None:
    parent = import_source(repository, str(DEMO), "demo")
    small = quantize(repository, parent)
    heard: list[float] = []
    made = evaluate(settings(repository), repository, small, progress=lambda fraction, what: heard.append(fraction))
    assert repository.report(small) == made and made.digest == small.digest
    assert heard == sorted(heard) and heard[-1] >= 0.8
    compared = made.compared
    assert compared is not None and (compared.reference, compared.digest) == ("demo:1", parent.digest)
    assert 0.95 < compared.top1_agreement <= 1 and 0 < compared.kl < 0.05 and abs(compared.perplexity_change) < 0.05
    assert set(compared.decode_ratio) == {"1", "8", "32"} == set(made.speed.decode_tokens_per_second)
    assert made.texts.tokens > 50 and 1 < made.perplexity < 3
    assert {cell.asked for cell in made.recall} == {1}
    assert made.amounts is not None and (made.amounts.texts, made.amounts.questions) == (2, len(made.recall))
    assert sum(part.tokens for part in made.texts.parts) == made.texts.tokens
    assert set(made.intervals) == {"perplexity", "recall", "speed.prefill_tokens_per_second"} | {
        f"{figure}.{batch}"
        for figure in ("speed.decode_tokens_per_second", "compared.decode_ratio")
        for batch in (1, 8, 32)
    } | {f"compared.{figure}" for figure in ("perplexity_change", "kl", "top1_agreement", "clear_top1_agreement")}, (
        "one answer has no interval"
    )
    assert compared.clear_top1_agreement is not None and compared.clear is not None
    assert compared.top1_agreement <= compared.clear_top1_agreement <= 1 and 0.8 < compared.clear < 1
    change = made.intervals["compared.perplexity_change"]
    assert change.low <= compared.perplexity_change <= change.high and change.items == made.texts.tokens
    again = evaluate(settings(repository), repository, small)
    assert again.texts.parts == made.texts.parts, "the same texts cost the same"
    assert (again.texts, again.perplexity, again.compared and again.compared.kl) == (
        made.texts,
        made.perplexity,
        compared.kl,
    ), "the same text, the same figures"


def test_a_check_takes_the_least_that_a_gate_can_judge(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """No greedy answers, one batch size, 48 tokens a text; what the gate judges is there, with intervals."""
    monkeypatch.setitem(EFFORTS, "check", replace(EFFORTS["check"], seconds=600.0, speed_seconds=0.1))
    parent = import_source(repository, str(DEMO), "demo")
    small = quantize(repository, parent)
    made = evaluate(settings(repository), repository, small, "check")
    assert repository.report(small) == made and made.effort == "check" and not repository.is_measured(small)
    compared = made.compared
    assert compared is not None and compared.greedy_agreement is None and set(compared.decode_ratio) == {"1"}
    assert [part.tokens for part in made.texts.parts] == [48] * 8
    assert set(made.intervals) > {"compared.kl", "compared.perplexity_change", "compared.clear_top1_agreement"}
    judged = {check.measure: check for check in checks(Measured(small, made), Limits())}
    kl = judged["kl"]
    assert kl.passes and 0 <= kl.low <= kl.value == compared.kl <= kl.high < 0.02 and kl.low < kl.high
    assert {"clear_top1_agreement", "perplexity_change", "decode_ratio.1"} < set(judged)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("has_effect", usual([True, False], True))
def test_a_report_of_an_adapter_compares_it_with_its_parent(
    repository: Repository, tmp_path: Path, has_effect: bool
) -> None:
    parent = import_source(repository, str(DEMO), "demo")
    source = train(DEMO, tmp_path / "peft", 1)
    if not has_effect:
        tensors = load_file(source / ADAPTER_WEIGHTS)
        save_file({name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, source / ADAPTER_WEIGHTS)
    manifest = import_source(repository, str(source), "demo", adapter_of=parent.reference)
    compared = evaluate(settings(repository), repository, manifest).compared
    assert compared is not None and (compared.reference, compared.digest) == ("demo:1", parent.digest)
    assert compared.greedy_agreement is not None
    assert (compared.kl > 0.1) == (compared.greedy_agreement < 1) == (compared.perplexity_change != 0) == has_effect


@pytest.mark.usefixtures("short")
def test_a_text_of_the_users_and_a_model_without_a_parent(repository: Repository, tmp_path: Path) -> None:
    manifest = import_source(repository, str(DEMO), "demo")
    text = tmp_path / "mine.txt"
    text.write_text("도시락 하나 주세요. One lunch box, please. " * 20)
    made = evaluate(settings(repository), repository, manifest, text_file=text)
    assert made.texts.name == "mine.txt" and made.texts.tokens > 100 and made.compared is None


@pytest.mark.usefixtures("short")
def test_versions_that_split_text_differently_are_not_compared(repository: Repository, tmp_path: Path) -> None:
    import_source(repository, str(DEMO), "demo")
    other = shutil.copytree(DEMO, tmp_path / "other")
    template = other / "chat_template.jinja"
    template.write_text(template.read_text() + "!")
    made = evaluate(settings(repository), repository, import_source(repository, str(other), "demo"))
    assert made.compared is None and made.recall == ()


def test_a_version_is_not_measured_twice_at_once(repository: Repository) -> None:
    manifest = publish(repository, "one")
    with repository.measuring(manifest), pytest.raises(Conflict, match="demo:1 is being measured already"):
        evaluate(settings(repository), repository, manifest)


def test_texts_that_cannot_be_used(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(DEMO)
    for name, content in (("empty.txt", b""), ("binary.txt", b"\xff\xfe\x00")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidRequest, match=name):
            of_file(tokenizer, 2048, tmp_path / name, 100)
    with pytest.raises(InvalidRequest, match=r"nothing\.txt"):
        of_file(tokenizer, 2048, tmp_path / "nothing.txt", 100)


def test_nothing_is_calibrated_where_memory_does_not_hold_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = (DEMO / "model.safetensors").stat().st_size
    assert calibration(DEMO, 512)
    for free, holds in ((2 * weights, True), (weights, False)):
        monkeypatch.setattr("service.evaluation.texts.available_memory", lambda free=free: free)
        assert bool(calibration(DEMO, 512)) == holds


def test_a_version_that_is_gone_is_not_measured(repository: Repository) -> None:
    manifest = import_source(repository, str(DEMO), "demo")
    repository.delete("demo", "1")
    with pytest.raises(NotFound):
        evaluate(settings(repository), repository, manifest)


def test_ratios_are_medians_of_rounds() -> None:
    mine, theirs = Pace((1.0,), {8: (10.0, 30.0, 20.0)}), Pace((1.0,), {8: (10.0, 10.0, 10.0)})
    assert mine.decode_ratio(theirs) == {8: 2.0}


def test_rounds_without_tokens_have_no_rate_and_no_ratio() -> None:
    mine, theirs = (Pace((1.0,), {1: rates, 8: (0.0,) * 3}) for rates in ((9.0, 6.0, 0.0), (3.0, 0.0, 0.0)))
    assert mine.decode_ratio(theirs) == {1: 3.0} and mine.decode_rates() == {1: [9.0, 6.0]}


def racing(reference: str, core: EngineCore) -> Any:
    """A loaded version with this engine, which may take 5,000 steps."""
    step, left = core.step, iter(range(5_000))

    def counted() -> Any:
        assert next(left, None) is not None, "the engine is stepped for ever"
        return step()

    core.step = counted  # type: ignore[method-assign]
    return SimpleNamespace(reference=reference, core=lambda speculation: core)


@pytest.mark.parametrize("broken", ["prefill", "8-0", "8-7"])
def test_speed_of_an_engine_that_fails_is_refused_with_the_versions_name(broken: str) -> None:
    plan = SpeedPlan(32, 8, 0.01, (8,))
    engines = (make_core(FakeRunner(4, ids), num_blocks=400) for ids in (frozenset[str](), frozenset({broken})))
    versions = [racing(f"demo:{number}", each) for number, each in enumerate(engines, 1)]
    with pytest.raises(GenerationFailed, match="demo:2 gives no usable numbers"):
        paces(versions, 1024, 97, plan)


@pytest.mark.parametrize("num_blocks", [8, 9, 12])
def test_speed_is_measured_where_the_kv_cache_ends_the_sequences_early(num_blocks: int) -> None:
    plan = SpeedPlan(16, 8, 0.01, (1, 8))
    versions = [racing(f"demo:{number}", make_core(num_blocks=num_blocks)) for number in (1, 2)]
    theirs, mine = paces(versions, 1024, 97, plan)
    assert [len(rates) for rates in mine.decode.values()] == [ROUNDS] * 2
    assert mine.decode_rates()[1] and all(ratio > 0 for ratio in mine.decode_ratio(theirs).values())


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Predictions]]:
    """Scores versions that predict these probabilities of four tokens, at each of three positions."""
    monkeypatch.setattr(scoring, "_chunks", lambda version, token_ids: iter([(1, version.runner)]))
    text = Text((0, 1, 2, 1), (1, 2, 3))

    def of(*versions: list[list[float]]) -> list[Predictions]:
        known = SimpleNamespace(decoder_start=())
        loaded: list[Any] = [
            SimpleNamespace(reference=f"demo:{number}", config=known, runner=torch.tensor(each).log(), adapter="")
            for number, each in enumerate(versions, 1)
        ]
        return predict(loaded, [text])

    return of


def test_a_token_that_neither_version_can_give_has_no_divergence(scored: Callable[..., list[Predictions]]) -> None:
    first, second = scored([[0.25, 0.5, 0.25, 0.0]] * 3, [[0.5, 0.25, 0.25, 0.0]] * 3)
    want = 0.25 * math.log(0.25 / 0.5) + 0.5 * math.log(0.5 / 0.25)
    assert second.kl == pytest.approx([want] * 3) and first.kl == []


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("row", [[math.nan] * 4, [0.0] * 4, [0.5, 0.5, 0.0, 0.0]])
def test_predictions_that_are_no_numbers_are_refused_with_the_versions_name(
    scored: Callable[..., list[Predictions]], row: list[float], at: int
) -> None:
    good = [[0.25] * 4] * 3
    versions = [good, good]
    versions[at] = [good[0], row, good[0]]
    with pytest.raises(GenerationFailed, match=f"demo:{at + 1} predicts no usable numbers at 1 of 3 positions"):
        scored(*versions)


def test_a_report_with_a_figure_that_is_no_number_is_not_stored(repository: Repository) -> None:
    manifest = publish(repository, "one")
    good = report(manifest, beside(manifest))
    repository.put_report(manifest, good)
    bad = beside(manifest, kl=math.nan, decode_ratio={"8": math.inf})
    with pytest.raises(Conflict, match=r"not finite: compared\.kl, compared\.decode_ratio\.8\."):
        repository.put_report(manifest, report(manifest, bad))
    assert repository.report(manifest) == good, "the earlier one stays"


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("save", [save_gpt2, save_t5, pytest.param(save_bart, marks=pytest.mark.nightly)])
def test_a_report_of_other_architectures(repository: Repository, tmp_path: Path, save: Callable[..., Path]) -> None:
    """The perplexity is that of the library's logits; of an encoder-decoder, over the texts' second halves."""
    text = tmp_path / "text.txt"
    text.write_text("어제 산 김밥은 맛있었다. The lunch box was full.\n" * 4)
    source = save(tmp_path / "source", spread=0.3)
    parent = import_source(repository, str(source), "demo", precision="fp32")
    small = quantize(repository, parent, "int8")
    whole = evaluate(settings(repository), repository, parent, text_file=text)
    made = evaluate(settings(repository), repository, small, text_file=text)
    assert made.compared is not None and made.compared.reference == "demo:1"
    assert 0 < made.compared.kl < 0.05 and made.compared.top1_agreement > 0.8
    want = _perplexity(repository.path(parent), of_file(Tokenizer.load(source), parent.context_window, text, 256))
    assert whole.perplexity == pytest.approx(want, rel=1e-4)
    assert whole.texts.sha256 == made.texts.sha256


def _perplexity(directory: Path, texts: Sequence[Text]) -> float:
    start = decoder_start(directory)
    family = transformers.AutoModelForSeq2SeqLM if start else transformers.AutoModelForCausalLM
    model = family.from_pretrained(directory, local_files_only=True, dtype=torch.float32)
    lost: list[torch.Tensor] = []
    for text in texts:
        ids = torch.tensor([text.token_ids])
        half = len(text.token_ids) // 2
        with torch.inference_mode():
            if start:
                decoder = torch.cat((torch.tensor([start]), ids[:, half:-1]), dim=1)
                logits = model(input_ids=ids[:, :half], decoder_input_ids=decoder).logits[0, len(start) - 1 :]
                targets = ids[0, half:]
            else:
                logits, targets = model(input_ids=ids).logits[0, :-1], ids[0, 1:]
        lost.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
    return float(torch.cat(lost).mean().exp())
