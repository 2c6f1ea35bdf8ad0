"""Moves that must not pass a gated alias by: a removal before a promotion, and a rollback."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from models.errors import Conflict
from models.repository.gate import Limits
from models.repository.repository import Repository
from tests.reports import report
from tests.versions import publish

LIMITS = Limits()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def worse_than_the_first(repository: Repository) -> tuple[str, ...]:
    """Publishes a good demo:1 and a poor demo:2. Returns what demo:2 breaks."""
    for perplexity in (1.0, 1.25):
        version = publish(repository, f"of {perplexity}")
        repository.put_report(version, msgspec.structs.replace(report(version, None), perplexity=perplexity))
    return ("perplexity +25.00%, at most +2.00% of demo:1",)


def test_an_alias_that_was_removed_is_gated_by_its_last_version(repository: Repository) -> None:
    broken = worse_than_the_first(repository)
    repository.promote("demo", "production", "1", "first", limits=LIMITS)
    repository.remove_alias("demo", "production", "so that nothing is compared")
    for alias in ("production", "canary"):
        assert repository.broken_limits(repository.get("demo", "2"), alias, LIMITS) == broken
    with pytest.raises(Conflict, match="perplexity"):
        repository.promote("demo", "production", "2", "", limits=LIMITS)
    repository.promote("demo", "canary", "2", "")
    repository.remove_alias("demo", "canary", "")
    assert repository.broken_limits(repository.get("demo", "2"), "canary", LIMITS) == (), "its own last version"


def test_a_version_that_was_deleted_after_its_alias_leaves_the_gate_to_the_one_before(repository: Repository) -> None:
    broken = worse_than_the_first(repository)
    publish(repository, "a third")
    for version in ("1", "3"):
        repository.promote("demo", "production", version, "first")
    repository.remove_alias("demo", "production", "")
    repository.delete("demo", "3")
    for alias in ("production", "canary"):
        assert repository.broken_limits(repository.get("demo", "2"), alias, LIMITS) == broken


def test_a_rollback_is_never_refused_and_keeps_what_it_breaks(repository: Repository) -> None:
    broken = worse_than_the_first(repository)
    for version in ("2", "1"):
        repository.promote("demo", "production", version, "", limits=LIMITS)
    assert repository.rollback("demo", "production", "at night", limits=LIMITS).overridden == broken
    assert repository.history("demo", "production")[-1].overridden == broken
    repository.promote("demo", "production", "1", "", limits=LIMITS)
    repository.layout.report("demo", "2").write_text("damaged")
    (told,) = repository.rollback("demo", "production", "again", limits=LIMITS).overridden
    assert "damaged" in told
    repository.promote("demo", "production", "1", "", limits=LIMITS)
    assert repository.rollback("demo", "production", "of an alias without a gate").overridden == ()
