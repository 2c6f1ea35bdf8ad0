"""Engines of candidates: kept while memory has room, ended the longest unused first, and refused with numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from models.errors import Conflict
from models.manifest import Manifest
from models.repository.repository import Repository
from service.deployments.needs import ENGINE_BYTES, loaded_bytes
from service.engine.client.engine import EngineFailed, EngineState
from service.engine.client.replicas import Replicas
from service.evaluation.tuning.driving import Broken
from service.evaluation.tuning.engines import RESERVE_BYTES, Engines, engine_of
from service.evaluation.tuning.field import Candidate
from service.settings import Settings
from tests.fakes import InProcessEngine
from tests.tuning import candidate
from tests.versions import publish


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
