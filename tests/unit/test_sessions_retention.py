"""An expired session is unreadable at once and gone after a sweep; an erased one is in no byte of SQLite's files."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import string
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import NotFound, Unavailable
from service.storage.database.database import Database
from service.storage.database.search_index import Indexed
from service.storage.sessions import (
    Answered,
    Fresh,
    Limits,
    NewMessage,
    NewReply,
    NewTurn,
    NewVote,
    SessionStore,
    StoredAnswer,
    retention,
    search,
)
from service.storage.sessions.claims import Done, Finished
from service.storage.sessions.idempotency import KEPT_SECONDS
from tests.effort import drawn
from tests.sessions import Clock, a_turn, new_database, say

CANARY = "카나리아-9f31c7"


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("sessions.db*"))


def bytes_of(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in files(directory))


async def rows(store: SessionStore) -> int:
    """Of every table, the index included."""
    total = 0
    async with store._database.reading() as connection:
        for name in ("sessions", "messages", "feedback", "idempotency"):
            total += (await connection.exec_driver_sql(f"SELECT count(*) FROM {name}")).scalar_one()
        for name in ("session_grams", "message_grams"):
            index = f"{name}_docsize" if store._database.is_sqlite else name
            total += (await connection.exec_driver_sql(f"SELECT count(*) FROM {index}")).scalar_one()
    return total


async def test_reading_does_not_extend_and_writing_does(store: SessionStore, clock: Clock) -> None:
    session = await store.create("ann", {"ttl_seconds": 100})
    for _ in range(3):
        clock.move(60)
        turn = await say(store, "ann", session.id, "hello")
        assert (turn.session.expires_at - clock.now).total_seconds() == 100
    clock.move(60)
    await store.messages("ann", session.id)
    assert (await store.sessions("ann")).data[0].id == session.id
    clock.move(41)
    with pytest.raises(NotFound):
        await store.get("ann", session.id)
    with pytest.raises(NotFound):
        await store.append_turn("ann", session.id, a_turn())
    assert (await store.sessions("ann")).data == ()


async def test_a_sweep_removes_what_expired_and_nothing_else(store: SessionStore, clock: Clock) -> None:
    kept = await store.create("ann", {"ttl_seconds": 1000})
    await say(store, "ann", kept.id, "stays")
    stay = await rows(store)
    for n in range(120):
        gone = await store.create(f"owner {n % 3}", {"ttl_seconds": 10})
        await say(store, f"owner {n % 3}", gone.id, "goes")
    claim = await store.idempotency.begin("ann", "key", "hash")
    assert isinstance(claim, Fresh)
    clock.move(11)
    assert await store.sweep() == 120
    assert await rows(store) == stay + 1
    clock.move(KEPT_SECONDS)
    assert await store.sweep() == 1  # `kept`, by now
    assert await rows(store) == 0


async def test_others_write_while_much_is_removed(
    store: SessionStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred sessions of sixty messages went in one transaction of 14 s, and everybody else's writes got 503."""
    before, removed = await rows(store), list[int]()
    database, take = store._database, search.remove

    @asynccontextmanager
    async def writing() -> AsyncIterator[AsyncConnection]:
        removed.append(0)
        async with begin() as connection:
            yield connection

    async def noted(connection: AsyncConnection, name: Indexed, owner: str, texts: dict[int, str]) -> None:
        removed[-1] += len(texts) if name == "message_grams" else 0
        await take(connection, name, owner, texts)

    long = await store.create("ann", {}, [NewMessage(f"{n}", "user") for n in range(250)])
    many = [await store.create("ann", {}, [NewMessage(f"{n}", "user") for n in range(60)]) for _ in range(4)]
    begin = database.writing
    monkeypatch.setattr(database, "writing", writing)
    monkeypatch.setattr(search, "remove", noted)
    await store.delete("ann", long.id)
    assert sum(removed) == 250 and max(removed) <= 100
    with pytest.raises(NotFound):
        await store.get("ann", long.id)
    removed.clear()
    assert await store.erase_owner("ann") == len(many)
    assert sum(removed) == 240 and max(removed) <= 100
    assert await rows(store) == before


