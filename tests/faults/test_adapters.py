"""Adapters in real engine processes around the fake model: loaded, refused, released, and there again after a kill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service.engine.client.client import EngineClient
from service.engine.client.engine import EngineFailed
from service.engine.client.replicas import Replicas
from service.engine.client.restart_policy import DEFAULT_POLICY
from service.engine.protocol.messages import FinishReason, Request, StepOutput
from service.errors import Unavailable
from tests.fakes import expected_tokens, make_request, tokens_of
from tests.faults.test_engine_process import CONFIG, QUICK, answer, engine, environment, kill
from tests.waiting import until


def requests(count: int = 8, **fields: Any) -> list[Request]:
    """The same prompts for the base and two adapters in turn."""
    owners = ("", "one", "two")
    return [make_request(str(i), range(i // 3, 12), adapter=owners[i % 3], **fields) for i in range(count)]


async def check(client: Any, asked: list[Request]) -> None:
    answers = await asyncio.gather(*(answer(client, request) for request in asked))
    assert [tokens_of(outputs) for outputs in answers] == [expected_tokens(request) for request in asked]


async def test_an_adapter_that_is_not_there_is_an_error() -> None:
    async with engine() as client:
        await client.load_adapter("one", "anywhere")
        base, one, two = await asyncio.gather(*(answer(client, request) for request in requests(3)))
        assert [outputs[-1].finish_reason for outputs in (base, one)] == [FinishReason.LENGTH] * 2
        assert [(output.finish_reason, output.token_ids) for output in two] == [(FinishReason.ERROR, ())]
        client.unload_adapter("one")
        [refused] = await answer(client, replace(requests(2)[1], id="late"))
        assert refused.finish_reason is FinishReason.ERROR


async def test_a_broken_adapter_is_refused_with_its_cause_and_harms_nobody() -> None:
    async with engine(step_seconds=0.005) as client:
        await client.load_adapter("one", "anywhere")
        running = asyncio.create_task(check(client, requests(2, max_tokens=30)))
        with pytest.raises(EngineFailed, match="its files do not fit"):
            await client.load_adapter("two", "broken")
        await running
        await client.load_adapter("two", "anywhere")
        await check(client, requests(6))


async def test_running_answers_go_on_while_an_adapter_is_read(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    base = make_request("base", [1, 2], max_tokens=60)
    async with engine(step_seconds=0.005, read_adapters_after=str(gate)) as client, asyncio.timeout(60):
        stream = client.generate(base)
        outputs = [await anext(stream)]
        loading = asyncio.create_task(client.load_adapter("one", "anywhere"))
        outputs += [output async for output in stream]
        assert tokens_of(outputs) == expected_tokens(base)
        assert not loading.done()
        gate.unlink()
        await loading
        await check(client, requests(2))


async def test_after_a_restart_only_those_who_need_an_adapter_wait_for_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with engine(QUICK, step_seconds=0.005, read_adapters_after=str(gate)) as client, asyncio.timeout(60):
        for name, directory in (("one", "anywhere"), ("two", "unfit")):
            with suppress(EngineFailed):
                await client.load_adapter(name, directory)
        gate.touch()
        streams = [client.generate(request) for request in requests(2, max_tokens=200)]
        outputs = [[await anext(stream)] for stream in streams]
        leaves = client.generate(make_request("leaves", adapter="one", max_tokens=5000))
        await anext(leaves)
        kill(client)
        base, adapted = streams
        outputs[0] += [output async for output in base]
        rest = asyncio.create_task(rest_of(adapted))
        await leaves.aclose()
        gate.unlink()
        outputs[1] += await rest
        assert client.restarts == 1
    assert [tokens_of(each) for each in outputs] == [expected_tokens(each) for each in requests(2, max_tokens=200)]


async def rest_of(stream: AsyncGenerator[StepOutput, None]) -> list[StepOutput]:
    return [output async for output in stream]


async def test_an_adapter_that_is_released_while_it_is_read(tmp_path: Path) -> None:
    """Whoever waits for it is told; another order for the same name is carried out."""
    gate = tmp_path / "gate"
    gate.touch()
    async with engine(read_adapters_after=str(gate)) as client, asyncio.timeout(60):
        loading = asyncio.create_task(client.load_adapter("one", "anywhere"))
        await asyncio.sleep(0)
        client.unload_adapter("one")
        with pytest.raises(EngineFailed, match="released"):
            await loading
        again = asyncio.create_task(client.load_adapter("one", "anywhere"))
        await check(client, requests(1))
        gate.unlink()
        await again
        await check(client, requests(2))


@pytest.mark.parametrize("kills", [1, 3])
async def test_adapters_survive_a_killed_engine(kills: int) -> None:
    asked = requests(9, max_tokens=400)
    killed = list[bool]()
    async with engine(QUICK, step_seconds=0.005) as client:
        await client.load_adapter("one", "anywhere")
        await client.load_adapter("two", "anywhere")

        async def read(request: Request) -> list[StepOutput]:
            outputs: list[StepOutput] = []
            async for output in client.generate(request):
                outputs.append(output)
                is_next = client.state == "ready" and len(outputs) >= 7 * (len(killed) + 1)
                if request.id == "1" and len(killed) < kills and client.restarts == len(killed) and is_next:
                    killed.append(True)
                    kill(client)
            return outputs

        answers = await asyncio.gather(*map(read, asked))
        assert client.restarts == kills
    assert [tokens_of(outputs) for outputs in answers] == [expected_tokens(request) for request in asked]


async def test_a_restart_brings_what_is_used_now() -> None:
    """Not what the first process began with, and nothing that has become broken keeps the engine from starting."""
    config = {"adapters": (("first", "anywhere"), ("one", "anywhere"))}
    async with configured(config) as client:
        await check(client, [make_request("a", adapter="first"), make_request("b", adapter="one")])
        client.unload_adapter("first")
        await client.load_adapter("two", "anywhere")
        client._adapters.drop("one", "")
        client._adapters.want("one", "broken")
        kill(client)
        await check(client, [make_request("c", adapter="two"), make_request("d")])
        for name in ("first", "one"):
            [refused] = await answer(client, make_request(name, adapter=name))
            assert refused.finish_reason is FinishReason.ERROR
        assert client.restarts == 1


async def test_an_adapter_that_a_restart_cannot_load_is_tried_again(tmp_path: Path) -> None:
    """Requests for it are told why meanwhile; those for the base go on."""
    fails = tmp_path / "fails"
    async with engine(QUICK, step_seconds=0.005, fail_adapters_while=str(fails)) as client, asyncio.timeout(60):
        await client.load_adapter("one", "anywhere")
        running = client.generate(make_request("running", adapter="one", max_tokens=500))
        await anext(running)
        fails.touch()
        kill(client)
        with pytest.raises(Unavailable, match="Input/output error"):
            await rest_of(running)
        await check(client, requests(1))
        with pytest.raises(Unavailable, match="Input/output error"):
            await answer(client, make_request("refused", adapter="one"))
        with pytest.raises(EngineFailed, match="Input/output error"):
            await client.load_adapter("one", "anywhere")
        fails.unlink()
        while client.lacks("one"):
            await asyncio.sleep(0.01)
        await check(client, requests(2))
        fails.touch()
        kill(client)
        await check(client, requests(1))
        fails.unlink()
        kill(client)
        while client.state == "ready":
            await asyncio.sleep(0.01)
        await check(client, requests(2))  # they wait for the new process, which is told of it too
        assert client.restarts == 3


async def test_who_waits_for_an_adapter_is_told_of_the_engine_s_end() -> None:
    async with configured({}, load_seconds=0.3) as client:
        kill(client)
        while client.state == "ready":
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(client.load_adapter("one", "anywhere"))
        await waiting
        await check(client, requests(2))
        kill(client)
        while client.state == "ready":
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(client.load_adapter("two", "anywhere"))
        await asyncio.sleep(0.05)
        await client.stop()
        with pytest.raises(EngineFailed, match="was stopped"):
            await waiting
        with pytest.raises(Unavailable):
            await client.load_adapter("one", "anywhere")


async def test_replicas_adapt_all() -> None:
    def make(number: int, packed: Callable[[], str]) -> EngineClient:
        return EngineClient(
            CONFIG, module="tests.fake_worker", env=environment(step_seconds=0.003), restart_policy=QUICK
        )

    replicas = Replicas(make, 2, most_at_once=4)
    await replicas.start()
    try:
        await replicas.load_adapter("one", "anywhere")
        with pytest.raises(EngineFailed, match="do not fit"):
            await replicas.load_adapter("two", "broken")
        await replicas.load_adapter("two", "anywhere")
        killing = asyncio.get_running_loop().call_later(0.05, partial(kill, replicas.replicas[1]))  # type: ignore[arg-type]
        await check(replicas, requests(12, max_tokens=30))
        await until(lambda: killing.when() and replicas.restarts == 1)
        replicas.unload_adapter("one")
        for at in range(2):
            [refused] = await answer(replicas.replicas[at], make_request("late", adapter="one"))  # type: ignore[arg-type]
            assert refused.finish_reason is FinishReason.ERROR
    finally:
        await replicas.stop()


@asynccontextmanager
async def configured(changes: dict[str, Any], **fake: Any) -> AsyncIterator[EngineClient]:
    restart_policy = replace(DEFAULT_POLICY, backoff_seconds=0.02)
    config = msgspec.structs.replace(CONFIG, **changes)
    client = EngineClient(config, module="tests.fake_worker", env=environment(**fake), restart_policy=restart_policy)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()
