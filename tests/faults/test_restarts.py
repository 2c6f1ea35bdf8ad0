"""Engines that die again and again: nobody else's request fails, and the engine always comes back. Real processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from models.manifest import Manifest
from service.deployments.deployment import DeploymentState
from service.deployments.engine_options import EngineOptions
from service.engine.client.client import EngineClient
from service.engine.client.engine import EngineFailed, EngineState
from service.engine.protocol.config import EngineConfig
from service.errors import DosirakError, Unavailable
from tests.fakes import expected_tokens, make_request, tokens_of
from tests.faults.test_engine_process import HANGS, POISON, QUICK, answer, client_of, engine, kill
from tests.unit.test_deployments import World, publish_with_tokenizer
from tests.waiting import block_until, until


async def until_ready(client: EngineClient) -> None:
    async with asyncio.timeout(60):
        while client.state is not EngineState.READY:
            await asyncio.sleep(0.005)


async def test_a_burst_of_kills_fails_nobody() -> None:
    """Six deaths within seconds, under load, some of them at once after the start."""
    stop = asyncio.Event()
    answered = 0
    async with engine(QUICK, step_seconds=0.005) as client:

        async def ask(name: int) -> None:
            nonlocal answered
            for number in itertools.count():
                request = make_request(f"{name} {number}", [name, number % 90, 3], max_tokens=20)
                assert tokens_of(await answer(client, request)) == expected_tokens(request)
                answered += 1
                if stop.is_set():
                    return

        clients = [asyncio.create_task(ask(name)) for name in range(8)]
        for number in range(6):
            await until_ready(client)
            seen = answered
            while number % 2 and answered == seen and not any(each.done() for each in clients):
                await asyncio.sleep(0.005)
            kill(client)
            while client.restarts == number and not any(each.done() for each in clients):
                await asyncio.sleep(0.005)
        stop.set()
        await asyncio.gather(*clients)
        assert (client.restarts, client.state) == (6, EngineState.READY)


async def test_a_request_that_kills_engines_does_so_once_however_often_it_is_sent() -> None:
    """A client's own retries, with another id and another seed each, cost no more engines."""
    innocent = make_request("innocent", [1, 2], max_tokens=100)
    async with engine(QUICK, step_seconds=0.005, die_on_token=POISON) as client:
        running = asyncio.create_task(answer(client, innocent))
        for number in range(5):
            try:
                await answer(client, make_request(f"poison {number}", [POISON], seed=number))
            except DosirakError as error:
                assert (error.code, error.status) == ("engine_killed", 422), error.message
        assert tokens_of(await running) == expected_tokens(innocent)
        assert (client.restarts, client.state) == (3, EngineState.READY)


async def test_a_hang_is_noticed_after_its_client_has_left(tmp_path: Path) -> None:
    hung = tmp_path / "hung"
    policy = replace(HANGS, unforecast_step_seconds=0.4)
    async with engine(policy, hang_on_token=POISON, hung_file=str(hung)) as client:
        leaving = asyncio.create_task(answer(client, make_request("poison", [POISON])))
        await until(hung.exists)
        leaving.cancel()
        while not client.restarts:
            await asyncio.sleep(0.005)
        assert await answer(client, make_request("a"))


async def test_a_restart_that_cannot_load_is_tried_until_it_can(tmp_path: Path) -> None:
    """No memory for a while, say: the state tells why, and a request that has begun waits and goes on."""
    full = tmp_path / "full"
    request = make_request("a", [1, 2], max_tokens=50)
    async with engine(QUICK, step_seconds=0.005, fail_load_while=str(full)) as client:
        stream = client.generate(request)
        outputs = [await anext(stream)]
        full.touch()
        kill(client)
        while "could not be started again yet: MemoryError" not in client.why_not_ready:
            assert client.state in (EngineState.READY, EngineState.RESTARTING)
            await asyncio.sleep(0.005)
        late = asyncio.create_task(answer(client, make_request("late", [3])))
        full.unlink()
        outputs += [output async for output in stream]
        assert tokens_of(await late) == expected_tokens(make_request("late", [3]))
        assert (client.state, client.why_not_ready) == (EngineState.READY, "")
    assert tokens_of(outputs) == expected_tokens(request)