async def test_a_session_that_is_half_removed_is_gone_for_readers(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object) -> None:
        raise Unavailable("busy", retry_after=5)

    session = await store.create("ann", {}, [NewMessage(f"{n}", "user") for n in range(150)])
    with monkeypatch.context() as patch:
        patch.setattr(retention, "remove_rest", interrupted)
        with pytest.raises(Unavailable):
            await store.delete("ann", session.id)
    with pytest.raises(NotFound):
        await store.get("ann", session.id)
    assert (await store.sessions("ann")).data == ()
    assert await store.sweep() == 1
    assert await rows(store) == 0


async def test_a_sweep_forgets_no_traces(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what goes while a sweep is at work, of what an edit took away, and of a sweep that failed."""
    compacted, after = list[int](), list[Callable[[], Awaitable[object]]]()

    async def compact(database: Database) -> None:
        compacted.append(1)
        if after:
            await after.pop()()

    async def fail() -> None:
        raise Unavailable("a reader holds the log", retry_after=5)

    async def swept() -> bool:
        compacted.clear()
        await store.sweep()
        return bool(compacted)

    monkeypatch.setattr(retention, "compact", compact)
    session, going = await store.create("ann", {"title": "one"}), await store.create("ann")
    turn = await say(store, "ann", session.id, "hello")
    assert [await swept() for _ in range(2)] == [True, False], "the first one clears what was before the start"
    for change in (
        lambda: store.edit_message("ann", session.id, turn.reply.id, content="changed"),
        lambda: store.patch("ann", session.id, {"title": "two"}),
        lambda: store.replace_last_reply("ann", session.id, NewReply("another")),
        lambda: store.delete_message("ann", session.id, turn.messages[0].id),
    ):
        await change()
        assert [await swept() for _ in range(2)] == [True, False]
    await store.patch("ann", session.id, {"title": "three"})
    after.append(lambda: store.delete("ann", going.id))
    assert [await swept() for _ in range(3)] == [True, True, False]
    await store.erase_owner("ann")
    after.append(fail)
    with pytest.raises(Unavailable):
        await store.sweep()
    assert [await swept() for _ in range(2)] == [True, False]


async def test_room_is_counted_without_what_expired(database_url: str, clock: Clock) -> None:
    store = await SessionStore.open(database_url, Limits(max_per_owner=1), clock=clock)
    await store.create("ann", {"ttl_seconds": 10})
    clock.move(11)
    await store.create("ann")
    await store.close()


async def test_deleting_takes_the_kept_answers_along(store: SessionStore) -> None:
    session = await store.create("ann")
    begun = await store.idempotency.begin("ann", "key", "hash")
    assert isinstance(begun, Fresh)
    await store.append_turn("ann", session.id, a_turn(), done=Done(begun.claim, b"answer"))
    await store.delete("ann", session.id)
    assert await rows(store) == 0


@pytest.mark.parametrize("by", ["delete", "expiry", "room"])
async def test_a_removed_answer_takes_along_what_is_kept_for_its_key(database_url: str, clock: Clock, by: str) -> None:
    """And the key is free again. The answer of another key stays."""
    store = await SessionStore.open(database_url, Limits(max_per_owner=1, ttl_seconds=60), clock=clock)
    for owner in ("ann", "bob"):
        begun = await store.idempotency.begin(owner, "key", "hash")
        assert isinstance(begun, Fresh)
        answer = StoredAnswer(f"resp_{owner}", "response", "demo:1", {}, [], {})
        await store.idempotency.finish(Done(begun.claim, owner.encode(), answer))
    if by == "delete":
        await store.answers.delete("ann", "response", "resp_ann")
    elif by == "expiry":
        clock.move(61)
        await store.sweep()
    else:
        await store.answers.add("ann", StoredAnswer("resp_2", "response", "demo:1", {}, [], {}))
    assert isinstance(await store.idempotency.begin("ann", "key", "hash"), Fresh)
    others = await store.idempotency.begin("bob", "key", "hash")
    assert isinstance(others, Fresh if by == "expiry" else Finished)
    await store.close()


async def test_erase_owner(store: SessionStore, clock: Clock) -> None:
    await store.create("ann", {"ttl_seconds": 1})
    await store.create("ann")
    await store.idempotency.begin("ann", "key", "hash")
    clock.move(2)
    other = await store.create("bob")
    assert await store.erase_owner("ann") == 2
    assert (await store.sessions("bob")).data == (other,) and await rows(store) == 2


@pytest.mark.parametrize("seed", range(drawn(1, 4)))
async def test_no_byte_is_left_of_what_is_erased(tmp_path: Path, seed: int) -> None:
    """Between random neighbours that come, change and go, so that rows move between pages; with readers at work."""
    draw = random.Random(seed)
    url = new_database("sqlite", tmp_path)
    store, reader = await SessionStore.open(url), await SessionStore.open(url)

    def filler() -> str:
        return "".join(draw.choices(string.ascii_letters, k=draw.choice([5, 300, 900, 5000])))

    session = await store.create("ann", {"metadata": {"k": CANARY}, "system": CANARY})
    others = [(await store.create("bob")).id for _ in range(5)]
    growing: list[tuple[str, str]] = []
    for n in range(40):
        begun = await store.idempotency.begin("ann", str(n), "hash")
        assert isinstance(begun, Fresh)
        answered = Answered(context={"notes": [CANARY + filler()]}, model=CANARY, answer_id=f"gen-{n}")
        turn = NewTurn((NewMessage(filler() + CANARY),), NewReply(CANARY + filler(), answered), {"at": CANARY})
        stored = await store.append_turn("ann", session.id, turn, done=Done(begun.claim, CANARY.encode()))
        for rating in (1, -1):
            await store.feedback.vote("ann", NewVote(f"gen-{n}", rating, comment=CANARY + filler()[:1500]))
        await store.edit_message("ann", session.id, stored.reply.id, content=CANARY + filler())
        noise = await say(store, "bob", draw.choice(others), filler(), "short")
        growing.append((noise.session.id, noise.reply.id))
        await say(store, "ann", session.id, CANARY, CANARY)
    for other, message in growing:  # pages overflow, and the rows beside move
        await store.edit_message("bob", other, message, content="y" * draw.randrange(400, 1500))
    await reader.history("ann", session.id)
    assert bytes_of(tmp_path).count(CANARY.encode()) > 100
    before = [await store.copies.export("bob", other) for other in others]
    await store.erase("ann", session.id)
    assert [path.name for path in files(tmp_path)] == ["sessions.db", "sessions.db-shm", "sessions.db-wal"]
    assert bytes_of(tmp_path).count(CANARY.encode()) == 0
    assert [await reader.copies.export("bob", other) for other in others] == before
    async with store._database.alone() as connection:  # written anew, without a free page
        assert (await connection.exec_driver_sql("PRAGMA freelist_count")).scalar_one() == 0
    assert len((await store.sessions("bob", query="a")).data) == 5
    await store.close()
    await reader.close()


def scattered(path: Path, seed: int) -> None:
    """A file whose rows with the canary were deleted, after rows that come, grow and go moved them between pages."""
    draw = random.Random(seed)
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", "secure_delete=ON", "synchronous=OFF"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, id TEXT UNIQUE, content TEXT)")
    for number in range(600):
        said = "x" * draw.choice([5, 50]) + draw.choice([CANARY, "", "", "", ""]) + "y" * draw.choice([5, 50])
        connection.execute("INSERT INTO rows VALUES (?, ?, ?)", (number, draw.randbytes(12).hex(), said))
        other = (draw.randrange(number + 1), CANARY)
        if draw.random() < 0.5:
            size = draw.choice([1, 400, 1500])
            connection.execute(
                "UPDATE rows SET content = ? WHERE number = ? AND NOT instr(content, ?)", ("z" * size, *other)
            )
        if draw.random() < 0.3:
            connection.execute("DELETE FROM rows WHERE number = ? AND NOT instr(content, ?)", other)
    connection.execute("DELETE FROM rows WHERE instr(content, ?)", (CANARY,))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


async def test_what_moved_rows_leave_behind_goes_as_well(tmp_path: Path) -> None:
    """SQLite's `secure_delete` leaves copies of rows that had moved; writing the file anew does not."""
    before = 0
    for seed in range(24):
        path = tmp_path / f"sessions.db-{seed}"
        scattered(path, seed)
        before += path.read_bytes().count(CANARY.encode())
        database = Database(f"sqlite+aiosqlite:///{path}", 5)
        await database.rewrite()
        await database.truncate_log()
        await database.close()
    assert before > 0, "secure_delete alone was enough in every file: rewriting is for nothing"
    assert bytes_of(tmp_path).count(CANARY.encode()) == 0


async def test_the_index_forgets_after_a_sweep(tmp_path: Path, clock: Clock) -> None:
    """The pairs of an erased text are in no list of the index either."""
    store = await SessionStore.open(new_database("sqlite", tmp_path), clock=clock)
    session = await store.create("ann", {"ttl_seconds": 10})
    other = await store.create("ann")
    await say(store, "ann", session.id, "\uf8ff\uf8fe")  # a pair that nothing else has: f8ff and f8fe in the index
    for n in range(20):
        await say(store, "ann", other.id, f"neighbour {n}")
    words = "SELECT count(*) FROM message_grams_data WHERE instr(block, CAST('f8fe' AS BLOB)) > 0"

    async def count() -> int:
        async with store._database.reading() as connection:
            found: int = (await connection.exec_driver_sql(words)).scalar_one()
            return found

    assert await count() > 0
    clock.move(11)
    await store.sweep()
    assert await count() == 0
    await store.close()


async def test_writers_go_on_beside_a_sweep(store: SessionStore, clock: Clock) -> None:
    for _ in range(30):
        gone = await store.create("ann", {"ttl_seconds": 1})
        await say(store, "ann", gone.id, "goes")
    kept = await store.create("ann", {"ttl_seconds": 1000})
    clock.move(2)
    swept, *_ = await asyncio.gather(store.sweep(), *(say(store, "ann", kept.id, f"{n}") for n in range(10)))
    assert swept == 30 and (await store.get("ann", kept.id)).message_count == 20


async def test_no_byte_is_left_of_a_deleted_document_and_of_a_replaced_vote_after_a_sweep(tmp_path: Path) -> None:
    store = await SessionStore.open(new_database("sqlite", tmp_path))
    session = await store.create("ann")
    await store.append_turn("ann", session.id, a_turn(answer_id="gen-1"))
    for remove in ("document", "vote"):
        await store.sweep()
        if remove == "document":
            await store.knowledge.delete("ann", (await store.knowledge.add("ann", CANARY)).id)
        else:
            await store.feedback.vote("ann", NewVote("gen-1", 1, comment=CANARY))
            await store.feedback.vote("ann", NewVote("gen-1", -1))
        assert CANARY.encode() in bytes_of(tmp_path)
        await store.sweep()
        assert CANARY.encode() not in bytes_of(tmp_path), remove
    await store.close()


@pytest.mark.parametrize("by", ["delete", "expiry", "room"])
async def test_no_byte_is_left_of_a_removed_answer_after_a_sweep(tmp_path: Path, by: str) -> None:
    clock = Clock()
    store = await SessionStore.open(new_database("sqlite", tmp_path), Limits(max_per_owner=1), clock=clock)
    await store.sweep()  # what a process that starts may find is cleared
    said = [{"id": "msg_1", "content": CANARY}]
    await store.answers.add("ann", StoredAnswer("resp_1", "response", "demo:1", {}, said, {"output": CANARY}))
    assert CANARY.encode() in bytes_of(tmp_path)
    if by == "delete":
        await store.answers.delete("ann", "response", "resp_1")
    elif by == "expiry":
        clock.move(31 * 86400)
    else:
        await store.answers.add("ann", StoredAnswer("resp_2", "response", "demo:1", {}, [], {}))
    await store.sweep()
    assert CANARY.encode() not in bytes_of(tmp_path)
    await store.close()
