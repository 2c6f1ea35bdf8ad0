"""This test measures the session store: `python -m loadtest.sessions [--url URL] [--sessions 100000]`.

It measures lists of all pages, searches, turns one by one and eight at a time, bytes of disk per turn, and the time of
a sweep and an erasure. `--kills 100` instead kills writers that often and checks the acknowledged turns. Without a URL
the database is a file in a temporary directory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from statistics import median, quantiles

from sqlalchemy import text

from loadtest import session_crashes
from service.storage.sessions import Answered, Limits, NewMessage, NewReply, NewTurn, SessionStore, search
from service.storage.sessions.change import text_of
from service.storage.sessions.rows import columns_of, stored, stored_reply
from service.storage.sessions.values import new_session_id

OWNER = "measured"
WORDS = (
    "점심 저녁 도시락 김치찌개 불고기 비빔밥 주문 배달 얼마 내일 두 개 알레르기 땅콩 없이 please lunch box order two"
)
_BATCH = 1000


def turn_of(draw: random.Random) -> NewTurn:
    """About 60 characters asked, 200 answered, and a receipt of the usual size."""
    asked, answer = (" ".join(draw.choices(WORDS.split(), k=count)) for count in (14, 48))
    receipt = {
        "policy": "window",
        "window": 2048,
        "used": 1432,
        "parts": {"template": 12, "system": 40, "documents": 0, "summary": 0, "history": 1290, "current": 90},
        "kept": [f"m_{draw.getrandbits(128):032x}" for _ in range(8)],
        "dropped": [],
    }
    usage = {"prompt_tokens": 1432, "completion_tokens": 60, "total_tokens": 1492, "cached_tokens": 1270}
    return NewTurn((NewMessage(asked),), NewReply(answer, Answered(receipt, "demo:2", "2", "0" * 12, usage, "stop")))


async def fill(store: SessionStore, sessions: int, draw: random.Random) -> None:
    """Sessions of one turn each, many in a transaction, with the rows that the store itself would write."""
    for first in range(0, sessions, _BATCH):
        mine = store._owned(OWNER)
        async with store._database.writing() as connection:
            rows, turns = [], []
            for each in range(min(_BATCH, sessions - first)):
                turn = turn_of(draw)
                turns.append([stored(turn.messages[0], mine.now), stored_reply(turn.reply, mine.now)])
                made = mine.now + timedelta(microseconds=each)
                fixed = {"id": new_session_id(), "metadata": {}, "title": turn.messages[0].content[:80]}
                counts = {"revision": 2, "message_count": 2, "next_position": 2, "ttl_seconds": 1e6}
                times = {"created_at": made, "updated_at": made, "expires_at": made + timedelta(days=30)}
                rows.append({**fixed, **counts, **times})
            numbers = await mine.insert(connection, "sessions", rows)
            said = [
                {**columns_of(message), "session": number, "position": position}
                for number, turn_ in zip(numbers, turns, strict=True)
                for position, message in enumerate(turn_)
            ]
            titles = {n: text_of(str(row["title"]), {}) for n, row in zip(numbers, rows, strict=True)}
            await search.add(connection, "session_grams", OWNER, titles)
            numbers = await mine.insert(connection, "messages", said)
            texts = {n: str(row["content"]) for n, row in zip(numbers, said, strict=True)}
            await search.add(connection, "message_grams", OWNER, texts)


async def size(store: SessionStore) -> int:
    """Bytes of the database on disk."""
    database = store._database
    if database.is_sqlite:
        await database.truncate_log()
        return os.stat(str(database.engine.url.database)).st_size  # noqa: PTH116
    async with database.reading() as connection:
        found: int = (await connection.execute(text("SELECT pg_database_size(current_database())"))).scalar_one()
    return found


async def timed(call: Callable[[], Awaitable[object]], times: int, at_once: int = 1) -> str:
    """`call` so many times, by `at_once` callers: a second, median and p95 in milliseconds."""
    spent: list[float] = []

    async def caller() -> None:
        for _ in range(times // at_once):
            started = time.perf_counter()
            await call()
            spent.append((time.perf_counter() - started) * 1000)

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    each_second = len(spent) / (time.perf_counter() - started)
    return f"{each_second:.0f}/s, median {median(spent):.1f} ms, p95 {quantiles(spent, n=20)[-1]:.1f} ms"


async def measure(url: str, sessions: int) -> None:
    draw = random.Random(0)
    store = await SessionStore.open(url, Limits(max_per_owner=10 * sessions), patience=60)
    empty = await size(store)
    started = time.perf_counter()
    await fill(store, sessions, draw)
    print(f"filled in {time.perf_counter() - started:.0f} s")
    print(f"bytes a session of one turn: {(await size(store) - empty) / sessions:.0f}")
    seen, cursor = 0, None

    async def page() -> None:
        nonlocal cursor, seen
        found = await store.sessions(OWNER, cursor=cursor, limit=20)
        cursor, seen = found.next_cursor, seen + len(found.data)

    print("all pages of 20:", await timed(page, -(-sessions // 20)), f"({seen} sessions)")
    assert seen == sessions and cursor is None
    session = await store.create(OWNER, {"title": "쑥떡"})
    for words in ("쑥떡", "땅콩", "땅콩 없이 lunch", "락도", "없는말"):
        print(f"query {words!r}:", await timed(lambda words=words: store.sessions(OWNER, query=words), 5))  # type: ignore[misc]
    before = await size(store)
    alone = await timed(lambda: store.append_turn(OWNER, session.id, turn_of(draw)), 400)
    print("turns, one caller:", alone)
    print("turns, eight callers:", await timed(lambda: store.append_turn(OWNER, session.id, turn_of(draw)), 400, 8))
    print(f"bytes a turn: {(await size(store) - before) / 800:.0f}")
    for name, call in (("sweep", store.sweep()), ("erase", store.erase(OWNER, session.id))):
        started = time.perf_counter()
        await call
        print(f"{name}: {time.perf_counter() - started:.1f} s")
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=0)
    asked = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as directory:
        url = asked.url or f"sqlite+aiosqlite:///{directory}/sessions.db"
        if asked.kills:
            wrong = asyncio.run(session_crashes.run(url, Path(directory), asked.kills, seed=asked.kills))
            print(f"{asked.kills} kills: {wrong or 'every acknowledged turn is there, once, in order and whole'}")
        else:
            asyncio.run(measure(url, asked.sessions))


if __name__ == "__main__":
    main()
