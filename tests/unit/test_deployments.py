"""Loading on demand, once; draining; failing with a reason and trying again. A fake engine, a real repository."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from models.errors import Conflict as RepositoryConflict
from models.manifest import Manifest
from models.repository.disk.leases import Lease
from models.repository.repository import Repository
from service.deployments.deployments import Deployments
from service.deployments.engine_options import EngineOptions
from service.deployments.leasing import leased
from service.deployments.needs import loaded_bytes
from service.engine.client.engine import EngineState
from service.errors import Conflict, InvalidRequest, NotFound, Unavailable
from tests.fakes import InProcessEngine, make_request
from tests.tokenizers import write
from tests.versions import FACTS, write_weights
from tests.waiting import until


class SlowEngine(InProcessEngine):
    """Loads when it is let; fails to when told so."""

    def __init__(self, gate: asyncio.Event, failure: str = "") -> None:
        super().__init__()
        self._gate, self._failure = gate, failure

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        await self._gate.wait()
        if self._failure:
            raise RuntimeError(self._failure)
        await super().start(on_loading)


class World:
    """A repository with demo:1 and demo:2, and every engine that was made."""

    def __init__(self, data_dir: Path, **options: object) -> None:
        self.repository = self.opened(data_dir)
        for content in ("one", "two"):
            publish_with_tokenizer(self.repository, content)
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure = ""
        self.engines: list[tuple[str, SlowEngine]] = []
        self.promised: list[int] = []
        self.replicas: list[int] = []
        self.deployments = Deployments(
            self.repository,
            self.engine,
            **{"default_model": "demo", "load_timeout": 60, "drain_timeout": 60, **options},  # type: ignore[arg-type]
        )

    def opened(self, data_dir: Path) -> Repository:
        return Repository(data_dir)

    def engine(self, manifest: Manifest, promised_bytes: int, options: EngineOptions) -> SlowEngine:
        self.promised.append(promised_bytes)
        self.replicas.append(options.replicas)
        engine = SlowEngine(self.gate, self.failure)
        self.engines.append((manifest.reference, engine))
        return engine

    async def started(self) -> Self:
        await self.deployments.start()
        await until(lambda: self.deployments.phase == "started")
        return self


def publish_with_tokenizer(repository: Repository, content: str) -> None:
    with repository.stage() as staged:
        write(staged)
        write_weights(staged, content)
        repository.publish(staged, FACTS, "demo")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_the_default_model_is_loaded_at_start(world: World) -> None:
    assert not world.deployments.ready
    await world.started()
    assert world.deployments.ready
    assert [reference for reference, _ in world.engines] == ["demo:2"]


async def test_a_default_model_that_was_unloaded_by_name_stays_unloaded_until_it_is_wanted(world: World) -> None:
    await world.started()
    await world.deployments.unload("demo:2")
    await until(lambda: not world.deployments.all())
    for _ in range(3):
        world.deployments._default.retry()
    assert not world.deployments.all()
    assert await answered(world) == "2"


async def test_who_waits_for_a_version_gets_another_that_the_reference_means_meanwhile(tmp_path: Path) -> None:
    world = await World(tmp_path, preload=False).started()
    assert await answered(world, "demo:1") == "1"
    world.gate.clear()
    world.failure = "a changed byte"
    asking = asyncio.create_task(world.deployments.ensure_loaded("demo"))
    await until(lambda: len(world.engines) == 2)
    world.repository.promote("demo", "production", "1", "the other one does not load")
    world.gate.set()
    assert (await asking).manifest.version == "1"


async def test_a_version_is_loaded_once_however_many_ask(world: World) -> None:
    await world.started()
    world.gate.clear()
    asking = [asyncio.create_task(world.deployments.ensure_loaded("demo:1")) for _ in range(20)]
    await until(lambda: len(world.engines) == 2)
    await asyncio.sleep(0.02)
    assert not any(task.done() for task in asking)
    world.gate.set()
    deployments = await asyncio.gather(*asking)
    assert len({id(each) for each in deployments}) == 1
    assert [reference for reference, _ in world.engines] == ["demo:2", "demo:1"]


async def test_a_second_engine_knows_what_the_first_may_still_take(world: World) -> None:
    first = (await world.started()).engines[0][1].info
    await world.deployments.ensure_loaded("demo:1")
    assert first is not None
    assert world.promised == [0, first.blocks_total * first.kv_bytes_per_block] and world.promised[1] > 0


@pytest.mark.parametrize("default", ["demo", "demo:2", "demo@production"])
async def test_versions_of_the_default_model_have_its_replicas(tmp_path: Path, default: str) -> None:
    """Also after a swap, and where a request names the version; other models have one."""
    world = World(tmp_path, default_replicas=3)
    with world.repository.stage() as staged:
        write(staged)
        write_weights(staged, "three")
        world.repository.publish(staged, FACTS, "other")
    world.repository.promote("demo", "production", "2", "a test")
    world.deployments = Deployments(world.repository, world.engine, default_model=default, default_replicas=3)
    await world.started()
    for reference in ("demo:1", "other:1"):
        await world.deployments.ensure_loaded(reference)
    assert [(reference, count) for (reference, _), count in zip(world.engines, world.replicas, strict=True)] == [
        ("demo:2", 3),
        ("demo:1", 3),
        ("other:1", 1),
    ]


async def test_references(world: World) -> None:
    await world.started()
    world.repository.promote("demo", "production", "1", "a test")
    resolve = world.deployments.resolve
    assert [resolve(each).reference for each in (None, "demo", "demo:2", "demo@production")] == [
        "demo:1",
        "demo:1",
        "demo:2",
        "demo:1",
    ]
    for unknown in ("demo:3", "nobody", "demo@canary"):
        with pytest.raises(NotFound):
            await world.deployments.ensure_loaded(unknown)
    with pytest.raises(InvalidRequest):
        await world.deployments.ensure_loaded("../demo")


async def test_readiness_and_state_tell_of_an_engine_that_is_started_again(world: World) -> None:
    """For a default that stands by its alias, and for an exact one."""
    for default in ("demo", "demo:2"):
        world.deployments = Deployments(world.repository, world.engine, default_model=default)
        await world.started()
        engine = world.engines[-1][1]
        assert world.deployments.ready
        engine.state, engine.why_not_ready = (
            EngineState.RESTARTING,
            "the engine process died: it ended with exit code -9",
        )
        assert not world.deployments.ready
        assert world.deployments.why_not_ready == engine.why_not_ready
        [described] = world.deployments.describe()
        assert (described["state"], described["error"]) == ("restarting", engine.why_not_ready)
        assert (await world.deployments.ensure_loaded(None)).engine.state is EngineState.RESTARTING, (
            "who comes now may wait"
        )
        engine.state, engine.why_not_ready = EngineState.READY, ""
        assert world.deployments.ready
        assert world.deployments.describe()[0]["state"] == "ready"
        await world.deployments.stop()


async def test_a_default_model_that_could_not_be_loaded_at_start_is_tried_again_without_a_request(world: World) -> None:
    world.failure = "no memory"
    await world.started()
    assert not world.deployments.ready
    world.failure = ""
    await until(lambda: world.deployments.ready)
    await world.deployments.stop()


async def test_without_preloading_a_default_model_that_failed_is_not_ready(tmp_path: Path) -> None:
    world = await World(tmp_path, preload=False).started()
    assert world.deployments.ready, "it would be loaded on demand"
    world.failure = "no memory"
    with pytest.raises(Unavailable):
        await world.deployments.ensure_loaded(None)
    assert not world.deployments.ready
    await world.deployments.stop()


async def test_a_failed_load_says_why_and_is_tried_again(world: World) -> None:
    await world.started()
    world.failure = "no memory"
    with pytest.raises(Unavailable, match="no memory"):
        await world.deployments.ensure_loaded("demo:1")
    assert world.deployments.describe()[-1]["state"] == "failed"
    world.failure = ""
    assert (await world.deployments.ensure_loaded("demo:1")).manifest.version == "1"


async def test_a_changed_file_is_refused_before_its_engine_has_loaded(world: World) -> None:
    """And that engine, which loads while the files are read again, is ended."""
    await world.started()
    world.gate.clear()
    weights = world.repository.path(world.repository.get("demo", "1")) / "model.safetensors"
    weights.chmod(0o644)
    weights.write_text("One")
    with pytest.raises(Unavailable, match=r"model\.safetensors"):
        await world.deployments.ensure_loaded("demo:1")
    assert world.engines[-1][1].state is EngineState.STOPPED


async def test_nothing_is_served_before_the_files_are_checked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.started()
    checked = threading.Event()
    monkeypatch.setattr(world.repository, "verify", lambda manifest: checked.wait(60))
    asking = asyncio.create_task(world.deployments.ensure_loaded("demo:1"))
    await until(lambda: len(world.engines) == 2 and world.engines[1][1].state is EngineState.READY)
    await asyncio.sleep(0.02)
    assert not asking.done()
    checked.set()
    assert (await asking).state.value == "ready"


async def test_draining_finishes_what_runs_and_takes_nothing_new(world: World) -> None:
    await world.started()
    deployment = await world.deployments.ensure_loaded("demo:2")
    answer = deployment.generate(make_request("a", max_tokens=30))
    assert (await anext(answer)).token_ids
    await world.deployments.unload("demo:2")
    await until(lambda: deployment.state.value == "draining")
    with pytest.raises(Unavailable):
        await world.deployments.ensure_loaded("demo:2")
    with pytest.raises(Unavailable):
        await anext(deployment.generate(make_request("b")))
    rest = [output async for output in answer]
    assert rest[-1].finish_reason == "length"
    await until(lambda: not world.deployments.describe())
    assert deployment.engine.state is EngineState.STOPPED


async def test_who_asks_while_an_unloading_begins_keeps_nothing_loaded(world: World) -> None:
    """Also in the turn of the event loop that unloads: the unloaded version answers for no reference any more."""
    await world.started()
    unloaded = await world.deployments.unload("demo:2")
    assert unloaded.state.value == "draining"
    with pytest.raises(Unavailable, match="draining"):
        await world.deployments.ensure_loaded(None)
    await until(lambda: not world.deployments.all())
    world.deployments.follow_all()
    world.deployments._default.retry()
    assert not world.deployments.all()


@pytest.fixture
def may_end(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set it, and engines that are stopped end."""
    may_end, stop = asyncio.Event(), SlowEngine.stop

    async def stopped(self: SlowEngine, grace: float = 0.0) -> None:
        await may_end.wait()
        await stop(self, grace)

    monkeypatch.setattr(SlowEngine, "stop", stopped)
    return may_end


