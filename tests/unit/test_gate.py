"""The gate's limits, one by one, and that promotions obey it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean

import msgspec
import pytest
from pydantic import ValidationError

from models.errors import Conflict, Corrupt
from models.manifest import ADAPTER_WEIGHTS, Manifest
from models.repository import intervals
from models.repository.gate import Limits, Measured, broken, checks
from models.repository.intervals import Interval
from models.repository.report import Recalled, Report, TextPart, TextSet
from models.repository.repository import Repository
from service.settings import Settings
from tests.reports import beside, report
from tests.versions import facts, publish, write_weights

LIMITS = Limits(top1_agreement=0.98)
RECALL = (Recalled("1 turn", "test", 90, 100), Recalled("not told", "test", 0, 100))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"clear_top1_agreement": 0.9799}, "top-1 agreement where clear 97.99%, at least 98.00% of demo:1"),
        ({"kl": 0.0201}, "KL divergence 0.0201 nats, at most 0.02 of demo:1"),
        ({"kl": math.nan}, "KL divergence nan nats, at most 0.02 of demo:1"),
        ({"perplexity_change": 0.0201}, "perplexity +2.01%, at most +2.00% of demo:1"),
        ({"decode_ratio": {"1": 0.8, "8": 0.79}}, "decode at 8 0.79x, at least 0.8x of demo:1"),
    ],
)
def test_each_limit(repository: Repository, change: dict[str, object], phrase: str) -> None:
    parent = publish(repository, "one")
    child = publish(repository, "two", parent=parent)
    assert broken(Measured(child, report(child, beside(parent, **change))), LIMITS) == (phrase,)


@pytest.mark.parametrize(
    ("figure", "change", "within", "beyond", "phrase"),
    [
        (
            "compared.clear_top1_agreement",
            {"clear_top1_agreement": 0.97},
            Interval(0.95, 0.981, 500),
            Interval(0.95, 0.979, 500),
            "top-1 agreement where clear 97.00% (95.00% to 97.90%), at least 98.00% of demo:1",
        ),
        (
            "compared.kl",
            {"kl": 0.05},
            Interval(0.019, 0.08, 500),
            Interval(0.021, 0.08, 500),
            "KL divergence 0.0500 nats (0.0210 to 0.0800), at most 0.02 of demo:1",
        ),
        (
            "compared.perplexity_change",
            {"perplexity_change": 0.05},
            Interval(0.019, 0.08, 500),
            Interval(0.021, 0.08, 500),
            "perplexity +5.00% (+2.10% to +8.00%), at most +2.00% of demo:1",
        ),
        (
            "compared.decode_ratio.8",
            {"decode_ratio": {"8": 0.7}},
            Interval(0.5, 0.81, 6),
            Interval(0.5, 0.79, 6),
            "decode at 8 0.70x (0.50 to 0.79), at least 0.8x of demo:1",
        ),
    ],
)
def test_chance_alone_refuses_no_version(
    repository: Repository, figure: str, change: dict[str, object], within: Interval, beyond: Interval, phrase: str
) -> None:
    """A figure past its limit refuses only if its whole interval is past it."""
    parent = publish(repository, "one")
    child = publish(repository, "two", parent=parent)
    made = report(child, beside(parent, **change))
    for interval, phrases in ((within, ()), (beyond, (phrase,))):
        known = msgspec.structs.replace(made, intervals={figure: interval})
        assert broken(Measured(child, known), LIMITS) == phrases


def of_texts(child: Manifest, parent: Manifest, kls: Sequence[float]) -> Report:
    """A report of texts of 60 tokens with these divergences, and as much more loss. Where a text has more than a nat,
    no token of it agrees."""
    sums, sizes, mean = [60 * kl for kl in kls], [60] * len(kls), fmean(kls)
    right = [0 if kl > 1 else 60 for kl in kls]
    of_kl = intervals.mean_of_groups(sums, sizes) or (mean, mean)
    found = {
        "kl": (mean, of_kl),
        "clear_top1_agreement": (sum(right) / sum(sizes), intervals.share_of_groups(right, sizes)),
        "perplexity_change": (math.expm1(mean), intervals.of_exponential(of_kl)),
    }
    made = report(child, beside(parent, **{figure: value for figure, (value, _) in found.items()}))
    known = {f"compared.{figure}": Interval(*each, 60 * len(kls)) for figure, (_, each) in found.items() if each}
    return msgspec.structs.replace(made, intervals=known)


@pytest.mark.parametrize("good, ruined", [(3, 1), (2, 2), (21, 3)])
def test_a_few_ruined_texts_refuse_a_version_however_wide_they_make_the_intervals(
    repository: Repository, good: int, ruined: int
) -> None:
    parent = publish(repository, "one")
    child = publish(repository, "two", parent=parent)
    made = of_texts(child, parent, [0.001] * good + [8.0] * ruined)
    assert all(check.low <= check.limit for check in checks(Measured(child, made), LIMITS) if check.measure == "kl")
    divergence, *others = broken(Measured(child, made), LIMITS)
    assert divergence.startswith("KL divergence") and any(each.startswith("perplexity") for each in others)
    assert divergence.endswith(", at most 0.02 of demo:1, and never more than 10 times that")
    assert broken(Measured(child, made), replace(LIMITS, kl=0, perplexity_change=0, top1_agreement=0)) == ()


def test_good_texts_are_never_ten_times_past_a_limit(repository: Repository) -> None:
    """Divergences of a good conversion, half the limit in the mean, differ by text as waiting times do."""
    parent, draw = publish(repository, "one"), Random(1)
    child = publish(repository, "two", parent=parent)
    for number in range(400):
        kls = [draw.expovariate(1 / (LIMITS.kl / 2)) for _ in range(2 + number % 23)]
        assert broken(Measured(child, of_texts(child, parent, kls)), LIMITS) == ()


def test_a_text_without_a_scored_token_counts_for_nothing(repository: Repository) -> None:
    """Behind an encoder a short text may have none."""
    incumbent, trained = publish(repository, "one"), publish(repository, "trained")
    before, after = (report(version, None, losses=(90.0, 0.0)) for version in (incumbent, trained))
    after = msgspec.structs.replace(after, perplexity=9.0)
    for empty, phrases in (((1,), ()), ((0, 1), ("perplexity +620.00%, at most +2.00% of demo:1",))):
        old, new = (
            msgspec.structs.replace(
                each,
                texts=msgspec.structs.replace(
                    each.texts,
                    parts=tuple(
                        TextPart(part.sha256, 0 if at in empty else part.tokens, part.loss)
                        for at, part in enumerate(each.texts.parts)
                    ),
                ),
            )
            for each in (before, after)
        )
        assert broken(Measured(trained, new), LIMITS, Measured(incumbent, old)) == phrases


@pytest.mark.parametrize(
    ("losses", "phrases"),
    [
        ((105.0, 206.0, 297.0, 400.0), ("perplexity +10.06% (+7.32% to +12.87%), at most +2.00% of demo:1",)),
        ((130.0, 190.0, 300.0, 395.0), ()),
    ],
)
def test_perplexity_is_compared_on_the_texts_that_both_were_measured_on(
    repository: Repository, losses: tuple[float, ...], phrases: tuple[str, ...]
) -> None:
    """The slower version was measured on fewer texts; the incumbent's other texts are not looked at."""
    incumbent, trained = publish(repository, "one"), publish(repository, "trained")
    before = report(incumbent, None, losses=(100.0, 200.0, 290.0, 395.0, 9000.0))
    known = report(trained, None, losses=losses)
    assert broken(Measured(trained, known), LIMITS, Measured(incumbent, before)) == phrases


