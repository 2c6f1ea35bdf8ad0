"""A base and its adapters behind one engine: who starts it, joins it, ends it. A fake engine, a real repository."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from models.errors import Conflict as RepositoryConflict
from models.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Manifest
from models.repository.repository import Repository
from service.deployments.deployment import Deployment
from service.deployments.deployments import Deployments
from service.deployments.engine_options import EngineOptions
from service.engine.client.engine import EngineFailed, EngineState
from service.engine.protocol.messages import Request
from service.errors import Conflict, Unavailable
from tests.fakes import expected_tokens, make_request, tokens_of
from tests.tokenizers import write
from tests.unit.test_deployments import SlowEngine
from tests.versions import FACTS, write_weights
from tests.waiting import until


class World:
    """demo:1, demo:2 and demo:3 with adapters of it, and other:1, which has another base."""

    def __init__(self, data_dir: Path) -> None:
        self.repository = Repository(data_dir)
        self.base = self.publish("demo")
        self.two = self.publish("demo", "two")
        self.three = self.publish("demo", "three")
        self.other = self.publish("other", weights="others")
        self.gate = asyncio.Event()
        self.gate.set()
        self.engines: list[tuple[str, SlowEngine]] = []
        self.promised: list[int] = []
        self.asked = 0
        self.deployments = Deployments(
            self.repository, self.engine, default_model="demo:1", preload=False, load_timeout=60, drain_timeout=0.1
        )

    def publish(self, name: str, adapter: str = "", weights: str = "weights") -> Manifest:
        with self.repository.stage() as staged:
            write(staged)
            write_weights(staged, weights)
            if adapter:
                (staged / ADAPTER_CONFIG).write_text(adapter)
                write_weights(staged, adapter, ADAPTER_WEIGHTS)
            return self.repository.publish(staged, FACTS, name)

    def engine(self, manifest: Manifest, promised_bytes: int, options: EngineOptions) -> SlowEngine:
        self.promised.append(promised_bytes)
        engine = SlowEngine(self.gate)
        self.engines.append((manifest.reference, engine))
        if manifest.has_adapter:  # as `engine_config` says
            engine.core.load_adapter(manifest.digest, "")
        return engine

    @property
    def started(self) -> list[str]:
        return [reference for reference, _ in self.engines]

    async def answer(self, reference: str) -> tuple[Request, list[int]]:
        deployment = await self.deployments.ensure_loaded(reference)
        self.asked += 1
        request = make_request(str(self.asked), range(20), max_tokens=6)
        with deployment.occupied():
            return request, tokens_of([output async for output in deployment.generate(request)])

    def damage(self, manifest: Manifest, name: str) -> None:
        """One version's copy, as on a file system without links."""
        path = self.repository.path(manifest) / name
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(b"x" + content[1:])


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    await world.deployments.start()
    await until(lambda: world.deployments.phase == "started")
    return world


