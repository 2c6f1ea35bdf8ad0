"""One turn of a session at a time: within a process, and on PostgreSQL over all that share it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from service.storage.sessions import SessionStore
from tests.sessions import needs_postgresql, new_database


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[list[SessionStore]]:
    """Two instances on one PostgreSQL."""
    url = new_database("postgresql", tmp_path)
    stores = [await SessionStore.open(url) for _ in range(2)]
    yield stores
    for store in stores:
        await store.close()


async def turns_at_once(stores: list[SessionStore]) -> int:
    """The most turns that were taken at one moment."""
    taken, most = 0, 0

    async def turn(store: SessionStore) -> None:
        nonlocal taken, most
        async with store.turn_lock("ann", "s"):
            taken += 1
            most = max(most, taken)
            await asyncio.sleep(0.005)
            taken -= 1

    await asyncio.gather(*(turn(store) for store in stores * 4))
    return most


async def test_one_at_a_time_in_a_process(store: SessionStore) -> None:
    assert await turns_at_once([store]) == 1
    async with store.turn_lock("ann", "s"), store.turn_lock("ann", "t"), store.turn_lock("bob", "s"):
        pass  # other sessions do not wait
    assert not store._turns._lines


@needs_postgresql
async def test_one_at_a_time_over_two_instances(shared: list[SessionStore]) -> None:
    assert await turns_at_once(shared) == 1


@needs_postgresql
async def test_who_leaves_the_line_leaves_no_lock(shared: list[SessionStore]) -> None:
    here, there = shared
    async with here.turn_lock("ann", "s"):
        for milliseconds in range(30):
            with suppress(TimeoutError):
                async with asyncio.timeout(milliseconds / 1000), there.turn_lock("ann", "s"):
                    pytest.fail("it is taken")
    for milliseconds in range(30):  # an attempt that succeeds while its caller goes
        with suppress(TimeoutError):
            async with asyncio.timeout(milliseconds / 10_000), there.turn_lock("ann", "s"):
                await asyncio.sleep(1)
    async with asyncio.timeout(60), here.turn_lock("ann", "s"):
        pass


@needs_postgresql
async def test_the_dead_hold_nothing(shared: list[SessionStore]) -> None:
    """A lost connection frees its locks; whoever held one goes on to the revision's judgement, and may lock again."""
    here, there = shared
    async with here.turn_lock("ann", "s"), here.turn_lock("ann", "t"):
        waiting = asyncio.create_task(there.turn_lock("ann", "s").__aenter__())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        async with there._database.alone() as connection:
            await connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted")
            )
        async with asyncio.timeout(60):
            await waiting
        async with here.turn_lock("ann", "u"):
            pass
    async with here.turn_lock("ann", "t"):
        pass
