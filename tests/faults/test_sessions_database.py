"""The database is locked, full, damaged or gone: the caller is told so, and nothing is half done."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import event

from service.errors import NotFound, StorageFull, Unavailable
from service.storage.database.database import Database
from service.storage.sessions import NewVote, SessionStore
from tests import postgres
from tests.sessions import a_turn, contents, needs_postgresql, new_database, say

PATIENCE = 0.3


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SessionStore]:
    opened = await SessionStore.open(new_database("sqlite", tmp_path), patience=PATIENCE)
    yield opened
    await opened.close()


async def test_locked(store: SessionStore, tmp_path: Path) -> None:
    session = await store.create("ann")
    holder = sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    started = asyncio.get_running_loop().time()
    refused = await asyncio.gather(*(say(store, "ann", session.id, "x") for _ in range(5)), return_exceptions=True)
    assert asyncio.get_running_loop().time() - started < 60
    assert all(isinstance(each, Unavailable) and each.retry_after for each in refused)
    assert (await store.get("ann", session.id)).message_count == 0  # readers go on
    holder.execute("ROLLBACK")
    holder.close()
    await say(store, "ann", session.id, "after")
    assert await contents(store, "ann", session.id) == ["after", "네"]


@pytest.mark.parametrize("stands_still", [True, False])
async def test_a_process_that_stood_still_has_waited_for_nothing(store: SessionStore, stands_still: bool) -> None:
    database = store._database

    async def write(seconds: float) -> None:
        async with database.writing():
            await asyncio.sleep(seconds)

    first = asyncio.create_task(write(PATIENCE / 8 if stands_still else 20.0))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(write(0))
    await asyncio.sleep(0.01)
    if stands_still:
        time.sleep(3 * PATIENCE)  # noqa: ASYNC251 - the whole process stands still
        await asyncio.gather(first, second)
    else:
        with pytest.raises(Unavailable, match="busy"):
            await second
        first.cancel()


async def test_full(store: SessionStore) -> None:
    session = await store.create("ann")
    await say(store, "ann", session.id, "before")
    limit = "PRAGMA max_page_count=%d"
    pages = 200

    def small(connection: object, record: object, proxy: object) -> None:
        connection.cursor().execute(limit % pages)  # type: ignore[attr-defined]

    event.listen(store._database.engine.sync_engine, "checkout", small)
    told = 0
    for n in range(40):
        try:
            await store.append_turn("ann", session.id, a_turn(f"{n}", "x" * 100_000))
        except StorageFull as error:
            told += 1
            assert error.status == 507
    said = await contents(store, "ann", session.id)
    assert told > 10 and len(said) == (await store.get("ann", session.id)).message_count
    assert [reply == "네" or len(reply) == 100_000 for reply in said[1::2]] == [True] * (len(said) // 2)
    pages = 1_000_000
    await say(store, "ann", session.id, "after")
    assert (await contents(store, "ann", session.id))[-2] == "after"


async def test_each_write_of_a_turn_fails_once(store: SessionStore, tmp_path: Path) -> None:
    """The log may grow by so many bytes, from none to all of a turn: the turn is there whole, or not at all, and it is
    told so. A store that is opened anew, as after a kill, says the same."""
    session = await store.create("ann")
    log, soft, hard = tmp_path / "sessions.db-wal", *resource.getrlimit(resource.RLIMIT_FSIZE)
    said, told, n = list[str](), list[bool](), 0
    while told.count(True) < 3:
        n += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 700 * n, hard))
        try:
            await store.append_turn("ann", session.id, a_turn(f"{n}", "x" * 10_000))
            said += [f"{n}", "x" * 10_000]
            told.append(True)
        except Unavailable:
            told.append(False)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await contents(store, "ann", session.id) == said, n
        again = await SessionStore.open(f"sqlite+aiosqlite:///{tmp_path}/sessions.db", patience=PATIENCE)
        assert await contents(again, "ann", session.id) == said, n
        await again.close()
    assert told.count(False) > 10


@pytest.mark.nightly
async def test_votes_on_a_full_disk(store: SessionStore) -> None:
    """A vote is stored whole or refused; one that a vote would replace stays."""
    session = await store.create("ann")
    for n in range(300):
        await store.append_turn("ann", session.id, a_turn(f"{n}", answer_id=f"gen-{n}"))
    async with store._database.reading() as connection:
        present = (await connection.exec_driver_sql("PRAGMA page_count")).scalar_one()

    def small(connection: object, record: object, proxy: object) -> None:
        connection.cursor().execute(f"PRAGMA max_page_count={present + 20}")  # type: ignore[attr-defined]

    event.listen(store._database.engine.sync_engine, "checkout", small)
    kept, told = [], 0
    for n in range(300):
        try:
            await store.feedback.vote("ann", NewVote(f"gen-{n}", 1, comment="x" * 2000))
            kept.append(f"gen-{n}")
        except StorageFull as error:
            told += 1
            assert error.status == 507
    assert kept and told
    with pytest.raises(StorageFull):
        await store.feedback.vote("ann", NewVote(kept[0], -1, comment="€" * 2000))
    page = await store.feedback.all("ann", limit=100)
    assert len(page.data) == len(kept) and {vote.rating for vote in page.data} == {1}
    await store.delete("ann", session.id)
    assert (await store.feedback.all("ann")).data == ()


async def test_damaged(store: SessionStore, tmp_path: Path) -> None:
    session = await store.create("ann")
    await say(store, "ann", session.id, "x" * 20_000)
    await store.close()
    path = tmp_path / "sessions.db"
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(Unavailable):
        opened = await SessionStore.open(f"sqlite+aiosqlite:///{path}", patience=PATIENCE)
        try:
            await opened.history("ann", session.id)
        finally:
            await opened.close()


async def test_no_directory_to_write_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable):
        await SessionStore.open(f"sqlite+aiosqlite:///{tmp_path}/file/sessions.db", patience=PATIENCE)


@needs_postgresql
async def test_the_server_goes_and_comes_back() -> None:
    """A server of its own, killed as by `kill -9` while turns are written."""
    server = postgres.Server()
    store = None
    try:
        store = await SessionStore.open(server.new_database(), patience=2)
        session = await store.create("ann")
        acknowledged: list[str] = []

        async def write() -> None:
            for n in range(2000):
                await say(store, "ann", session.id, str(n))
                acknowledged.append(str(n))

        writing = asyncio.create_task(write())
        while len(acknowledged) < 20:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.stop)
        with pytest.raises(Unavailable):
            await writing
        for _ in range(3):
            with pytest.raises(Unavailable) as told:
                await store.get("ann", session.id)
            assert told.value.retry_after
        await asyncio.to_thread(server.start)
        said = (await contents(store, "ann", session.id))[::2]
        assert said[: len(acknowledged)] == acknowledged and len(said) <= len(acknowledged) + 1
        await say(store, "ann", session.id, "after")
        with pytest.raises(NotFound):
            await store.get("bob", session.id)
    finally:
        if store is not None:
            await store.close()
        server.remove()


@needs_postgresql
async def test_a_read_only_server() -> None:
    """As after a failover to a standby: reads go on, and writes again when the server takes them."""
    url = postgres.server().new_database()
    store = await SessionStore.open(url, patience=PATIENCE)
    session = await store.create("ann")

    async def become(read_only: str) -> None:
        """Connections stay as they are."""
        beside = Database(url, patience=5)
        async with beside.alone() as connection:
            name = (await connection.exec_driver_sql("SELECT current_database()")).scalar_one()
            await connection.exec_driver_sql("SET default_transaction_read_only = off")
            await connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {read_only}')
        await beside.close()

    await become("on")
    await store._database.engine.dispose()
    for _ in range(2):
        with pytest.raises(Unavailable, match="read-only") as told:
            await say(store, "ann", session.id, "x")
        assert told.value.retry_after
        assert (await store.get("ann", session.id)).message_count == 0
    await become("off")
    with suppress(Unavailable):  # a connection of before
        await say(store, "ann", session.id, "after")
    await say(store, "ann", session.id, "after")
    assert (await contents(store, "ann", session.id))[-2] == "after"
    await store.close()


@needs_postgresql
async def test_a_locked_row_holds_nobody_for_long() -> None:
    url = postgres.server().new_database()
    store = await SessionStore.open(url, patience=PATIENCE)
    session, other = await store.create("ann"), await store.create("ann")
    async with store._database.writing() as holder:
        await store._owned("ann").session(holder, session.id, lock=True)
        with pytest.raises(Unavailable):
            await say(store, "ann", session.id, "x")
        await say(store, "ann", other.id, "goes on")
        assert (await store.get("ann", session.id)).message_count == 0
    await say(store, "ann", session.id, "after")
    await store.close()