def test_a_loss_of_recall_within_chance_refuses_no_version(repository: Repository) -> None:
    """Of 20 questions, 18 after 20 is chance; of 200 it is not."""
    incumbent, trained = publish(repository, "one"), publish(repository, "trained")
    for asked, phrases in ((20, ()), (200, ("recall 85.0% after 100.0%, at most 5.0% less than that of demo:1",))):
        before, after = (
            msgspec.structs.replace(
                report(version, None),
                recall=(Recalled("1 turn", "test", right, asked),),
                intervals={"recall": Interval(0.0, 1.0, asked)},
            )
            for version, right in ((incumbent, asked), (trained, asked * 17 // 20))
        )
        assert broken(Measured(trained, after), LIMITS, Measured(incumbent, before)) == phrases


def test_what_was_never_measured_or_compared_breaks_nothing(repository: Repository) -> None:
    manifest = publish(repository, "one")
    for known in (None, report(manifest, None), report(manifest)):
        assert broken(Measured(manifest, known), LIMITS) == ()
    assert broken(Measured(manifest, None), Limits(measured=True)) == ("it was never measured",)
    assert broken(Measured(manifest, report(manifest, None)), Limits(measured=True)) == ()


def test_agreement_binds_a_conversion_and_its_parent_only(repository: Repository) -> None:
    parent = publish(repository, "one")
    trained, child = publish(repository, "trained"), publish(repository, "child", parent=parent)
    apart = beside(parent, clear_top1_agreement=0.3, kl=4.0)
    assert broken(Measured(trained, report(trained, apart)), LIMITS) == ()
    assert broken(Measured(child, report(child, apart)), LIMITS) != ()
    elsewhere = msgspec.structs.replace(apart, reference=trained.reference, digest=trained.digest)
    assert broken(Measured(child, report(child, elsewhere)), LIMITS) == (), "its parent was gone: this is another model"


def test_a_likeliest_token_that_is_not_clear_breaks_nothing(repository: Repository) -> None:
    """Another precision of the same weights changes it by rounding alone."""
    parent = publish(repository, "one")
    child = publish(repository, "child", parent=parent)
    for clear in (0.99, None):
        known = report(child, beside(parent, top1_agreement=0.85, clear_top1_agreement=clear))
        assert broken(Measured(child, known), LIMITS) == ()


def test_the_way_back_from_a_conversion_is_open(repository: Repository) -> None:
    """The source is slower than what was made of it, and was measured beside it; nothing holds that against it."""
    source = publish(repository, "one")
    child = publish(repository, "child", parent=source)
    grandchild = publish(repository, "grandchild", parent=child)
    repository.promote("demo", "production", grandchild.version, "a test")
    repository.put_report(grandchild, msgspec.structs.replace(report(grandchild, beside(child)), perplexity=1.0))
    slower = report(source, beside(grandchild, decode_ratio={"1": 0.5}, perplexity_change=0.1))
    repository.put_report(source, slower)
    assert repository.broken_limits(source, "production", LIMITS) == ()
    stranger = publish(repository, "stranger")
    repository.put_report(stranger, report(stranger, beside(grandchild, decode_ratio={"1": 0.5})))
    assert len(repository.broken_limits(stranger, "production", LIMITS)) == 2, "speed and perplexity"
    repository.delete("demo", child.version)
    assert len(repository.broken_limits(source, "production", LIMITS)) == 3, "nothing says where the grandchild is from"


def test_a_check_of_seconds_is_no_measurement(repository: Repository) -> None:
    manifest = publish(repository, "one")
    checked = Measured(manifest, msgspec.structs.replace(report(manifest, None), effort="check"))
    assert broken(checked, LIMITS) == ()
    assert broken(checked, Limits(measured=True)) == ("it was checked for seconds and never measured",)


def test_an_adapter_was_trained_and_is_no_conversion(repository: Repository) -> None:
    parent = publish(repository, "one")
    with repository.stage() as staged:
        write_weights(staged, "one")
        write_weights(staged, "adapter", ADAPTER_WEIGHTS)
        manifest = repository.publish(staged, facts(parent), "demo")
    assert not manifest.is_conversion
    assert broken(Measured(manifest, report(manifest, beside(parent, clear_top1_agreement=0.2, kl=4.0))), LIMITS) == ()


@pytest.mark.parametrize(
    ("change", "phrases"),
    [
        ({}, ()),
        ({"perplexity": 1.274}, ()),
        ({"perplexity": 1.276}, ("perplexity +2.08%, at most +2.00% of demo:1",)),
        ({"perplexity": math.nan}, ("perplexity +nan%, at most +2.00% of demo:1",)),
        ({"perplexity": 9.0, "texts": TextSet("mine", "2" * 64, 9)}, ()),
        ({"recall": (Recalled("another cell", "test", 0, 100),)}, ()),
        ({"recall": (Recalled("1 turn", "test", 85, 100), *RECALL[1:])}, ()),
        (
            {"recall": (Recalled("1 turn", "test", 79, 100), *RECALL[1:])},
            ("recall 89.5% after 95.0%, at most 5.0% less than that of demo:1",),
        ),
        (
            {"recall": (*RECALL[:1], Recalled("not told", "test", 11, 100))},
            ("recall 89.5% after 95.0%, at most 5.0% less than that of demo:1",),
        ),
    ],
)
def test_every_version_is_held_against_the_one_it_replaces(
    repository: Repository, change: dict[str, object], phrases: tuple[str, ...]
) -> None:
    """Also a conversion that is true to its parent: the parent may be worse than what is there."""
    incumbent = publish(repository, "one")
    trained = publish(repository, "trained")
    before = msgspec.structs.replace(report(incumbent, None), recall=RECALL)
    for version in (trained, publish(repository, "child", parent=trained)):
        known = msgspec.structs.replace(report(version, beside(trained)), **{"recall": RECALL, **change})
        assert broken(Measured(version, known), LIMITS, Measured(incumbent, before)) == phrases
        assert broken(Measured(version, known), LIMITS, Measured(incumbent, None)) == ()


def test_memory_has_a_limit_where_one_is_set(repository: Repository) -> None:
    one, two = publish(repository, "one"), publish(repository, "two")
    before, after = report(one, None), report(two, None)
    after = msgspec.structs.replace(after, speed=msgspec.structs.replace(after.speed, memory_bytes=150))
    before = msgspec.structs.replace(before, speed=msgspec.structs.replace(before.speed, memory_bytes=100))
    for limit, phrases in ((math.inf, ()), (1.5, ()), (1.4, ("memory 1.50x, at most 1.4x of demo:1",))):
        limits = replace(LIMITS, memory_ratio=limit)
        assert broken(Measured(two, after), limits, Measured(one, before)) == phrases


def test_the_incumbent_is_what_the_alias_points_to_or_else_production(repository: Repository) -> None:
    one, two = publish(repository, "one"), publish(repository, "two")
    repository.put_report(one, msgspec.structs.replace(report(one, None), perplexity=1.0))
    repository.put_report(two, report(two, None))
    assert repository.broken_limits(two, "production", LIMITS) == (), "nothing to replace"
    repository.promote("demo", "production", "1", "a test")
    for alias in ("production", "canary"):
        assert repository.broken_limits(two, alias, LIMITS) == ("perplexity +25.00%, at most +2.00% of demo:1",)
    repository.promote("demo", "canary", "2", "a test")
    assert repository.broken_limits(two, "canary", LIMITS) == ()
    repository.layout.report("demo", "1").write_text("damaged")
    assert repository.broken_limits(two, "production", LIMITS) == (), "what is damaged may be replaced"


def test_a_promotion_that_breaks_a_limit_takes_an_override_with_a_reason(repository: Repository) -> None:
    bad = publish(repository, "two", parent=publish(repository, "one"))
    repository.put_report(bad, report(bad, beside(repository.get("demo", "1"), clear_top1_agreement=0.5)))
    repository.promote("demo", "production", "1", "first", limits=LIMITS)
    for options in ({}, {"override": True, "reason": "  "}, {"override": False, "reason": "because"}):
        with pytest.raises(Conflict, match=r"top-1 agreement where clear 50\.00%"):
            repository.promote("demo", "production", "2", **{"reason": "", "limits": LIMITS, **options})  # type: ignore[arg-type]
    assert repository.aliases("demo") == {"production": "1"}
    repository.promote("demo", "production", "2", "the shop is closed", limits=LIMITS, override=True)
    last = repository.history("demo", "production")[-1]
    assert (last.version, last.reason) == ("2", "the shop is closed")
    assert last.overridden == ("top-1 agreement where clear 50.00%, at least 98.00% of demo:1",)


def test_reports_are_kept_with_their_version_and_checked(repository: Repository) -> None:
    one, two = publish(repository, "one"), publish(repository, "two")
    assert repository.report(one) is None
    repository.put_report(one, report(one))
    assert repository.report(one) == report(one)
    with pytest.raises(Conflict):
        repository.put_report(two, report(one))
    path = repository.layout.report("demo", "1")
    path.write_bytes(report(two).to_json())
    with pytest.raises(Corrupt, match="other content"):
        repository.report(one)
    path.write_text("{}")
    with pytest.raises(Corrupt, match="damaged"):
        repository.report(one)
    repository.delete("demo", "1")
    assert not path.exists()


def test_a_report_survives_its_json(repository: Repository) -> None:
    manifest = publish(repository, "one")
    for made in (report(manifest), report(manifest, losses=(1.5, 2.5))):
        assert Report.from_json(made.to_json(), manifest) == made


def test_a_report_of_an_earlier_release_is_read_and_compared_as_it_is(repository: Repository) -> None:
    """Without intervals, amounts and parts of texts."""
    manifest = publish(repository, "one")
    fields = json.loads(report(manifest, beside(manifest, perplexity_change=0.021)).to_json())
    for field in ("intervals", "amounts", "budget_seconds"):
        del fields[field]
    del fields["texts"]["parts"], fields["compared"]["clear_top1_agreement"], fields["compared"]["clear"]
    read = Report.from_json(json.dumps(fields).encode(), manifest)
    assert read.intervals == {} and read.amounts is None and read.texts.parts == ()
    assert broken(Measured(manifest, read), LIMITS) == ("perplexity +2.10%, at most +2.00% of demo:1",)


def test_histories_from_before_the_gate_are_read(repository: Repository) -> None:
    publish(repository, "one")
    repository.promote("demo", "production", "1", "first")
    path = repository.layout.journal("demo")
    path.write_text(path.read_text().replace(', "overridden": []', ""))
    assert "overridden" not in path.read_text()
    assert repository.history("demo", "production")[0].overridden == ()


def test_protected_aliases_are_those_of_the_setting() -> None:
    settings = Settings(protected_aliases="production, canary")
    for alias in ("production", "canary"):
        limits = settings.gate(alias)
        assert limits is not None and limits.measured
    assert settings.gate("prod") is None
    others = Settings(protected_aliases="live", gate_recall_loss=0.5).gate("live")
    assert others is not None and others.recall_loss == 0.5


@pytest.mark.parametrize(
    ("aliases", "wrong"),
    [
        ("Production", "Production"),
        ("canary,production/", "production/"),
        ("production:2", "production:2"),
        ("@production", "@production"),
        ("canary, prod uction", "prod uction"),
    ],
)
def test_a_protected_alias_that_no_alias_can_be_is_refused_by_name(aliases: str, wrong: str) -> None:
    with pytest.raises(ValidationError, match=f"'{wrong}' is not a valid name"):
        Settings(protected_aliases=aliases)


def test_commas_with_nothing_between_name_no_alias() -> None:
    assert Settings(protected_aliases="live,,").gate("live") == Settings(protected_aliases="live").gate("live")


def test_without_the_setting_production_is_gated_and_takes_what_was_never_measured() -> None:
    limits = Settings().gate("production")
    assert limits is not None and not limits.measured
    assert Settings().gate("staging") is None


def test_a_version_is_not_held_against_itself(repository: Repository) -> None:
    version = publish(repository, "one")
    known = Measured(version, report(version, None))
    assert checks(known, LIMITS, known) == ()
