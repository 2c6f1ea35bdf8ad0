"""One turn of a session at a time, within a process and on PostgreSQL over all that share it; one generation for a
key, its answer byte for byte, also where the first to ask has died."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from service.errors import Conflict, InvalidRequest, NotFound, Unavailable
from service.storage.sessions import Finished, Fresh, InProgress, NewReply, SessionStore, idempotency
from service.storage.sessions.claims import LEASE_SECONDS, Claim, Done
from service.storage.sessions.idempotency import KEPT_SECONDS
from tests.sessions import Clock, a_turn, contents, needs_postgresql, new_database

ANSWER = b'data: {"text": "\xea\xb0\x80\x00"}\n\n'


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


@needs_postgresql
async def test_what_is_no_id_takes_no_lock_and_frees_none(shared: list[SessionStore]) -> None:
    """The database refuses such a text; the locks of all turns are on the connection that asks it."""
    here, there = shared
    async with here.turn_lock("ann", "s"):
        for wrong in ("s_\x00", "s_\ud800", "가"):
            with pytest.raises(NotFound):
                await here.turn_lock("ann", wrong).__aenter__()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2), there.turn_lock("ann", "s"):
                pytest.fail("it is taken")


async def fresh(store: SessionStore, key: str = "key", body: str = "hash") -> Claim:
    begun = await store.idempotency.begin("ann", key, body)
    assert isinstance(begun, Fresh)
    return begun.claim


async def test_the_answer_is_kept_with_the_turn(store: SessionStore) -> None:
    session = await store.create("ann")
    claim = await fresh(store)
    assert isinstance(await store.idempotency.begin("ann", "key", "hash"), InProgress)
    await store.append_turn("ann", session.id, a_turn(), done=Done(claim, ANSWER))
    assert await store.idempotency.begin("ann", "key", "hash") == Finished(ANSWER)
    claim = await fresh(store, "key 2")
    await store.replace_last_reply("ann", session.id, NewReply("again"), done=Done(claim, b"2"))
    assert await store.idempotency.begin("ann", "key 2", "hash") == Finished(b"2")


async def test_without_the_turn_there_is_no_answer(store: SessionStore) -> None:
    claim = await fresh(store)
    with pytest.raises(NotFound):
        await store.append_turn("ann", "s_none", a_turn(), done=Done(claim, ANSWER))
    assert isinstance(await store.idempotency.begin("ann", "key", "hash"), InProgress)
    await store.idempotency.abandon(claim)
    await fresh(store)


async def test_another_body_is_a_conflict(store: SessionStore) -> None:
    claim = await fresh(store)
    with pytest.raises(Conflict, match="another body"):
        await store.idempotency.begin("ann", "key", "other")
    await store.idempotency.finish(Done(claim, ANSWER))
    with pytest.raises(Conflict, match="another body"):
        await store.idempotency.begin("ann", "key", "other")


async def test_one_of_many_gets_to_work(store: SessionStore, database_url: str, clock: Clock) -> None:
    other = await SessionStore.open(database_url, clock=clock)
    begun = await asyncio.gather(*(each.idempotency.begin("ann", "key", "hash") for each in (store, other) * 6))
    assert sorted(type(each).__name__ for each in begun) == ["Fresh"] + ["InProgress"] * 11
    await other.close()


async def test_who_comes_second_waits(store: SessionStore) -> None:
    claim = await fresh(store)
    waiting = asyncio.create_task(store.idempotency.wait("ann", "key", "hash", 20))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await store.idempotency.finish(Done(claim, ANSWER))
    assert await waiting == Finished(ANSWER)
    await fresh(store, "long")
    with pytest.raises(Unavailable):
        await store.idempotency.wait("ann", "long", "hash", 0.2)


async def test_the_dead_are_followed(store: SessionStore, clock: Clock) -> None:
    session = await store.create("ann")
    slow = await fresh(store)
    clock.move(LEASE_SECONDS - 1)
    await store.idempotency.renew(slow)
    clock.move(LEASE_SECONDS - 1)
    assert isinstance(await store.idempotency.begin("ann", "key", "hash"), InProgress)
    clock.move(2)
    claim = await fresh(store)
    assert claim.token != slow.token
    for call in (
        store.append_turn("ann", session.id, a_turn("slow"), done=Done(slow, b"slow")),
        store.idempotency.renew(slow),
        store.idempotency.finish(Done(slow, b"slow")),
    ):
        with pytest.raises(Conflict, match="took this Idempotency-Key over"):
            await call
    await store.idempotency.abandon(slow)
    await store.append_turn("ann", session.id, a_turn("quick"), done=Done(claim, b"quick"))
    assert await store.idempotency.begin("ann", "key", "hash") == Finished(b"quick")
    assert (await contents(store, "ann", session.id))[::2] == ["quick"]


async def test_kept_for_a_day(store: SessionStore, clock: Clock) -> None:
    claim = await fresh(store)
    clock.move(LEASE_SECONDS / 2)
    await store.idempotency.finish(Done(claim, ANSWER))
    clock.move(KEPT_SECONDS - 1)
    assert await store.idempotency.begin("ann", "key", "hash") == Finished(ANSWER)
    clock.move(1)
    await fresh(store, body="another body")


async def test_of_a_response_that_is_too_large_the_fact_is_kept(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repetition is told, and stores no second turn."""
    monkeypatch.setattr(idempotency, "MOST_BYTES", len(ANSWER))
    session = await store.create("ann")
    await store.append_turn("ann", session.id, a_turn(), done=Done(await fresh(store), ANSWER + b"!"))
    for call in (store.idempotency.begin("ann", "key", "hash"), store.idempotency.wait("ann", "key", "hash", 1)):
        with pytest.raises(Conflict, match="too large to be kept"):
            await call
    await store.idempotency.finish(Done(await fresh(store, "key 2"), ANSWER))
    assert await store.idempotency.begin("ann", "key 2", "hash") == Finished(ANSWER)


async def test_an_owner_s_newest_responses_are_kept(
    store: SessionStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to so many bytes, rows included; what others keep and what still runs stays."""
    size = 1000 + idempotency._ROW_BYTES
    monkeypatch.setattr(idempotency, "MOST_OWN_BYTES", 3 * size)
    monkeypatch.setattr(idempotency, "_LOOK_BYTES", size)
    begun = await store.idempotency.begin("bob", "0", "hash")
    assert isinstance(begun, Fresh)
    await store.idempotency.finish(Done(begun.claim, bytes(1000)))
    await fresh(store, "running")
    for number in range(5):
        clock.move(1)
        await store.idempotency.finish(Done(await fresh(store, str(number)), bytes(1000)))
    kept = {key: await store.idempotency.begin("ann", key, "hash") for key in ("0", "1", "2", "3", "4", "running")}
    assert [type(each) for each in kept.values()] == [Fresh] * 2 + [Finished] * 3 + [InProgress]
    assert isinstance(await store.idempotency.begin("bob", "0", "hash"), Finished)


async def test_a_key_that_cannot_be_kept(store: SessionStore) -> None:
    for key in ("x" * 256, "a\x00b", "\udc80"):
        with pytest.raises(InvalidRequest, match="key"):
            await store.idempotency.begin("ann", key, "hash")
