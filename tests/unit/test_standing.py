"""How gated aliases stand, and which figures of several reports compare."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

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
