"""Aliases, rollouts and wanted deployments that change while a version loads, on one instance and on two that share
records. Fake engines, real repositories."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from models.manifest import Manifest
from models.repository import rollouts
from models.repository.disk.journal import Entry
from models.repository.disk.layout import Layout
from models.repository.disk.records import FileRecords
from models.repository.repository import Repository
from models.repository.rollouts import Rollout, RolloutLimits
from service.deployments import deployments, following, wanted
from service.deployments.engine_options import EngineOptions
from service.deployments.needs import loaded_bytes
from service.engine.client.engine import EngineState
from service.errors import UnsupportedField
from tests.unit.test_deployments import World, answered, publish_with_tokenizer
from tests.waiting import until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "_WATCH_SECONDS", 0.002)
    for module in (following, wanted):
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)


class Shared(FileRecords):
    """Those of all instances, which are in one process here."""

    shared = True


class Instance(World):
    """One of those whose data directories stand beside each other, and share the records of `records`."""

    def opened(self, data_dir: Path) -> Repository:
        layout = Layout(data_dir.parent / "records")
        layout.make()
        return Repository(data_dir, records=Shared(layout))


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """demo:1 is production and loaded."""
    world = World(tmp_path)
    world.repository.promote("demo", "production", "1", "first")
    return await world.started()


@pytest.fixture
async def pair(tmp_path: Path) -> tuple[World, World]:
    """Two instances that share records; each has demo:1, which is production and loaded, and demo:2."""
    one, two = Instance(tmp_path / "one"), Instance(tmp_path / "two")
    one.repository.promote("demo", "production", "1", "first")
    return await one.started(), await two.started()


def states(world: World) -> list[tuple[str, str]]:
    return [(each.manifest.version, each.state.value) for each in world.deployments.all()]


def on_trial(candidate: str, weight: float = 50) -> Rollout:
    return Rollout("demo", "production", "", candidate, weight, True, False, RolloutLimits(), "")


async def test_a_version_whose_alias_went_back_while_it_loaded_is_unloaded(world: World) -> None:
    world.gate.clear()
    world.repository.promote("demo", "production", "2", "a test")
    await until(lambda: states(world) == [("1", "ready"), ("2", "loading")])
    world.repository.rollback("demo", "production", "a test")
    world.deployments.follow_all()
    world.gate.set()
    await until(lambda: states(world) == [("1", "ready")])
    assert world.engines[1][1].state is EngineState.STOPPED and await answered(world) == "1"


async def test_a_version_whose_alias_moved_on_while_it_loaded_makes_room_for_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_with_tokenizer(world.repository, "three")
    needed = loaded_bytes(world.repository.get("demo", "1").size)

    def available() -> int:
        return int((2.5 - sum(each.state is EngineState.READY for _, each in world.engines)) * needed)

    monkeypatch.setattr("service.deployments.memory.available_memory", available)
    world.gate.clear()
    for version in ("2", "3"):
        world.repository.promote("demo", "production", version, "a test")
        await until(lambda: world.deployments.all()[-1].manifest.version == version)  # noqa: B023 - it waits here
    world.gate.set()
    await until(lambda: states(world) == [("3", "ready")])
    assert await answered(world) == "3"


async def test_a_version_that_its_alias_still_means_stays_though_the_one_before_is_unloaded(world: World) -> None:
    world.gate.clear()
    world.repository.promote("demo", "production", "2", "a test")
    await until(lambda: states(world) == [("1", "ready"), ("2", "loading")])
    await world.deployments.unload("demo:1")
    await until(lambda: states(world) == [("2", "loading")])
    world.gate.set()
    await until(lambda: states(world) == [("2", "ready")])
    for _ in range(3):
        world.deployments.follow_all()
        await asyncio.sleep(0.005)
    assert await answered(world) == "2" and len(world.engines) == 2


async def test_a_candidate_whose_rollout_ended_while_it_loaded_is_unloaded(world: World) -> None:
    world.gate.clear()
    rollouts.put(world.repository, on_trial("2"))
    await until(lambda: states(world) == [("1", "ready"), ("2", "loading")])
    rollouts.end(world.repository, "demo", "production", "aborted", "a test")
    world.deployments.follow_all()
    world.gate.set()
    await until(lambda: states(world) == [("1", "ready")])


async def test_a_version_that_was_asked_for_by_name_while_it_loaded_for_an_alias_stays(world: World) -> None:
    world.gate.clear()
    world.repository.promote("demo", "production", "2", "a test")
    await until(lambda: states(world) == [("1", "ready"), ("2", "loading")])
    deployment = await world.deployments.begin_loading("demo:2")
    world.repository.rollback("demo", "production", "a test")
    world.gate.set()
    await until(lambda: deployment.state.value == "ready")
    for _ in range(3):
        world.deployments.follow_all()
        await asyncio.sleep(0.005)
    assert states(world) == [("1", "ready"), ("2", "ready")]


async def test_a_candidate_that_is_on_its_way_to_an_instance_stays_on_trial(pair: tuple[World, World]) -> None:
    one, two = pair
    publish_with_tokenizer(one.repository, "three")
    put = rollouts.put(one.repository, on_trial("3"))
    await until(lambda: two.deployments.rollouts.of("demo", "production") == put)
    for _ in range(3):
        two.deployments.follow_all()
        assert (await two.deployments.choose_loaded("demo", "a")).deployment.manifest.version == "1"
    assert rollouts.running(one.repository, "demo", "production") == put
    publish_with_tokenizer(two.repository, "three")
    await until(lambda: ("3", "ready") in states(one) and ("3", "ready") in states(two))


async def test_a_candidate_that_was_deleted_is_taken_back_by_an_instance_that_never_had_it(
    pair: tuple[World, World],
) -> None:
    """By an instance of an earlier release, which deletes what is on trial."""
    one, two = pair
    await one.deployments.stop()
    publish_with_tokenizer(one.repository, "three")
    put = rollouts.put(one.repository, on_trial("3"))
    await until(lambda: two.deployments.rollouts.of("demo", "production") == put)
    one.repository.records.append("demo", Entry("delete", None, "3", None, "", "", put.started_at))
    await until(lambda: rollouts.history(one.repository, "demo", "production")[-1].state == "rolled_back")


async def test_what_is_unloaded_for_all_while_it_loads_here_goes_when_it_is_ready(pair: tuple[World, World]) -> None:
    one, two = pair
    two.gate.clear()
    await one.deployments.begin_loading("demo:2")
    await until(lambda: ("2", "ready") in states(one) and ("2", "loading") in states(two))
    await one.deployments.unload("demo:2")
    await until(lambda: states(one) == [("1", "ready")])
    await two.deployments._by_name.follow()
    two.gate.set()
    await until(lambda: states(two) == [("1", "ready")])


async def test_what_is_wanted_of_all_and_failed_to_load_here_is_tried_again(pair: tuple[World, World]) -> None:
    one, two = pair
    two.failure = "the store does not answer"
    await one.deployments.begin_loading("demo:2")
    await until(lambda: ("2", "failed") in states(two))
    two.failure = ""
    await until(lambda: ("2", "ready") in states(one) and ("2", "ready") in states(two))
    await one.deployments.unload("demo:2")
    await until(lambda: states(two) == [("1", "ready")])


async def test_what_was_asked_for_by_name_and_failed_stays_when_a_request_loads_it(world: World) -> None:
    world.failure = "no memory"
    await world.deployments.begin_loading("demo:2")
    await until(lambda: states(world) == [("1", "ready"), ("2", "failed")])
    world.failure = ""
    assert (await world.deployments.ensure_loaded("demo:2")).pinned


async def test_what_the_engine_does_not_serve_leaves_the_version_before_serving(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a version that vLLM has no form for: each request was refused with it, though the one before was ready."""
    require = world.deployments._choice.kinds.require

    def refuse(options: EngineOptions, manifest: Manifest, repository: Repository) -> None:
        if manifest.version == "2":
            raise UnsupportedField("vLLM does not serve it")
        require(options, manifest, repository)

    await world.deployments.ensure_loaded("demo")
    monkeypatch.setattr(world.deployments._choice.kinds, "require", refuse)
    world.repository.promote("demo", "production", "2", "second")
    with capture_logs() as lines:
        for _ in range(3):
            world.deployments.follow_all()
            choice = await world.deployments.choose_loaded("demo", None)
            assert choice.deployment.manifest.version == "1"
    assert [line["error"] for line in lines if line["event"] == "version_not_served"] == ["vLLM does not serve it"]
    with pytest.raises(UnsupportedField):
        await world.deployments.ensure_loaded("demo:2")


async def test_another_rollout_of_a_candidate_that_failed_tries_again(world: World) -> None:
    def roll() -> None:
        rollouts.put(world.repository, on_trial("2"))
        world.deployments.follow_all()

    def ended() -> bool:
        world.deployments.follow_all()
        return rollouts.history(world.repository, "demo", "production")[-1].state == "rolled_back"

    await world.deployments.ensure_loaded("demo")
    world.failure = "needs 9 GB and 2 GB are free"
    roll()
    await until(ended)
    world.failure = ""
    roll()
    await until(lambda: sorted(states(world)) == [("1", "ready"), ("2", "ready")])
    assert rollouts.history(world.repository, "demo", "production")[-1].state == "running"


async def test_what_is_refused_here_is_asked_of_no_other_instance(
    pair: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair

    def refuse(*_: object) -> None:
        raise UnsupportedField("vLLM does not serve it")

    monkeypatch.setattr(one.deployments._choice.kinds, "require", refuse)
    with pytest.raises(UnsupportedField):
        await one.deployments.begin_loading("demo:2")
    assert one.repository.records.documents("deployments") == []
