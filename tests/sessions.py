"""Databases and a clock for tests of the session store, over both kinds of database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from service.context.partition import Counts, Partition, stored_form
from service.storage.sessions import Answered, NewMessage, NewReply, NewTurn, SessionStore, Turn
from tests import postgres

needs_postgresql = pytest.mark.skipif(postgres.missing() is not None, reason=postgres.missing() or "")
KINDS = [pytest.param("sqlite", id="sqlite"), pytest.param("postgresql", id="postgresql", marks=needs_postgresql)]


def new_database(kind: str, directory: Path) -> str:
    """The URL of a database without rows."""
    if kind == "postgresql":
        return postgres.server().new_database()
    return f"sqlite+aiosqlite:///{directory / 'sessions.db'}"


@dataclass
class Clock:
    """Stands still until it is moved."""

    now: datetime = field(default_factory=lambda: datetime(2026, 11, 21, 12, tzinfo=UTC))

    def __call__(self) -> datetime:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def a_turn(said: str = "안녕하세요", reply: str = "네, 반갑습니다", **answered: object) -> NewTurn:
    return NewTurn((NewMessage(said),), NewReply(reply, Answered(**answered)))  # type: ignore[arg-type]


def receipt(kept: tuple[int, int], total: int, cut: int | None = None) -> Mapping[str, object]:
    """As the store keeps it: messages `kept` of so many were sent."""
    counts = Counts(kept[1] - kept[0], total - kept[1] + kept[0])
    told = None if cut is None else {"stable_for_tokens": 7}
    return stored_form({"policy": "window", "dropped_tokens": 3, "cut": told}, Partition((kept,), counts, cut=cut))


async def say(store: SessionStore, owner: str, session_id: str, said: str, reply: str = "네") -> Turn:
    return await store.append_turn(owner, session_id, a_turn(said, reply))


async def contents(store: SessionStore, owner: str, session_id: str) -> list[str]:
    return [message.content for message in (await store.history(owner, session_id)).messages]
