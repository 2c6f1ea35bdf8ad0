"""Figures of reports: how gated aliases stand, what compares, and intervals that hold the truth."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import msgspec
import pytest

from models.repository import intervals
from models.repository.gate import Limits
from models.repository.report import TextPart, TextSet, on_shared_texts
from models.repository.repository import Repository
from models.repository.standing import standings
from tests.reports import beside, report
from tests.versions import publish

GATE = {"production": Limits(), "live": Limits(kl=1.0)}.get


def test_a_gated_alias_that_breaks_its_limits_is_told(tmp_path: Path) -> None:
    """A report that is made after the promotion shows it; each alias has limits of its own."""
    repository = Repository(tmp_path)
    parent = publish(repository, "one")
    child = publish(repository, "child", parent=parent)
    for alias in ("production", "live", "staging"):
        repository.promote("demo", alias, child.version, "a test")
    assert [each.broken for each in standings(repository, GATE)] == [(), ()]
    repository.put_report(child, report(child, beside(parent, kl=0.5)))
    live, production = standings(repository, GATE)
    assert (live.alias, live.broken) == ("live", ())
    assert production.sentence == (
        "demo@production is demo:2, which breaks its gate: KL divergence 0.5000 nats, at most 0.02 of demo:1"
    )
    assert [*standings(repository, GATE, ["nobody"])] == []


def test_what_is_damaged_is_left_out(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    for name in ("demo", "other"):
        publish(repository, "one", name)
        repository.promote(name, "production", "1", "a test")
    repository.layout.report("demo", "1").parent.mkdir(parents=True, exist_ok=True)
    repository.layout.report("demo", "1").write_text("damaged")
    assert [each.name for each in standings(repository, GATE)] == ["other"]


def test_perplexities_compare_over_the_texts_that_all_have(tmp_path: Path) -> None:
    manifest = publish(Repository(tmp_path), "one")
    full = report(manifest, None, losses=(60.0, 120.0, 180.0))
    quick = msgspec.structs.replace(report(manifest, None, losses=(66.0, 114.0)), perplexity=math.exp(1.5))
    others = msgspec.structs.replace(full, texts=TextSet("mine", "f" * 64, 60, (TextPart("other", 60, 30.0),)))
    assert on_shared_texts([full]) == [1.25]
    assert on_shared_texts([full, None, quick, others]) == [pytest.approx(math.exp(1.5)), None, quick.perplexity, None]
    assert on_shared_texts([others, full, quick]) == [1.25, None, None]
    assert on_shared_texts([None, None]) == [None, None]


def test_reports_of_earlier_releases_compare_where_the_whole_text_is_the_same(tmp_path: Path) -> None:
    manifest = publish(Repository(tmp_path), "one")
    old = report(manifest, None)
    other = msgspec.structs.replace(old, texts=TextSet("dialogues", "2" * 64, 2048))
    assert on_shared_texts([old, old, other]) == [1.25, 1.25, None]


def test_a_share_is_wilsons() -> None:
    assert intervals.share(90, 100) == pytest.approx((0.8256, 0.9448), abs=1e-4)
    assert intervals.share(20, 20) == pytest.approx((0.8389, 1.0), abs=1e-4), "no certainty from twenty"


def test_a_difference_of_shares_is_newcombes() -> None:
    """His example: 56/70 less 48/80."""
    assert intervals.difference_of_shares((56, 70), (48, 80)) == pytest.approx((0.0524, 0.3339), abs=1e-4)


@pytest.mark.parametrize(("count", "point"), [(2, 12.706), (3, 4.303), (4, 3.182), (9, 2.306), (101, 1.984)])
def test_few_values_take_students_t(count: int, point: float) -> None:
    values = [float(at) for at in range(count)]
    center = sum(values) / count
    deviation = (sum((each - center) ** 2 for each in values) / (count - 1)) ** 0.5
    low, high = intervals.mean(values) or (0.0, 0.0)
    assert (high - low) / 2 == pytest.approx(point * deviation / count**0.5, rel=0.01)
    assert (high + low) / 2 == pytest.approx(center)


def test_one_text_has_no_interval() -> None:
    assert intervals.mean_of_groups([3.0], [100]) is None


def test_a_median_takes_six_values() -> None:
    assert intervals.median([3.0, 1.0, 2.0, 5.0, 4.0]) is None
    assert intervals.median([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == (1.0, 6.0)
    assert intervals.median(list(range(12))) == (2, 9), "P(at most 2 heads of 12) = 1.9 %"


def test_texts_whose_tokens_go_together_widen_an_interval() -> None:
    """Half of the texts are easy and half are hard: hundred tokens of a text say little more than one."""
    alone = intervals.share_of_groups([1] * 500 + [0] * 500, [1] * 1000)
    together = intervals.share_of_groups([100] * 5 + [0] * 5, [100] * 10)
    assert together[1] - together[0] > 8 * (alone[1] - alone[0])
    even = intervals.share_of_groups([50] * 10, [100] * 10)
    assert even == pytest.approx(alone, abs=1e-3), "never narrower than independent items"


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    """Texts of ten to fifty tokens, each with a loss of its own around 2 nats a token."""
    draw, held = Random(1), 0
    for _ in range(1000):
        sizes = [draw.randint(10, 50) for _ in range(8)]
        sums = [size * draw.gauss(2.0, 0.5) for size in sizes]
        low, high = intervals.mean_of_groups(sums, sizes) or (0.0, 0.0)
        held += low <= 2.0 <= high
    assert 920 <= held <= 980
