"""The gate's limits, one by one, and that promotions obey it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from models.errors import Conflict, Corrupt
from models.gate import Limits, broken
from models.report import Report
from models.repository import Repository
from service.settings import Settings
from tests.reports import COMPARED, report
from tests.versions import publish

LIMITS = Limits()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"top1_agreement": 0.9799}, "top-1 agreement 97.99%, at least 98.00% of demo:1"),
        ({"perplexity_change": 0.0201}, "perplexity +2.01%, at most +2.00% of demo:1"),
        ({"decode_ratio": {"1": 0.8, "8": 0.79}}, "decode at 8 0.79x, at least 0.8x of demo:1"),
    ],
)
def test_each_limit(repository: Repository, change: dict[str, object], phrase: str) -> None:
    measured = report(publish(repository, "one"), msgspec.structs.replace(COMPARED, **change))
    assert broken(measured, LIMITS) == (phrase,)


def test_what_was_never_measured_or_compared_breaks_nothing(repository: Repository) -> None:
    manifest = publish(repository, "one")
    assert broken(None, LIMITS) == broken(report(manifest, None), LIMITS) == broken(report(manifest), LIMITS) == ()
    assert broken(None, Limits(measured=True)) == ("it was never measured",)
    assert broken(report(manifest, None), Limits(measured=True)) == ()


def test_a_promotion_that_breaks_a_limit_takes_an_override_with_a_reason(repository: Repository) -> None:
    publish(repository, "one")
    bad = publish(repository, "two")
    repository.put_report(bad, report(bad, msgspec.structs.replace(COMPARED, top1_agreement=0.5)))
    repository.promote("demo", "production", "1", "first", limits=LIMITS)
    for options in ({}, {"override": True, "reason": "  "}, {"override": False, "reason": "because"}):
        with pytest.raises(Conflict, match=r"top-1 agreement 50\.00%"):
            repository.promote("demo", "production", "2", **{"reason": "", "limits": LIMITS, **options})  # type: ignore[arg-type]
    assert repository.aliases("demo") == {"production": "1"}
    repository.promote("demo", "production", "2", "the shop is closed", limits=LIMITS, override=True)
    last = repository.history("demo", "production")[-1]
    assert (last.version, last.reason) == ("2", "the shop is closed")
    assert last.overridden == ("top-1 agreement 50.00%, at least 98.00% of demo:1",)


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
    assert Report.from_json(report(manifest).to_json(), manifest) == report(manifest)


def test_histories_from_before_the_gate_are_read(repository: Repository) -> None:
    publish(repository, "one")
    repository.promote("demo", "production", "1", "first")
    path = repository.layout.journal("demo")
    path.write_text(path.read_text().replace(', "overridden": []', ""))
    assert "overridden" not in path.read_text()
    assert repository.history("demo", "production")[0].overridden == ()


def test_protected_aliases_are_those_of_the_setting() -> None:
    settings = Settings(protected_aliases="production, canary")
    assert [settings.gate(alias).measured for alias in ("production", "canary", "prod")] == [True, True, False]
