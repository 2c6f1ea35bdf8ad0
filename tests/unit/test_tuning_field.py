"""The field of candidates: which there are, which cannot differ, which versions are one model's precisions; and the
engines that they run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as without_deadline
from hypothesis import strategies as st

from models.errors import Conflict, NotFound
from models.manifest import Manifest
from models.repository.repository import Repository
from service.deployments.needs import ENGINE_BYTES, loaded_bytes
from service.engine.client.engine import EngineFailed, EngineState
from service.engine.client.replicas import Replicas
from service.evaluation.tuning import field as candidates
from service.evaluation.tuning.driving import Broken
from service.evaluation.tuning.engines import RESERVE_BYTES, Engines, engine_of
from service.evaluation.tuning.field import GRAINS, Candidate, Reach, family, field, ladder, present, shapes
from service.settings import Settings
from tests.fakes import InProcessEngine
from tests.tuning import candidate
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
    small = publish(repository, "small", parent=first)
    publish(repository, "two")
    publish(repository, "one", name="other")
    assert family(repository, first) == [first, small], "the other two are weights of their own"


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


class Starting(InProcessEngine):
    def __init__(self, failure: str = "") -> None:
        super().__init__()
        self.failure = failure

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        if self.failure:
            raise EngineFailed(self.failure)
        await super().start(on_loading)


class World:
    """`free`: bytes without the engines, each of which takes `loaded_bytes` of the version."""

    def __init__(self, data_dir: Path, engines_that_fit: float) -> None:
        self.repository = Repository(data_dir)
        self.version = publish(self.repository, "one")
        self.each = loaded_bytes(self.version.size)
        self.total = int(engines_that_fit * self.each)
        self.made: list[tuple[Candidate, Starting]] = []
        self.failure = ""
        self.engines = Engines(self.repository, [self.version], self.make, self.free)

    def make(self, wanted: Candidate, manifest: Manifest) -> Starting:
        assert manifest == self.version
        self.made.append((wanted, Starting(self.failure)))
        return self.made[-1][1]

    def free(self) -> int:
        return self.total - self.each * len(self.alive())

    def alive(self) -> list[Candidate]:
        return [each for each, engine in self.made if engine.state is EngineState.READY]


async def test_an_engine_is_started_once(tmp_path: Path) -> None:
    world = World(tmp_path, 100)
    first = await world.engines.engine(candidate(0))
    assert await world.engines.engine(candidate(0)) is first and len(world.made) == 1
    assert world.engines.started() == {candidate(0)} and world.engines.start_seconds > 0
    await world.engines.close()
    assert not world.alive()


async def test_kept_engines_take_half_of_what_was_free_and_the_longest_unused_goes_first(tmp_path: Path) -> None:
    world = World(tmp_path, 8)
    assert world.engines.kept == 4
    for number in (0, 1, 2, 0, 3, 4):
        await world.engines.engine(candidate(number))
    assert set(world.alive()) == {candidate(number) for number in (2, 0, 3, 4)}
    await world.engines.close()


async def test_what_needs_more_than_half_runs_alone(tmp_path: Path) -> None:
    world = World(tmp_path, 1.5 + RESERVE_BYTES / loaded_bytes(100))
    for number in range(3):
        await world.engines.engine(candidate(number))
        assert world.alive() == [candidate(number)]
    await world.engines.close()


def test_engines_that_cannot_have_a_version_keep_no_other_from_deletion(repository: Repository) -> None:
    kept, gone = publish(repository, "one"), publish(repository, "two")
    repository.delete("demo", "2")
    with pytest.raises(NotFound):
        Engines(repository, [kept, gone], lambda *_: pytest.fail("no engine is wanted"))
    repository.delete("demo", "1")


async def test_what_does_not_fit_is_refused_with_numbers(tmp_path: Path) -> None:
    world = World(tmp_path, 2.2)
    await world.engines.engine(candidate(0))
    with pytest.raises(Broken, match=r"needs 1\.1 GB of memory beside what runs, and 0\.6 GB are free"):
        await world.engines.engine(candidate(1, replicas=4))
    assert not world.alive(), "others had to go for the try"
    await world.engines.close()


async def test_replicas_share_their_weights(tmp_path: Path) -> None:
    world = World(tmp_path, 100)
    assert world.engines._needed(candidate(1, replicas=3)) == world.each + 2 * ENGINE_BYTES
    await world.engines.close()


async def test_an_engine_that_cannot_start_is_broken_with_its_reason(tmp_path: Path) -> None:
    world = World(tmp_path, 100)
    world.failure = "not one block fits"
    with pytest.raises(Broken, match="its engine could not start: not one block fits"):
        await world.engines.engine(candidate(0))
    assert world.made[0][1].state is EngineState.STOPPED and not world.engines.started()
    await world.engines.close()


async def test_a_field_starts_together_within_what_is_free(tmp_path: Path) -> None:
    world = World(tmp_path, 100)
    assert await world.engines.start_all([candidate(number) for number in range(5)], lambda: True) == {}
    assert world.engines.started() == {candidate(number) for number in range(5)}
    await world.engines.start_all([candidate(9)], lambda: False)
    assert candidate(9) not in world.engines.started(), "there is no time"
    world.failure = "not one block fits"
    out = await world.engines.start_all([candidate(1), candidate(7)], lambda: True)
    assert out == {candidate(7): "its engine could not start: not one block fits"}
    await world.engines.close()
    assert world.engines._starting == 0 and not world.alive()


async def test_versions_cannot_be_deleted_meanwhile(tmp_path: Path) -> None:
    world = World(tmp_path, 100)
    with pytest.raises(Conflict):
        world.repository.delete("demo", "1")
    await world.engines.close()
    world.repository.delete("demo", "1")


def test_engines_are_those_that_a_server_would_have(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    version = publish(repository, "one")
    settings = Settings(data_dir=tmp_path, block_size=32)
    one = Candidate("demo:1", "bf16", 7, 128, 3, 1)
    config = engine_of(settings, repository, one, version)._supervisor._launch.config  # type: ignore[attr-defined]
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.threads, config.block_size) == (7, 128, 3, 32)
    several = engine_of(settings, repository, Candidate("demo:1", "bf16", 7, 128, 1, 2), version)
    assert isinstance(several, Replicas) and several._count == 2 and several._most_at_once == 7
