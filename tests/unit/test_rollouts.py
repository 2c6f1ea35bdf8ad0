"""A rollout's limits, its end, and the gate before its candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from models.errors import Conflict, NotFound, Stale
from models.manifest import Manifest
from models.repository import gate
from models.repository import rollouts as stored
from models.repository.repository import Repository
from models.repository.rollouts import Rollout, RolloutLimits
from service.deployments.rollouts import LEAST_TIMES, Observed, Rollouts, broken_limit
from tests.reports import COMPARED, report
from tests.versions import publish

ALIAS = ("demo", "production")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """demo:1 is production; demo:2 waits."""
    repository = Repository(tmp_path)
    for content in ("one", "two"):
        publish(repository, content)
    repository.promote(*ALIAS, "1", "first")
    return repository


def planned(weight: float = 50, **limits: Any) -> Rollout:
    return Rollout(*ALIAS, "", "2", weight, True, False, RolloutLimits(**limits), "")


def put(repository: Repository, running: Rollouts, **limits: Any) -> Rollout:
    rollout = stored.put(repository, planned(**limits))
    running.refresh()
    return rollout


def observed(count: int, ttft: float | None, slow: int = 0) -> Observed:
    """So many requests, of which `slow` took a second."""
    found = Observed()
    for at in range(count):
        found.note(False, 1.0 if at < slow else ttft)
    return found


def found_worse(repository: Repository) -> None:
    version = repository.get("demo", "2")
    worse = msgspec.structs.replace(COMPARED, kl=9.0, perplexity_change=1.0)
    repository.put_report(version, report(version, worse))


def test_a_rollout_that_begins_while_another_is_promoted_stays(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alias moves under one lock, and the record is written under the next."""
    publish(repository, "three")
    stored.put(repository, planned())
    promote = repository.promote

    def promote_and_begin(*words: Any, **more: Any) -> Any:
        entry = promote(*words, **more)
        stored.put(repository, msgspec.structs.replace(planned(), candidate="3"))
        return entry

    monkeypatch.setattr(repository, "promote", promote_and_begin)
    stored.promote(repository, *ALIAS, "good")
    assert [(each.candidate, each.state) for each in stored.history(repository, *ALIAS)] == [
        ("2", "promoted"),
        ("3", "running"),
    ]
    assert stored.end(repository, *ALIAS, "aborted", "no").candidate == "3"


@pytest.mark.parametrize("begins_again", [False, True])
def test_a_candidate_that_is_rolled_back_meanwhile_is_not_promoted(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, begins_again: bool
) -> None:
    """Its guard and an operator's order come at once; or another rollout has begun by then."""
    publish(repository, "three")
    stored.put(repository, planned())
    promote = repository.promote

    def promote_after_the_end(*words: Any, **more: Any) -> Any:
        stored.end(repository, *ALIAS, "rolled_back", "it fails")
        if begins_again:
            stored.put(repository, msgspec.structs.replace(planned(), candidate="3"))
        return promote(*words, **more)

    monkeypatch.setattr(repository, "promote", promote_after_the_end)
    with pytest.raises(Stale if begins_again else NotFound):
        stored.promote(repository, *ALIAS, "good")
    assert repository.aliases("demo") == {"production": "1"}
    assert stored.history(repository, *ALIAS)[0].state == "rolled_back"


def test_an_answer_of_an_earlier_rollout_does_not_end_the_later_one(repository: Repository) -> None:
    running = Rollouts(repository)
    earlier = put(repository, running)
    for _ in range(20):
        running.observe(earlier, "2", True, 0.1)
    later = put(repository, running, error_rate=1.0)
    running.observe(earlier, "2", True, 0.1)
    running.observe(earlier, "1", False, 0.1)
    running.withdraw(earlier, "it could not be loaded")
    assert running.of(*ALIAS) == later == stored.running(repository, *ALIAS)
    assert [each.state for each in stored.history(repository, *ALIAS)] == ["rolled_back", "running"]
    assert running.describe(later)["candidate"] == Observed().describe()