async def test_a_version_that_is_unloaded_twice_is_known_until_its_engine_has_ended(
    world: World, may_end: asyncio.Event
) -> None:
    await world.started()
    for _ in range(2):
        await world.deployments.unload("demo:2")
        await asyncio.sleep(0.02)
    assert [each.state.value for each in world.deployments.all()] == ["draining"]
    may_end.set()
    await until(lambda: not world.deployments.all())


async def test_a_load_waits_for_the_memory_of_what_is_being_unloaded(
    world: World, may_end: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.started()
    needed = loaded_bytes(world.repository.get("demo", "1").size)

    def available() -> int:
        return 2 * needed - needed * sum(engine.state is EngineState.READY for _, engine in world.engines) - 1

    monkeypatch.setattr("service.deployments.memory.available_memory", available)
    may_end.set()
    with pytest.raises(Unavailable, match="unload another version"):
        await world.deployments.ensure_loaded("demo:1")
    may_end.clear()
    await world.deployments.unload("demo:2")
    asking = asyncio.create_task(world.deployments.ensure_loaded("demo:1"))
    await asyncio.sleep(0.02)
    assert not asking.done()
    may_end.set()
    assert (await asking).state.value == "ready"


async def test_a_load_that_cannot_fit_is_refused_though_another_is_being_unloaded(
    world: World, may_end: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.started()
    await world.deployments.unload("demo:2")
    needed = loaded_bytes(world.repository.get("demo", "1").size)
    monkeypatch.setattr("service.deployments.memory.available_memory", lambda: -(1 << 40))
    asking = asyncio.create_task(world.deployments.ensure_loaded("demo:1"))
    await until(lambda: any(each.phase == "waiting for memory" for each in world.deployments.all()))
    await asyncio.sleep(0.02)
    monkeypatch.setattr("service.deployments.memory.available_memory", lambda: 2 * needed)
    may_end.set()
    with pytest.raises(Unavailable, match="unload another version"):
        await asking


async def test_what_is_idle_makes_room_for_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ollama's `keep_alive: 0` with an answer, and then another model at once."""
    world = await World(tmp_path, preload=False, default_model="other").started()
    deployment = await world.deployments.ensure_loaded("demo:1")
    needed = loaded_bytes(world.repository.get("demo", "1").size)

    def available() -> int:
        return 2 * needed - needed * sum(engine.state is EngineState.READY for _, engine in world.engines) - 1

    monkeypatch.setattr("service.deployments.memory.available_memory", available)
    world.deployments.keep_alive(deployment, 0)
    assert (await world.deployments.ensure_loaded("demo:2")).state.value == "ready"


async def test_no_load_begins_behind_the_stop(world: World, may_end: asyncio.Event) -> None:
    """Also where a load that requests wait for is cut, and its engine takes long to end."""
    await world.started()
    world.gate.clear()
    asking = asyncio.create_task(world.deployments.ensure_loaded("demo:1"))
    await until(lambda: len(world.engines) == 2)
    stopping = asyncio.create_task(world.deployments.stop())
    with pytest.raises(Unavailable):
        await asking
    may_end.set()
    await stopping
    assert len(world.engines) == 2 and not world.deployments.all()


async def test_unloading_what_is_not_there_or_not_ready(world: World) -> None:
    await world.started()
    with pytest.raises(NotFound):
        await world.deployments.unload("demo:1")
    world.gate.clear()
    await world.deployments.begin_loading("demo:1")
    with pytest.raises(Conflict):
        await world.deployments.unload("demo:1")


async def test_leaving_a_stream_aborts_it_in_the_engine(world: World) -> None:
    await world.started()
    deployment = await world.deployments.ensure_loaded(None)
    answer = deployment.generate(make_request("a", max_tokens=500))
    await anext(answer)
    await answer.aclose()
    assert deployment.in_flight == 0
    await until(lambda: deployment.engine.stats.running == 0)


async def test_stop_ends_every_engine_and_refuses_more(world: World) -> None:
    await world.started()
    await world.deployments.ensure_loaded("demo:1")
    await world.deployments.stop()
    assert {engine.state for _, engine in world.engines} == {EngineState.STOPPED}
    assert not world.deployments.ready
    with pytest.raises(Unavailable):
        await world.deployments.ensure_loaded("demo:1")


async def test_nothing_is_asked_before_the_repository_is_prepared(tmp_path: Path) -> None:
    prepared = asyncio.Event()

    async def prepare() -> None:
        await prepared.wait()

    world = World(tmp_path, prepare=prepare)
    await world.deployments.start()
    with pytest.raises(Unavailable, match="starting"):
        await world.deployments.ensure_loaded(None)
    prepared.set()
    await until(lambda: world.deployments.ready)


async def answered(world: World, reference: str | None = None) -> str:
    """The version that answers now."""
    deployment = await world.deployments.ensure_loaded(reference)
    with deployment.occupied():
        outputs = [output async for output in deployment.generate(make_request("a", max_tokens=2))]
    assert outputs[-1].finish_reason == "length"
    return deployment.manifest.version


async def test_an_alias_that_moves_is_followed_without_a_wait_or_a_gap(world: World) -> None:
    await world.started()
    assert await answered(world) == "2"
    world.gate.clear()
    world.repository.promote("demo", "production", "1", "a test")
    assert await answered(world) == "2", "the old one answers while the new one loads"
    assert [reference for reference, _ in world.engines] == ["demo:2", "demo:1"]
    assert world.deployments.ready
    world.gate.set()
    await until(lambda: any(each.manifest.version == "1" and each.is_serving for each in world.deployments.all()))
    assert await answered(world) == "1"
    await until(lambda: [each.manifest.version for each in world.deployments.all()] == ["1"])
    assert world.engines[0][1].state is EngineState.STOPPED


async def test_a_target_that_cannot_be_loaded_leaves_the_old_one_serving(world: World) -> None:
    await world.started()
    world.failure = "a changed byte"
    world.repository.promote("demo", "production", "1", "a test")
    for _ in range(3):
        assert await answered(world) == "2"
        await until(lambda: world.deployments.all()[-1].state.value == "failed")
    assert [reference for reference, _ in world.engines] == ["demo:2", "demo:1"], "not tried again at once"
    assert [(each["model"], each["state"]) for each in world.deployments.describe()] == [
        ("demo:2", "ready"),
        ("demo:1", "failed"),
    ]
    world.failure = ""
    await world.deployments.begin_loading("demo:1")
    await until(lambda: world.deployments.all()[-1].state.value == "ready")
    assert await answered(world) == "1"


async def test_a_version_whose_alias_was_removed_leaves(world: World) -> None:
    world.repository.promote("demo", "staging", "1", "a test")
    await world.started()
    assert await answered(world, "demo@staging") == "1"
    world.repository.remove_alias("demo", "staging", "a test")
    world.deployments.follow_all()
    await until(lambda: [each.manifest.version for each in world.deployments.all()] == ["2"])
    world.repository.delete("demo", "1")


async def test_who_was_let_in_before_the_switch_is_answered(world: World) -> None:
    await world.started()
    old = await world.deployments.ensure_loaded(None)
    with old.occupied():
        world.repository.promote("demo", "production", "1", "a test")
        world.deployments.follow_all()
        await until(lambda: len(world.engines) == 2 and world.deployments.all()[1].state.value == "ready")
        assert await answered(world) == "1"
        await until(lambda: old.state.value == "draining")
        outputs = [output async for output in old.generate(make_request("b", max_tokens=3))]
        assert outputs[-1].finish_reason == "length"
        assert old.engine.state is EngineState.READY
    await until(lambda: old.engine.state is EngineState.STOPPED)


async def test_what_was_asked_for_by_name_stays(world: World) -> None:
    await world.started()
    await world.deployments.begin_loading("demo:2")
    world.repository.promote("demo", "production", "1", "a test")
    world.deployments.follow_all()
    await until(lambda: len(world.deployments.all()) == 2 and world.deployments.all()[1].state.value == "ready")
    assert await answered(world) == "1"
    await asyncio.sleep(0.02)
    assert [each.state.value for each in world.deployments.all()] == ["ready", "ready"]


async def test_a_served_version_cannot_be_deleted(world: World) -> None:
    await world.started()
    deployment = await world.deployments.ensure_loaded("demo:1")
    with pytest.raises(RepositoryConflict, match="in use"):
        Repository(world.repository.layout.data_dir).delete("demo", "1")
    await world.deployments.unload("demo:1")
    await until(lambda: deployment not in world.deployments.all())
    world.repository.delete("demo", "1")


async def test_a_load_that_fails_for_its_draft_keeps_no_version_from_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the lease of its engine comes after the failure."""
    world = await World(tmp_path, preload=False).started()
    publish_with_tokenizer(world.repository, "three")
    lease, leases = world.repository.lease, list[Lease]()

    def slowly(manifest: Manifest) -> Lease:
        leases.append(lease(manifest))
        if len(leases) > 1:
            time.sleep(0.1)
        return leases[-1]

    monkeypatch.setattr(world.repository, "lease", slowly)
    deployment = await world.deployments.begin_loading("demo:3", draft="demo:1")
    world.repository.delete("demo", "1")
    await until(lambda: deployment.state.value == "failed")
    world.repository.delete("demo", "3")


async def test_a_lease_that_takes_long_is_no_wait_of_other_requests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.started()
    lease, asked, may = world.repository.lease, list[str](), threading.Event()

    def slowly(manifest: Manifest) -> Lease:
        asked.append(manifest.reference)
        assert may.wait(60), "the event loop waited"
        return lease(manifest)

    monkeypatch.setattr(world.repository, "lease", slowly)
    loading = asyncio.create_task(world.deployments.ensure_loaded("demo:1"))
    await until(lambda: asked)
    assert await answered(world) == "2"
    may.set()
    assert (await loading).manifest.version == "1"
    assert asked == ["demo:1"] * 2, "of the deployment and of its engine"


async def test_a_lease_that_comes_after_a_cancellation_is_released(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, taken, may = world.repository.lease, list[Lease](), threading.Event()

    def slowly(manifest: Manifest) -> Lease:
        taken.append(lease(manifest))
        assert may.wait(60), "the event loop waited"
        return taken[0]

    with monkeypatch.context() as patched:
        patched.setattr(world.repository, "lease", slowly)
        loading = asyncio.create_task(leased(world.repository, world.repository.get("demo", "1")))
        await until(lambda: taken)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
    with pytest.raises(RepositoryConflict, match="in use"):
        world.repository.delete("demo", "1")
    released = asyncio.Event()
    taken[0].ended = released.set
    may.set()
    async with asyncio.timeout(60):
        await released.wait()
    world.repository.delete("demo", "1")


async def test_what_nobody_uses_is_unloaded_and_comes_back(tmp_path: Path) -> None:
    world = await World(tmp_path, idle_timeout=1).started()
    await world.deployments.ensure_loaded("demo:1")
    await until(lambda: [each.manifest.version for each in world.deployments.all()] == ["2"])
    assert world.deployments.ready, "the default model stays"
    assert await answered(world, "demo:1") == "1"


async def test_what_does_not_fit_is_refused_with_the_numbers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.started()
    monkeypatch.setattr("service.deployments.memory.available_memory", lambda: 1000)
    with pytest.raises(Unavailable, match=r"demo:1 needs about 0\.3 GB"):
        await world.deployments.ensure_loaded("demo:1")
    assert await answered(world) == "2"


async def test_two_loads_at_once_do_not_get_the_same_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds room beside the loads before goes on at once; who does not waits for what they really take."""
    world = World(tmp_path, preload=False)
    await world.started()
    publish_with_tokenizer(world.repository, "three")
    needed, room = loaded_bytes(world.repository.get("demo", "1").size), [0.0]

    def available() -> int:
        return int((room[0] - sum(each.state is EngineState.READY for _, each in world.engines)) * needed)

    monkeypatch.setattr("service.deployments.memory.available_memory", available)
    for room[0], loaded in ((1.5, 1), (2.5, 2), (3.5, 3)):
        world.gate.clear()
        loads = [asyncio.create_task(world.deployments.ensure_loaded(f"demo:{version}")) for version in (1, 2, 3)]
        await until(lambda: len(world.engines) == 3)
        await asyncio.sleep(0.02)
        waiting = [each for each in world.deployments.all() if each.phase == "waiting for memory"]
        assert len(waiting) == 3 - loaded and not any(each.done() for each in loads)
        world.gate.set()
        ended = await asyncio.gather(*loads, return_exceptions=True)
        assert [isinstance(each, Unavailable) for each in ended] == [at >= loaded for at in range(3)], ended
        for each in world.deployments.all():
            await world.deployments.unload(each.manifest.reference)
        await until(lambda: not world.deployments.all())
        world.engines.clear()


async def test_copies_for_vllm_go_with_their_version(tmp_path: Path) -> None:
    world = World(tmp_path)
    home = tmp_path / "engines" / "vllm"
    one, two = (world.repository.get("demo", version).digest for version in "12")
    for copy in (f"versions/{one}", f"versions/{two}", f"adapters/{one}", "versions/of-long-ago", f"adapters/{two}.77"):
        (home / copy).mkdir(parents=True)
        (home / copy / "config.json").touch()

    def left() -> set[str]:
        return {path.parent.relative_to(home).as_posix() for path in home.rglob("config.json")}

    await world.started()
    assert left() == {f"versions/{one}", f"versions/{two}", f"adapters/{one}", f"adapters/{two}.77"}
    await asyncio.to_thread(world.deployments.delete, "demo", "1")
    assert left() == {f"versions/{two}", f"adapters/{two}.77"}


async def test_a_damaged_manifest_leaves_the_old_one_serving(world: World) -> None:
    await world.started()
    world.repository.promote("demo", "production", "1", "a test")
    manifest = world.repository.path(world.repository.get("demo", "1")) / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_text("{}")
    assert await answered(world) == "2" and world.deployments.ready
    with pytest.raises(Unavailable, match="manifest"):
        await world.deployments.ensure_loaded("demo:1")