async def test_an_engine_that_died_a_moment_ago_has_not_been_away_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel knows of the death at once, the event loop when it gets to it."""
    request = make_request("a", max_tokens=400)
    async with engine(replace(QUICK, wait_seconds=0.05), step_seconds=0.005) as client:
        stream = client.generate(request)
        outputs = [await anext(stream)]
        await asyncio.sleep(0.1)
        kill(client)
        block_until(lambda: client.state is EngineState.RESTARTING)  # in this turn of the loop
        client._give_up(time.monotonic() - 0.05)
        monkeypatch.setattr(client, "_give_up", lambda before: None)
        outputs += [output async for output in stream]
    assert tokens_of(outputs) == expected_tokens(request)


async def test_an_engine_that_was_ready_too_late_has_been_away_since_its_death(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(replace(QUICK, wait_seconds=0.2), step_seconds=0.005) as client:
        supervisor, boots = client._supervisor, list[int]()

        async def late(config: EngineConfig) -> None:
            boots.append(1)
            if len(boots) == 1:
                assert supervisor.info is not None
                supervisor._go(supervisor.info)
            raise EngineFailed("it was killed for being late")

        begun = client.generate(make_request("begun", max_tokens=5000))
        await anext(begun)
        monkeypatch.setattr(supervisor, "_boot", late)
        kill(client)
        async with asyncio.timeout(60):
            with pytest.raises(Unavailable, match="try again later"):
                async for _ in begun:
                    pass
        assert client.restarts == 0 and len(boots) > 1


async def test_a_request_waits_for_an_engine_so_long_and_no_longer(tmp_path: Path) -> None:
    full = tmp_path / "full"
    async with engine(replace(QUICK, wait_seconds=0.5), step_seconds=0.005, fail_load_while=str(full)) as client:
        begun = client.generate(make_request("begun", max_tokens=5000))
        await anext(begun)
        full.touch()
        kill(client)
        while client.state is EngineState.READY:
            await asyncio.sleep(0.001)
        for stream in (begun, client.generate(make_request("late"))):
            with pytest.raises(Unavailable, match="try again later") as refused:
                async for _ in stream:
                    pass
            assert refused.value.retry_after
        full.unlink()
        await until_ready(client)
        assert await answer(client, make_request("again"))


async def test_the_state_is_true_from_the_moment_of_the_death() -> None:
    """Also before the event loop has heard of it: a probe that is answered in the same turn must not say ready."""
    async with engine(QUICK) as client:
        assert client.pid is not None
        process = os.pidfd_open(client.pid)
        kill(client)
        select.select([process], [], [])  # the event loop stands still
        os.close(process)
        assert client.state is EngineState.RESTARTING
        await until_ready(client)


async def test_a_crash_of_the_version_that_is_loading_leaves_the_old_one_answering(tmp_path: Path) -> None:
    class Swapped(World):
        def engine(self, manifest: Manifest, promised_bytes: int, options: EngineOptions) -> EngineClient:  # type: ignore[override]
            return client_of(QUICK, load_seconds=60.0 if manifest.version == "3" else 0.0)

    world = await Swapped(tmp_path).started()
    try:
        old = await world.deployments.ensure_loaded("demo")
        publish_with_tokenizer(world.repository, "three")
        assert await world.deployments.ensure_loaded("demo") is old
        [loading] = [each for each in world.deployments.all() if each.state is DeploymentState.LOADING]
        await until(lambda: loading.engine.pid is not None)
        os.kill(loading.engine.pid or 0, signal.SIGKILL)
        await until(lambda: loading.state is DeploymentState.FAILED)
        assert "exit code -9 while it was loading" in loading.failure
        assert await world.deployments.ensure_loaded("demo") is old and world.deployments.ready
        request = make_request("a")
        assert tokens_of([output async for output in old.generate(request)]) == expected_tokens(request)
    finally:
        await world.deployments.stop()
