"""A profile of an engine process that dies, hangs, is stopped or gets no work: it ends with its reason, always."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from service.engine.client.client import EngineClient
from service.engine.client.engine import EngineFailed
from service.engine.protocol.messages import Profile
from service.errors import Unavailable
from tests.fakes import make_request
from tests.faults.test_engine_process import QUICK, answer, client_of, engine, kill
from tests.profiles import files_of
from tests.waiting import until


def order(directory: Path, steps: int = 5, patience: float = 60.0, id: str = "profile-1") -> Profile:
    return Profile(id, str(directory), steps, patience_seconds=patience)


async def begun(client: EngineClient, asked: Profile) -> asyncio.Task[object]:
    task: asyncio.Task[object] = asyncio.create_task(client.profile(asked))
    await asyncio.sleep(0.05)
    return task


async def test_steps_of_a_living_engine(tmp_path: Path) -> None:
    async with engine() as client:
        task = await begun(client, order(tmp_path, 5))
        assert not task.done()
        await answer(client, make_request("a", max_tokens=8))
        ended = await task
    assert (ended.steps, ended.tokens, ended.error) == (5, 3 + 4, "")  # type: ignore[attr-defined]
    assert "piece-0000.json" in files_of(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_death_ends_the_profile_and_no_answer(tmp_path: Path, number: signal.Signals) -> None:
    async with engine(QUICK, step_seconds=0.01) as client:
        task = await begun(client, order(tmp_path, 1000))
        answering = asyncio.create_task(answer(client, make_request("a", max_tokens=400)))
        await until(lambda: client.stats.steps_total > 3)
        kill(client, number)
        with pytest.raises(EngineFailed, match="the engine process died"):
            await task
        await answering
        await until(lambda: client.state == "ready")
        ended = await begun(client, order(tmp_path, 1))
        await answer(client, make_request("b"))
        await ended


async def test_a_stop_ends_the_profile(tmp_path: Path) -> None:
    client = client_of()
    await client.start()
    task = await begun(client, order(tmp_path))
    await client.stop()
    with pytest.raises(EngineFailed, match="stopped"):
        await task
    with pytest.raises(Unavailable):
        await client.profile(order(tmp_path))
