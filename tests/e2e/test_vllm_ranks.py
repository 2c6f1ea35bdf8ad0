"""The real vLLM with two ranks on one host: the tokens of one rank, one end for all, and nothing off loopback."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil
import pytest

from service.engine.client.client import EngineClient
from service.engine.protocol.messages import StepOutput
from tests.fakes import tokens_of
from tests.vllm_engines import NIGHTLY, answer, engine, prompts, repository_at, request_of, with_fp32

pytestmark = [*NIGHTLY, pytest.mark.timeout(1500)]
TOKENS = 24


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose `demo:3` is fp32: there two ranks give one rank's tokens, in bf16 a sum in another order gives
    others."""
    return with_fp32(repository_at(tmp_path_factory.mktemp("ranks")))


@pytest.fixture(scope="module")
def expected(data: Path) -> list[list[int]]:
    """The greedy tokens of one rank."""

    async def alone() -> list[list[int]]:
        async with engine(data, "3", "vllm", enforce_eager=1) as client:
            return await greedy(client, data)

    return asyncio.run(alone())


async def greedy(client: EngineClient, data: Path) -> list[list[int]]:
    """Answers one prompt after the other: vLLM's rows depend on the batch."""
    asked = (request_of(f"g{n}", prompt, TOKENS) for n, prompt in enumerate(prompts(data, 8)))
    return [tokens_of(await answer(client, each)) for each in asked]


def family(client: EngineClient) -> list[psutil.Process]:
    """Returns the engine's process and those of its ranks, the first rank first."""
    assert client.pid is not None
    engine = psutil.Process(client.pid)
    children = engine.children(recursive=True)
    return [engine, *(each for each in children if "resource_tracker" not in " ".join(each.cmdline()))]


@pytest.mark.parametrize("option", ["tensor_parallel", "pipeline_parallel"])
async def test_two_ranks_answer_as_one(data: Path, expected: list[list[int]], option: str) -> None:
    async with engine(data, "3", "vllm", **{option: 2, "enforce_eager": 1}) as client:
        found = await greedy(client, data)
        assert found == expected
        assert client.stats.cost
        processes = family(client)
        assert len(processes) == 3
        assert client.info is not None and client.info.memory_bytes > 1.5 * processes[0].memory_info().rss
        listening = [each for process in processes for each in process.net_connections() if each.status == "LISTEN"]
        assert {each.laddr.ip for each in listening} <= {"127.0.0.1"}
        outputs = list[StepOutput]()
        prompt = prompts(data, 1)[0]
        async for output in client.generate(request_of("k", prompt, TOKENS)):
            outputs.append(output)
            if output.token_ids and len(tokens_of(outputs)) == 5:
                processes[-1].send_signal(signal.SIGKILL)
        assert tokens_of(outputs) == found[0] and client.restarts == 1
        assert not [each for each in processes if each.is_running()], "all end with one"
        engine_process, *ranks = family(client)
        engine_process.send_signal(signal.SIGKILL)
        _, alive = await asyncio.to_thread(psutil.wait_procs, ranks, 10)
        assert not alive, "the kernel ends the ranks of a killed engine"
