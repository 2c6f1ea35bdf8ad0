"""Weights that one process packs and others map: the same tokens, and memory that counts once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from models.imports.importing import import_source
from models.repository.repository import Repository
from models.weights.loading import load_model
from models.weights.quantize import quantize
from service.engine.client.client import EngineClient
from service.engine.client.engine import Engine
from service.engine.client.replicas import Replicas
from service.engine.client.supervisor import PackedWeights
from service.engine.protocol.config import EngineConfig
from service.engine.runner.loading import building
from service.engine.runner.loading.building import build_runner
from service.engine.runner.loading.lesson import pieces
from service.engine.runner.native.arena import Arena, Differs
from service.engine.runner.native.library import library
from service.environment import engine_environment
from tests.fakes import make_request, tokens_of
from tests.golden.conftest import Load
from tests.waiting import until

DEMO = Path(__file__).parents[2] / "models" / "demo" / "weights"
pytestmark = pytest.mark.skipif(library() is None, reason="needs the native kernels")


@pytest.fixture(scope="module", params=["bf16", "int8"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    directory = tmp_path_factory.mktemp("shared")
    repository = Repository(directory)
    manifest = import_source(repository, str(DEMO), "demo")
    if request.param == "int8":
        manifest = quantize(repository, manifest)
    return EngineConfig(
        model_dir=str(repository.path(manifest)),
        precision=manifest.precision,
        threads=1,
        max_model_len=512,
        max_num_seqs=4,
        findings=str(repository.findings_path(manifest)),
    )


def test_an_arena_gives_others_what_its_owner_wrote() -> None:
    owner = Arena()
    first, second = owner.take("a", 3), owner.take("b", 5_000_000)
    first[:] = torch.tensor([1, 2, 3])
    second[-1] = 9
    with pytest.raises(Differs, match="not done"):
        Arena(owner.path)
    owner.seal()
    other = Arena(owner.path)
    assert other.take("a", 3).tolist() == [1, 2, 3] and int(other.take("b", 5_000_000)[-1]) == 9
    first[0] = 7
    again = Arena(owner.path)
    assert again.take("a", 3).tolist() == [7, 2, 3], "one memory"
    for what, size in (("c", 5_000_000), ("b", 4)):
        with pytest.raises(Differs):
            again.take(what, size)
    with pytest.raises(OSError, match="No such file"):
        Arena("/proc/1/fd/987654")


def test_a_load_on_packed_weights_is_the_same_model(config: EngineConfig) -> None:
    kernels = library()
    assert kernels is not None
    sharing = msgspec.structs.replace(config, share_weights=True)
    _, owner = build_runner(sharing, lambda phase, fraction: None)
    assert owner.packed_weights and kernels.arena is None
    mapped, info = build_runner(
        msgspec.structs.replace(sharing, packed_weights=owner.packed_weights), lambda phase, fraction: None
    )
    assert info.packed_weights.startswith("/proc/") and info.packed_weights != owner.packed_weights
    alone, _ = build_runner(config, lambda phase, fraction: None)
    for packed, own in zip(mapped.forward.model.buffers(), alone.forward.model.buffers(), strict=True):
        assert torch.equal(packed, own)


@pytest.mark.parametrize("name", ["demo", "gpt2"])
def test_replicas_without_a_record_share_what_was_built(
    config: EngineConfig, load: Load, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no record can be kept, or where the library's own forward serves: each loads the library's model once."""
    if name == "gpt2":
        config = load("gpt2", config.precision).config
    loads: list[str] = []

    def counted(*args: Any) -> Any:
        loads.append(args[1])
        return load_model(*args)

    monkeypatch.setattr(building, "load_model", counted)
    sharing = msgspec.structs.replace(config, share_weights=True, findings="")
    first, owner = build_runner(sharing, lambda phase, fraction: None)
    mapping = msgspec.structs.replace(sharing, packed_weights=owner.packed_weights)
    second, info = build_runner(mapping, lambda phase, fraction: None)
    assert owner.forward == info.forward == ("decoder" if name == "demo" else "transformers")
    assert len(loads) == 2
    assert owner.shared_bytes == info.shared_bytes > 0.3 * info.memory_bytes
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "dosirak-weights" in line]
    assert any("r--s" in line for line in maps), "the second maps them read-only"
    logits = []
    for runner in (first, second):
        (step,) = pieces(runner.cache, 100, 16, 0, runner.cache.device)
        logits.append(runner.forward(step))
    assert torch.equal(*logits)


def test_weights_of_another_model_are_not_taken(config: EngineConfig) -> None:
    other = Arena()
    other.take("something else", 100)
    other.seal()
    _, info = build_runner(msgspec.structs.replace(config, packed_weights=other.path), lambda phase, fraction: None)
    assert info.packed_weights == "", "packed by itself"


def mapped(replica: Engine) -> set[str]:
    """The inodes of the packed weights that a replica has."""
    maps = Path(f"/proc/{replica.pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in maps if "dosirak-weights" in line}


async def test_replicas_answer_alike_and_survive_the_first_ones_death(config: EngineConfig) -> None:
    """With one copy of the weights, in whatever order they die."""

    def make(number: int, packed: PackedWeights) -> EngineClient:
        sharing = msgspec.structs.replace(config, share_weights=True)
        return EngineClient(sharing, env=engine_environment(), packed_weights=packed)

    engine = Replicas(make, 2, 4)
    await engine.start()
    try:
        memory = mapped(engine.replicas[0])
        assert len(memory) == 1
        for dying, staying in ((0, 1), (1, 0)):
            assert mapped(engine.replicas[dying]) == mapped(engine.replicas[staying]) == memory
            os.kill(engine.replicas[dying].pid or 0, signal.SIGKILL)
            dead = engine.replicas[dying]
            await until(lambda dead=dead: dead.restarts == 1)  # type: ignore[misc]
        assert mapped(engine.replicas[1]) == memory
        request = make_request("a", list(range(20, 60)), max_tokens=20)
        first, second = [tokens_of([output async for output in each.generate(request)]) for each in engine.replicas]
        assert first == second and len(first) == 20
        await engine.replicas[0].stop()
        assert tokens_of([output async for output in engine.generate(request)]) == first
    finally:
        await engine.stop()
