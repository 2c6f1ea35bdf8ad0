"""Profiles of real engines: every part of a step is named, tokens stay the same, and a slow operator is found."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.engine.client.client import EngineClient
from service.engine.client.process import WORKER
from service.engine.process.profiler import Profiler
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import Profile, Profiled, SamplingParams
from service.engine.runner.native.library import library
from service.engine.runner.native.marks import PHASES
from service.observability.profiles.trace import Measured, differences, join
from tests.fakes import make_request, tokens_of
from tests.golden.conftest import Load
from tests.golden.tiny import request, save_tiny
from tests.kernels import TORCH, use
from tests.slow_worker import PLANTED

RUNS = 10
STEPS = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("llama"))


@asynccontextmanager
async def engine(model: Path, module: str = WORKER) -> AsyncIterator[EngineClient]:
    config = EngineConfig(
        model_dir=str(model), precision="fp32", dtype="fp32", max_model_len=400, threads=1, device="cpu"
    )
    client = EngineClient(config, module=module, env={**os.environ, "KINETO_LOG_LEVEL": "99"})
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def profiled(client: EngineClient, directory: Path, steps: int = STEPS) -> Measured:
    """Profiles live steps of an answer."""
    await asyncio.to_thread(directory.mkdir)
    request = make_request(directory.name, max_tokens=steps + 5, min_tokens=steps + 5, temperature=1.0)

    async def answer() -> int:
        return len(tokens_of([output async for output in client.generate(request)]))

    ended, tokens = await asyncio.gather(client.profile(Profile(directory.name, str(directory), steps)), answer())
    assert (ended.steps, ended.error, tokens) == (steps, "", steps + 5)
    return Measured(join(directory, directory / "trace.json.gz"), ended.steps)


@pytest.mark.nightly
async def test_a_slow_operator_is_named_first(model: Path, tmp_path: Path) -> None:
    """In every run: sound engine against slow one."""
    async with engine(model) as sound, engine(model, "tests.slow_worker") as slow:
        for run in range(RUNS):
            a, b = await profiled(sound, tmp_path / f"a{run}"), await profiled(slow, tmp_path / f"b{run}")
            found = differences(a, b)[0]
            assert found.name == PLANTED, run
            assert (found.a_calls_per_step, found.b_calls_per_step) == (0, 1)
            assert differences(b, a)[0].name == PLANTED, "faster is a difference too"


class Recorded:
    """A profile of an engine in this process."""

    def __init__(self, load: Load, directory: Path, kind: str = "operators", steps: int = 6) -> None:
        core = load("llama", "fp32").core()
        core.add(request("a", range(3, 40), SamplingParams(max_tokens=8, min_tokens=8)))
        ends = list[Profiled]()
        profiler = Profiler(core, ends.append)
        profiler.take(Profile("a", str(directory), steps, kind))
        outputs = []
        while core.has_work:
            outputs += profiler.step()
        assert (ends[0].steps, ends[0].error) == (steps, "")
        self.tokens = tokens_of(outputs)
        self.seconds = ends[0].seconds
        self.operators = {each.name: each for each in join(directory, directory / "out.gz")}
        trace = json.loads(gzip.decompress((directory / "out.gz").read_bytes()))
        self.events: list[dict[str, Any]] = trace["traceEvents"]


@pytest.mark.parametrize("kind", ["operators", "memory", "stacks"])
def test_a_profile_changes_no_token(load: Load, tmp_path: Path, kind: str) -> None:
    core = load("llama", "fp32").core()
    core.add(request("a", range(3, 40), SamplingParams(max_tokens=8, min_tokens=8)))
    alone = []
    while core.has_work:
        alone += core.step()
    assert Recorded(load, tmp_path, kind).tokens == tokens_of(alone)


@pytest.mark.skipif(library() is None, reason="the native kernels are not built")
def test_the_native_decoder_shows_its_phases(load: Load, tmp_path: Path) -> None:
    found = Recorded(load, tmp_path)
    assert "native::experts" not in found.operators, "a dense model has none"
    of_dense = [name for name in PHASES[1:] if name != "native::experts"]
    phases = {name: found.operators[name].calls for name in of_dense}
    layered = dict.fromkeys(of_dense[1:-1], 6 * 2)
    assert phases == {"native::embedding": 6, **layered, "native::head": 6}
    parts = {"step", "schedule", "pack", "forward", "sample", "update"}
    assert {f"dosirak::{part}" for part in parts} | {"native::step", "native::draw"} <= found.operators.keys()
    assert sum(each.self_seconds for each in found.operators.values()) == pytest.approx(found.seconds, rel=0.2)
    spans = {name: [each for each in found.events if each["name"] == name] for name in ("native::step", "native::qkv")}
    for phase in spans["native::qkv"]:
        assert any(
            step["ts"] - 50 <= phase["ts"] and phase["ts"] + phase["dur"] <= step["ts"] + step["dur"] + 50
            for step in spans["native::step"]
        ), "both clocks agree"


def test_torch_operations_are_seen_without_native_kernels(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(TORCH, monkeypatch)
    found = Recorded(load, tmp_path)
    assert {"aten::linear", "dosirak::forward"} <= found.operators.keys()
    assert not any(name.startswith("native::") for name in found.operators)


def test_memory_has_bytes_and_stacks_have_calls(load: Load, tmp_path: Path) -> None:
    for kind in ("memory", "stacks", "operators"):
        (tmp_path / kind).mkdir()
    memory, stacks, plain = (Recorded(load, tmp_path / kind, kind) for kind in ("memory", "stacks", "operators"))
    assert (memory.operators["aten::empty"].self_bytes or 0) > 0
    assert plain.operators["aten::empty"].self_bytes is None
    called = {each["name"] for each in stacks.events if each.get("cat") == "python_function"}
    assert any("model_runner.py" in name for name in called)
    assert not any(".py" in name for name in stacks.operators), "Python's calls are in the trace, not among operators"
    assert not any(each.get("cat") == "python_function" for each in plain.events)


def test_nothing_is_left_behind_a_profile(load: Load, tmp_path: Path) -> None:
    """A step that nobody records runs the methods of the classes, and no marks are taken."""
    runner = load("llama", "fp32").runner
    before = set(vars(runner))
    Recorded(load, tmp_path)
    assert set(vars(runner)) == before
    if (kernels := library()) is not None:
        assert kernels.marks is None
        assert not {part.method for part in kernels.parts} & vars(kernels).keys()
