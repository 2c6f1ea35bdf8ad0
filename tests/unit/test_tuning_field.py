"""The field: which candidates there are, which cannot differ, and which versions are one model's precisions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as without_deadline
from hypothesis import strategies as st

from models.manifest import Manifest
from models.repository.repository import Repository
from service.evaluation.tuning import field as candidates
from service.evaluation.tuning.field import GRAINS, Candidate, Reach, family, field, ladder, present, shapes
from service.settings import Settings
from tests.versions import publish

FINE = GRAINS[0]
NOW = Candidate("demo:1", "bf16", 64, 2048, 2, 1)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_limits_that_the_load_never_reaches_are_one() -> None:
    assert ladder(64, 8, 2, 2, 2) == [64, 4, 2], "the present one stands for all that never bind"
    assert ladder(4, 8, 2, 2, 2) == [8, 4, 2], "one that binds has a free one beside it"
    assert ladder(64, 200, 2, 2, 1) == [256, 128, 64]
    assert ladder(2048, 300, 64, 4, 2) == [2048, 128]
    assert ladder(64, 8, 2, 2, 0) == [64]


@given(st.integers(1, 4096), st.integers(1, 100_000), st.sampled_from([2, 4]), st.integers(0, 3))
def test_a_ladder_has_one_free_value_and_the_present_one(present: int, reach: int, ratio: int, steps: int) -> None:
    found = ladder(present, reach, 2, ratio, steps)
    assert present in found and len(set(found)) == len(found) <= steps + 2
    assert sum(value >= max(reach, 2) for value in found) == 1 or present == 1 == reach
    assert all(value >= 1 for value in found)


def test_threads_and_replicas_use_all_cores_or_half() -> None:
    assert shapes(NOW, 2) == [(2, 1), (1, 2), (1, 1)]
    assert shapes(replace(NOW, threads=1), 1) == [(1, 1)]
    assert shapes(NOW, None) == [(2, 1)], "on a GPU they stay"
    assert {(16, 1), (1, 16), (8, 1), (1, 8)} <= set(shapes(NOW, 16))


@given(st.integers(1, 200))
def test_no_shape_takes_more_than_the_cores(cores: int) -> None:
    found = shapes(replace(NOW, threads=1), cores)
    assert all(threads >= 1 and replicas >= 1 and threads * replicas <= cores for threads, replicas in found)
    assert (cores, 1) in found


def test_the_field_has_every_combination_once_and_the_present_one_first(repository: Repository) -> None:
    versions = [publish(repository, "one")]
    found = field(NOW, versions, Reach(8, 400), FINE, 2)
    assert found[0] == NOW and len(set(found)) == len(found) == 3 * 3 * 2
    finer = [len(field(NOW, versions, Reach(8, 400), grain, 2)) for grain in GRAINS]
    assert finer == sorted(finer, reverse=True) and finer[-1] == 3


def test_precisions_are_conversions_of_the_same_weights(repository: Repository) -> None:
    first = publish(repository, "one")
    small = _as(publish(repository, "small", parent=first), "int8")
    other = publish(repository, "two")
    publish(repository, "one", name="other")
    references = [each.reference for each in family(repository, first)]
    assert references == [first.reference], "the other has the same precision as written in its manifest"
    assert other.reference not in references and small.lineage.parent == first.reference


def _as(manifest: Manifest, precision: str) -> Manifest:
    return replace(manifest, precision=precision)  # type: ignore[arg-type]


class Versions:
    """Versions of one name, in memory."""

    def __init__(self, *found: Manifest) -> None:
        self._found = list(found)

    def versions(self, name: str) -> list[Manifest]:
        return [each for each in self._found if each.name == name]


def test_the_newest_conversion_of_each_precision(repository: Repository) -> None:
    first = publish(repository, "one")
    old, new = (_as(publish(repository, text, parent=first), "int8") for text in ("a", "b"))
    weight = _as(publish(repository, "c", parent=first), "int8-weight")
    stranger = _as(publish(repository, "two"), "fp32")
    here: Repository = Versions(first, old, new, weight, stranger)  # type: ignore[assignment]
    assert family(here, first) == [first, weight, new]
    assert family(here, old) == [old, weight, first], "the named version stands for its precision"
    assert family(here, stranger) == [stranger]


def test_a_deleted_parent_still_joins_its_children(repository: Repository) -> None:
    first = publish(repository, "one")
    small, weight = (
        _as(publish(repository, text, parent=first), kind) for text, kind in (("a", "int8"), ("b", "llm-int8"))
    )
    here: Repository = Versions(small, weight)  # type: ignore[assignment]
    assert family(here, small) == [small, weight]


def test_the_present_candidate_is_what_a_server_would_run(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(candidates, "usable_cores", lambda: 8)
    manifest = publish(repository, "one")
    found = present(Settings(data_dir=tmp_path, replicas=4, max_num_seqs=7), manifest)
    assert (found.threads, found.replicas, found.max_num_seqs) == (2, 4, 7)
    assert present(Settings(data_dir=tmp_path, threads=3), manifest).threads == 3


@without_deadline(deadline=None)  # the settings read the environment
@given(st.integers(1, 4096), st.integers(16, 100_000), st.integers(1, 64), st.integers(1, 64))
def test_what_a_candidate_writes_is_what_a_server_reads(seqs: int, tokens: int, threads: int, replicas: int) -> None:
    each = Candidate("demo:2", "int8", seqs, tokens, threads, replicas)
    names = {name.removeprefix("DOSIRAK_").lower(): value for name, value in each.variables("demo", "demo:1").items()}
    settings = Settings.model_validate(names, strict=False)
    assert settings == each.applied(Settings()).model_copy(update={"default_model": "demo:2"})
    assert each.variables("demo", "demo:2")["DOSIRAK_DEFAULT_MODEL"] == "demo", "its alias can still move"
