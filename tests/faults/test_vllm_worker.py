"""Processes of the vLLM worker around a vLLM of arithmetic: the engine client must not notice whose engine it is."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.engine.client.client import EngineClient
from service.engine.client.engine import EngineFailed
from service.engine.client.restart_policy import DEFAULT_POLICY, RestartPolicy
from service.engine.kinds.environment import vllm_environment
from service.engine.kinds.kinds import VLLM_WORKER, kind_of
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import FinishReason, Profile, Request, SamplingParams, StepOutput
from service.errors import EngineKilled
from tests.fake_vllm import DIE, HANG, RAISE, expected, interpreter
from tests.fakes import tokens_of
from tests.waiting import until

QUICK = RestartPolicy(backoff_seconds=0.02, unforecast_step_seconds=0.5)


def client_of(tmp_path: Path, policy: RestartPolicy = DEFAULT_POLICY, **given: str | bool | int) -> EngineClient:
    options = {"max_loras": 2 if given.pop("adapters", False) else 0}
    kind = kind_of("vllm", {**options, "tensor_parallel": int(given.pop("tensor_parallel", 1))})
    config = EngineConfig(
        model_dir="m",
        precision=str(given.pop("precision", "bf16")),
        max_model_len=512,
        kv_cache_bytes=1 << 20,
        offload_directory=str(tmp_path),
        digest="d",
        heartbeat_seconds=0.1,
        options=dict(kind.options),
    )
    python = interpreter(tmp_path, has_vllm=bool(given.pop("has_vllm", True)))
    environment = vllm_environment(
        {**os.environ, **{name: str(value) for name, value in given.items()}}, tmp_path, kind.local_ranks, [0]
    )
    return EngineClient(config, module=VLLM_WORKER, interpreter=str(python), env=environment, restart_policy=policy)


@asynccontextmanager
async def engine(
    tmp_path: Path, policy: RestartPolicy = DEFAULT_POLICY, **given: str | bool | int
) -> AsyncIterator[EngineClient]:
    client = client_of(tmp_path, policy, **given)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


def request_of(id: str, prompt: list[int], max_tokens: int = 8, **params: Any) -> Request:
    return Request(id, tuple(prompt), SamplingParams(max_tokens=max_tokens, **params))


async def answer(client: EngineClient, request: Request) -> list[StepOutput]:
    return [output async for output in client.generate(request)]


def kill(client: EngineClient) -> None:
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)


async def test_from_start_to_stop(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    phases: list[str] = []
    await client.start(on_loading=lambda phase, _: phases.append(phase))
    assert phases[0] == "importing vLLM" and phases[-1] == "starting vLLM"
    info = client.info
    assert info is not None and (info.version, info.forward, info.blocks_total) == ("0.32.0", "vllm", 64)
    assert info.pid == client.pid
    outputs = await answer(client, request_of("a", [5, 6, 7], logprobs=2, prompt_logprobs=0, prompt_logprobs_start=2))
    assert tokens_of(outputs) == expected([5, 6, 7], 8)
    assert outputs[0].queue_seconds is not None and outputs[-1].batch_size_mean == 1.0
    assert [len(each.logprobs[0].top) for each in outputs] == [2] * 8
    assert len(outputs[0].prompt_logprobs) == 1
    assert [each.tokens for each in client.recent_steps] == [3, *[1] * 7]
    assert client.stats.steps_total == 8 and client.stats.cost
    assert client.stats.seats > 0 and client.stats.seat_seconds > 0, "an answer has ended"
    await client.stop(grace=5)
    assert client.state == "stopped"


async def test_nothing_wanted_but_the_prompts_logprobs(tmp_path: Path) -> None:
    async with engine(tmp_path) as client:
        outputs = await answer(client, request_of("a", [5, 6, 7], 0, prompt_logprobs=0, prompt_logprobs_start=1))
    assert tokens_of(outputs) == [] and outputs[-1].finish_reason is FinishReason.LENGTH
    assert sum(len(each.prompt_logprobs) for each in outputs) == 2


async def test_stop_tokens_are_ours(tmp_path: Path) -> None:
    stop = expected([5], 8)[3]
    async with engine(tmp_path) as client:
        stopped = await answer(client, request_of("a", [5], stop_token_ids=(stop,)))
        kept = await answer(client, request_of("b", [5], stop_token_ids=(stop,), min_tokens=6))
    assert tokens_of(stopped) == expected([5], 4) and stopped[-1].finish_reason is FinishReason.STOP
    assert len(tokens_of(kept)) >= 6


async def test_a_greedy_answer_goes_on_exactly_when_its_process_is_killed(tmp_path: Path) -> None:
    async with engine(tmp_path) as client:
        outputs = list[StepOutput]()
        async with aclosing(client.generate(request_of("a", [3, 4], 60))) as stream:
            async for output in stream:
                outputs.append(output)
                if output.token_ids and len(tokens_of(outputs)) == 7:
                    kill(client)
        assert tokens_of(outputs) == expected([3, 4], 60)
        assert any(each.replayed_at is not None for each in outputs)
        assert client.restarts == 1


@pytest.mark.parametrize(("penalty", "ends"), [("frequency_penalty", True), ("repetition_penalty", False)])
async def test_what_vllm_would_count_wrongly_ends_with_abort(tmp_path: Path, penalty: str, ends: bool) -> None:
    async with engine(tmp_path) as client:
        outputs = list[StepOutput]()
        request = request_of("a", [3, 4], 40, **{penalty: 1.5})
        async for output in client.generate(request):
            outputs.append(output)
            if output.token_ids and len(tokens_of(outputs)) == 5:
                kill(client)
        assert outputs[-1].finish_reason is (FinishReason.ABORT if ends else FinishReason.LENGTH)
        assert len(tokens_of(outputs)) < 40 if ends else len(tokens_of(outputs)) == 40


async def test_a_request_that_kills_engines_ends_alone(tmp_path: Path) -> None:
    async with engine(tmp_path, QUICK) as client:
        poison = asyncio.create_task(answer(client, request_of("p", [DIE, 1])))
        others = [asyncio.create_task(answer(client, request_of(f"o{n}", [n + 1], 30))) for n in range(4)]
        with pytest.raises(EngineKilled):
            await poison
        for n, other in enumerate(others):
            assert tokens_of(await other) == expected([n + 1], 30)


async def test_an_error_of_vllm_is_told_and_the_engine_starts_again(tmp_path: Path) -> None:
    async with engine(tmp_path, QUICK) as client:
        with pytest.raises(EngineKilled):
            await answer(client, request_of("p", [RAISE, 1]))
        assert tokens_of(await answer(client, request_of("a", [2]))) == expected([2], 8)


async def test_a_step_without_an_end_is_a_hang(tmp_path: Path) -> None:
    async with engine(tmp_path, replace(QUICK, hang_seconds=0.5, max_suspected_crashes=1)) as client:
        with pytest.raises(EngineKilled):
            await answer(client, request_of("p", [HANG, 1]))
        assert tokens_of(await answer(client, request_of("a", [2]))) == expected([2], 8)


async def test_deadlines_and_aborts_end_within_a_step(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    async with engine(tmp_path, FAKE_VLLM_STEP_SECONDS="0.05", FAKE_VLLM_HOLD=str(hold)) as client:
        late = replace(request_of("a", [3], 400), deadline=time.monotonic() + 0.3)
        outputs = await answer(client, late)
        assert outputs[-1].finish_reason is FinishReason.DEADLINE and 2 <= len(tokens_of(outputs)) <= 8
        hold.touch()
        made = 0
        async with aclosing(client.generate(request_of("b", [4], 400))) as stream:
            async for output in stream:
                made += len(output.token_ids)
                if made >= 10:
                    break
        before = client.stats.steps_total
        hold.unlink()
        await until(lambda: client.stats.running == 0)
        assert client.stats.steps_total <= before + 2


async def test_adapters_come_and_go(tmp_path: Path) -> None:
    version = _adapter(tmp_path / "adapter")
    async with engine(tmp_path, adapters=True) as client:
        await client.load_adapter("x", version)
        adapted = await answer(client, replace(request_of("a", [3]), adapter="x"))
        assert tokens_of(adapted) != expected([3], 8)
        kill(client)
        await asyncio.sleep(0.05)
        assert tokens_of(await answer(client, replace(request_of("b", [3]), adapter="x"))) == tokens_of(adapted)
        client.unload_adapter("x")
        ended = await answer(client, replace(request_of("c", [3]), adapter="x"))
        assert ended[-1].finish_reason is FinishReason.ERROR
    async with engine(tmp_path) as client:
        with pytest.raises(EngineFailed, match="max_loras"):
            await client.load_adapter("x", version)


async def test_what_vllm_cannot_compute_ends_its_request_alone(tmp_path: Path) -> None:
    async with engine(tmp_path) as client:
        refused: list[dict[str, Any]] = [{"typical_p": 0.5}, {"temperature": 3.0}, {"grammar": "start: /a/"}]
        for params in refused:
            ended = await answer(client, request_of("a", [3], 8, **params))
            assert [each.finish_reason for each in ended] == [FinishReason.ERROR], params
        assert tokens_of(await answer(client, request_of("b", [2]))) == expected([2], 8)
        profiled = await client.profile(Profile("p", str(tmp_path), 3))
        assert "not recorded" in profiled.error


async def test_all_ranks_of_a_host_end_together_and_start_again(tmp_path: Path) -> None:
    async with engine(tmp_path, tensor_parallel=2, FAKE_VLLM_STEP_SECONDS="0.02") as client:
        process = psutil.Process(client.pid)
        first = _ranks(process)
        assert len(first) == 2 and client.info is not None
        assert client.info.memory_bytes > 1.5 * process.memory_info().rss
        outputs = list[StepOutput]()
        async for output in client.generate(request_of("a", [3, 4], 60)):
            outputs.append(output)
            if output.token_ids and len(tokens_of(outputs)) == 7:
                first[1].kill()
        assert tokens_of(outputs) == expected([3, 4], 60) and client.restarts == 1
        _, left = await asyncio.to_thread(psutil.wait_procs, [process, *first], 60)
        assert not left, "the others ended as well"
        second = _ranks(psutil.Process(client.pid))
        kill(client)
        _, left = await asyncio.to_thread(psutil.wait_procs, second, 60)
        assert not left, "the kernel ends the ranks of a killed engine"


def _ranks(engine: psutil.Process) -> list[psutil.Process]:
    return [each for each in engine.children() if "spawn_main" in " ".join(each.cmdline())]


async def test_a_start_that_cannot_be_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="make vllm"):
        await client_of(tmp_path, has_vllm=False).start()
    with pytest.raises(EngineFailed, match="llm-int8"):
        await client_of(tmp_path, precision="llm-int8").start()


def _adapter(directory: Path) -> str:
    directory.mkdir()
    (directory / "adapter_config.json").write_text('{"modules": {"a.q_proj": {"rank": 8, "scale": 2.0}}}')
    header = b'{"a.q_proj.lora_A.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    (directory / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    return str(directory)