def test_answers_are_judged_by_the_limits_that_the_rollout_has_now(repository: Repository) -> None:
    running = Rollouts(repository)
    began = put(repository, running)
    later = put(repository, running, error_rate=1.0)
    for _ in range(20):
        running.observe(began, "2", True, 0.1)
    assert running.of(*ALIAS) == later
    put(repository, running, error_rate=0.5)
    running.observe(began, "2", True, 0.1)
    assert running.of(*ALIAS) is None
    assert "at most 50.0%" in stored.history(repository, *ALIAS)[-1].reason


def test_an_end_that_comes_late_ends_no_other_rollout_of_the_candidate(repository: Repository) -> None:
    earlier = stored.put(repository, planned())
    stored.end(repository, *ALIAS, "aborted", "enough")
    later = stored.put(repository, planned())
    with pytest.raises(Stale, match=later.started_at):
        stored.end(repository, *ALIAS, "rolled_back", "bad", earlier.started_at)
    assert stored.end(repository, *ALIAS, "rolled_back", "bad", later.started_at).state == "rolled_back"


@pytest.mark.parametrize(
    ("base", "candidate", "breaks"),
    [
        (observed(500, 0.1), observed(20, 0.1, slow=1), False),
        (observed(500, 0.1), observed(LEAST_TIMES - 1, 1.0), False),
        (observed(LEAST_TIMES - 1, 0.1), observed(500, 1.0), False),
        (observed(LEAST_TIMES, 0.1), observed(LEAST_TIMES, 1.0), True),
        (observed(LEAST_TIMES, 0.1), observed(LEAST_TIMES, 0.1, slow=2), False),
        (observed(LEAST_TIMES, 0.1), observed(LEAST_TIMES, 0.1, slow=3), True),
    ],
)
def test_a_few_slow_answers_end_no_rollout(base: Observed, candidate: Observed, breaks: bool) -> None:
    assert bool(broken_limit(planned(), base, candidate)) == breaks


def test_only_requests_whose_time_is_known_count_for_ttft() -> None:
    candidate = observed(500, None)
    for _ in range(LEAST_TIMES - 1):
        candidate.note(False, 1.0)
    assert broken_limit(planned(), observed(500, 0.1), candidate) == ""
    candidate.note(False, 1.0)
    assert "TTFT p95 10.0x" in broken_limit(planned(), observed(500, 0.1), candidate)
    assert broken_limit(planned(min_requests=100), observed(500, 0.1), candidate) == ""


def test_a_candidate_that_was_measured_during_its_trial_is_held_against_the_gate(repository: Repository) -> None:
    limits = gate.Limits()
    stored.put(repository, planned(), limits)
    found_worse(repository)
    for override, reason in ((False, "it is hot"), (True, ""), (True, " ")):
        with pytest.raises(Conflict, match=r"breaks the gate's limits: .*override with a reason"):
            stored.promote(repository, *ALIAS, reason, limits=limits, override=override)
    assert repository.aliases("demo") == {"production": "1"}
    stored.promote(repository, *ALIAS, "it is hot", limits=limits, override=True)
    last = repository.history(*ALIAS)[-1]
    assert (last.version, last.reason) == ("2", "it is hot") and last.overridden


def test_a_candidate_is_held_against_the_gate_while_nobody_else_changes_the_model(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repository(repository.layout.data_dir, lock_timeout=0.01)
    judged = list[str]()

    def judge(manifest: Manifest, *_: object) -> tuple[str, ...]:
        with pytest.raises(Conflict):
            other.promote("demo", "other", "1", "a test")
        judged.append(manifest.reference)
        return ()

    monkeypatch.setattr(repository, "broken_limits", judge)
    stored.put(repository, planned(), gate.Limits())
    assert judged == ["demo:2"]


def test_a_candidate_is_not_deleted(repository: Repository) -> None:
    publish(repository, "three")
    stored.put(repository, planned())
    with pytest.raises(Conflict, match=r"demo:2 is on trial under demo@production; .*rollout demo --alias production"):
        repository.delete("demo", "2")
    repository.delete("demo", "3")
    stored.end(repository, *ALIAS, "aborted", "slow")
    repository.delete("demo", "2")