def test_the_base_digest_is_the_parent_s(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.two.base_digest == world.three.base_digest == world.base.digest == world.base.base_digest
    assert len({world.base.digest, world.two.digest, world.three.digest}) == 3
    assert world.other.base_digest != world.base.digest
    assert (world.two.has_adapter, world.base.has_adapter) == (True, False)
    grown = world.two.size - world.base.size
    assert (world.two.adapter_bytes, world.base.adapter_bytes) == (grown, 0) and grown > 0


@pytest.mark.parametrize("order", [("demo:1", "demo:2", "demo:3"), ("demo:3", "demo:1", "demo:2")])
async def test_a_base_and_its_adapters_share_one_engine(world: World, order: tuple[str, ...]) -> None:
    found = [await world.answer(reference) for reference in order]
    assert world.started == [order[0]]
    for reference, (request, tokens) in zip(order, found, strict=True):
        manifest = world.repository.resolve(reference)
        name = manifest.digest if manifest.has_adapter else ""
        assert tokens == expected_tokens(replace(request, adapter=name))
    pids = [each["replicas"][0]["pid"] for each in world.deployments.describe()]  # type: ignore[index]
    assert len(pids) == 3 and len(set(pids)) == 1


async def test_other_bases_have_their_own(world: World) -> None:
    for reference in ("demo:1", "demo:2", "other:1"):
        await world.answer(reference)
    assert world.started == ["demo:1", "other:1"]
    info = world.engines[0][1].info
    assert info is not None
    assert world.promised == [0, info.blocks_total * info.kv_bytes_per_block], "counted once"


async def test_all_at_once_start_one(world: World) -> None:
    world.gate.clear()
    asking = [asyncio.create_task(world.answer(f"demo:{version}")) for version in (2, 1, 3, 2, 1)]
    await asyncio.sleep(0.05)
    assert world.started == ["demo:2"] and not any(task.done() for task in asking)
    world.gate.set()
    await asyncio.gather(*asking)
    assert world.started == ["demo:2"]


async def test_who_leaves_frees_its_adapter_and_the_last_ends_the_engine(world: World) -> None:
    for reference in ("demo:2", "demo:1", "demo:3"):
        await world.answer(reference)
    engine = world.engines[0][1]
    assert engine.core._runner.adapters == {world.two.digest, world.three.digest}
    await unloaded(world, "demo:2")
    assert engine.core._runner.adapters == {world.three.digest}
    assert engine.state.value == "ready"
    with pytest.raises(RepositoryConflict, match="in use"):  # the engine, started again, would read its files
        world.repository.delete("demo", "2")
    await unloaded(world, "demo:1")
    await world.answer("demo:3")
    await unloaded(world, "demo:3")
    assert engine.state.value == "stopped"
    world.repository.delete("demo", "2")
    await world.answer("demo:1")
    assert world.started == ["demo:2", "demo:1"]


async def unloaded(world: World, reference: str) -> None:
    deployment = await world.deployments.unload(reference)
    await until(lambda: deployment not in world.deployments.all())
    assert deployment.engine.state is EngineState.STOPPED


@pytest.mark.parametrize("name", ["model.safetensors", ADAPTER_WEIGHTS])
async def test_nobody_is_served_from_files_that_are_not_as_published(world: World, name: str) -> None:
    """Whoever waits for an engine that was started from a damaged copy starts another."""
    world.damage(world.two, name)
    world.gate.clear()
    asking = [asyncio.create_task(world.answer(f"demo:{version}")) for version in (2, 1, 3)]
    await until(lambda: any(each.state.value == "failed" for each in world.deployments.all()))
    world.gate.set()
    failed, *answered = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(failed, Unavailable) and name in failed.message
    assert not any(isinstance(each, BaseException) for each in answered)
    assert world.started in (["demo:2", "demo:1"], ["demo:2", "demo:3"]), "whose files are read first"
    assert world.engines[0][1].state is EngineState.STOPPED


async def test_a_broken_adapter_fails_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.answer("demo:1")
    monkeypatch.setattr(world.deployments._loaded._engines, "directory", lambda manifest: "broken")
    with pytest.raises(Unavailable, match="its files do not fit"):
        await world.answer("demo:2")
    await world.answer("demo:1")
    monkeypatch.undo()
    await world.answer("demo:2")
    assert world.started == ["demo:1"]


async def test_memory_is_asked_for_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.answer("demo:1")
    monkeypatch.setattr("service.deployments.memory.available_memory", lambda: 1000)
    await world.answer("demo:2")
    with pytest.raises(Unavailable, match="other:1 needs about"):
        await world.answer("other:1")


async def test_replicas_are_the_engine_s(world: World) -> None:
    await world.deployments.begin_loading("demo:1", 1)
    await world.answer("demo:1")
    with pytest.raises(Conflict, match="1 replicas"):
        await world.deployments.begin_loading("demo:2", 2)
    assert [each.manifest.reference for each in world.deployments.all()] == ["demo:1"]
    await world.deployments.begin_loading("demo:2", 1)
    await world.answer("demo:2")


async def test_an_alias_moves_from_a_base_to_its_adapter(world: World) -> None:
    world.repository.promote("demo", "production", "1", "a test")
    deployments: list[Deployment] = []

    async def ask() -> None:
        """On and on, until a request has been answered by the new version."""
        while not deployments or deployments[-1].manifest.version != "2":
            deployment = await world.deployments.ensure_loaded("demo")
            with deployment.occupied():
                request = make_request(str(len(deployments)), range(9), max_tokens=2)
                assert len(tokens_of([output async for output in deployment.generate(request)])) == 2
                deployments.append(deployment)
            await asyncio.sleep(0)

    asking = asyncio.create_task(ask())
    await until(lambda: len(deployments) > 5)
    world.repository.promote("demo", "production", "2", "a test")
    async with asyncio.timeout(60):
        await asking
    assert [each.manifest.version for each in dict.fromkeys(deployments)] == ["1", "2"]
    assert world.started == ["demo:1"]
    await until(lambda: [each.manifest.version for each in world.deployments.all()] == ["2"])


async def test_an_engine_that_is_dead_for_good_is_not_joined(world: World) -> None:
    await world.answer("demo:1")
    world.engines[0][1].state = EngineState.FAILED
    await world.answer("demo:2")
    assert world.started == ["demo:1", "demo:2"]


async def test_who_fails_while_it_joins_leaves_nothing_behind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files turn out to be damaged while the engine loads its adapter."""
    await world.answer("demo:1")
    engine = world.engines[0][1]
    loading = asyncio.Event()

    async def load_adapter(name: str, directory: str) -> None:
        engine.core.load_adapter(name, directory)
        await loading.wait()

    monkeypatch.setattr(engine, "load_adapter", load_adapter)
    world.damage(world.two, ADAPTER_WEIGHTS)
    with pytest.raises(Unavailable, match=ADAPTER_WEIGHTS):
        await world.answer("demo:2")
    assert not engine.core._runner.adapters
    await world.answer("demo:1")


async def test_what_an_unloaded_version_still_says_is_cut_and_the_others_go_on(world: World) -> None:
    await world.answer("demo:1")
    leaving, staying = [await world.deployments.ensure_loaded(f"demo:{version}") for version in (2, 1)]
    endless = make_request("cut", range(9), max_tokens=100_000)
    answers = [each.generate(replace(endless, id=str(at))) for at, each in enumerate((leaving, staying))]
    for each in answers:
        await anext(each)
    with leaving.occupied():
        await world.deployments.unload("demo:2")
        with pytest.raises(EngineFailed, match="stopped"):
            async for _ in answers[0]:
                pass
        with pytest.raises(Unavailable, match="stopped"):
            await anext(leaving.generate(make_request("late")))
    assert (await anext(answers[1])).token_ids
    await until(lambda: not world.engines[0][1].core._runner.adapters)
    assert world.engines[0][1].stats.running == 1
    await answers[1].aclose()
