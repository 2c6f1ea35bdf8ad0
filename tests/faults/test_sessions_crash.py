"""Writers of turns are killed under load; what they were told is stored is there, once, in order and whole."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from loadtest import session_crashes
from loadtest.session_crashes import OWNER, Written, all_messages, check, inspect
from service.storage.sessions import NewMessage, NewReply, NewTurn, SessionStore, StoredMessage
from tests.sessions import KINDS, new_database

KILLS = 12
NOW = datetime(2026, 11, 21, tzinfo=UTC)
TURNS = [Written("s", "w.0", n) for n in range(4)]


@pytest.mark.parametrize("kind", KINDS)
async def test_acknowledged_turns_survive(kind: str, tmp_path: Path) -> None:
    assert await session_crashes.run(new_database(kind, tmp_path), tmp_path, KILLS) == []


def messages_of(turns: list[Written]) -> list[StoredMessage]:
    found = []
    for turn in turns:
        found.append(StoredMessage(f"m_{turn.said}", "user", turn.said, None, False, NOW, None))
        answered = session_crashes._answered(turn)
        found.append(StoredMessage(f"r_{turn.said}", "assistant", turn.reply, None, False, NOW, answered))
    return found


def test_the_checker_sees_what_is_wrong() -> None:
    whole = messages_of(TURNS)
    assert check(TURNS, {"s": whole}) == [] and check(TURNS[:3], {"s": whole}) == []
    planted = {
        "lost: w.0 2": whole[:4] + whole[6:],
        "torn: message 2 of s": whole[:3] + whole[4:],
        "torn: message 5 of s": whole[:4] + whole[5:],
        "torn: message 0 of s": [whole[0], replace(whole[1], content=whole[1].content[:-1]), *whole[2:]],
        "torn: message 6 of s": [*whole[:7], replace(whole[7], answered=session_crashes._answered(TURNS[0]))],
        "twice: w.0 3": [*whole, *whole[6:]],
        "out of order: w.0 1": whole[:2] + whole[4:6] + whole[2:4] + whole[6:],
    }
    for said, messages in planted.items():
        assert any(wrong.startswith(said[:6]) for wrong in check(TURNS, {"s": messages})), said
    assert "lost: w.0 2" in check(TURNS, {"s": planted["lost: w.0 2"]})
    assert check(TURNS[:1], {"s": whole}) == ["never written: w.0"]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_lost_or_torn_in_a_database_is_seen(kind: str, tmp_path: Path) -> None:
    """The same, planted in what the store has written."""
    store = await SessionStore.open(new_database(kind, tmp_path))
    session = await store.create(OWNER)
    turns = [Written(session.id, "w.0", n) for n in range(3)]
    for turn in turns:
        new = NewTurn((NewMessage(turn.said),), NewReply(turn.reply, session_crashes._answered(turn)))
        await store.append_turn(OWNER, session.id, new)
    assert check(turns, {session.id: await all_messages(store, session.id)}) == []
    async with store._database.writing() as connection:
        await connection.exec_driver_sql("DELETE FROM messages WHERE position = 3")
    torn = await inspect(store, [session.id], turns)
    assert any(wrong.startswith("torn") for wrong in torn) and any(wrong.startswith("miscounted") for wrong in torn)
    async with store._database.writing() as connection:
        await connection.exec_driver_sql("DELETE FROM messages WHERE position = 2")
    assert "lost: w.0 1" in await inspect(store, [session.id], turns)
    await store.close()
