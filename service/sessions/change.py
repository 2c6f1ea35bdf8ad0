"""One write to one session inside a transaction: its messages, its fields, and what every write does.

Every write counts the revision up, moves the expiry and keeps the index in step. The session's row is locked by whoever
makes a Change, so that writers of one session come one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import Conflict
from service.sessions import search
from service.sessions.grams import words_of
from service.sessions.limits import Limits
from service.sessions.owned import Owned
from service.sessions.records import columns_of, session_of
from service.sessions.values import Session, SessionFields, StoredMessage, new_session_id

TITLE_CHARACTERS = 80


class Change:
    def __init__(self, connection: AsyncConnection, mine: Owned, row: Row[Any], limits: Limits) -> None:
        """`row` is the session's, locked."""
        self.connection = connection
        self.mine = mine
        self.row = row
        self._limits = limits
        self._now: dict[str, Any] = dict(row._mapping)

    @classmethod
    async def create(cls, connection: AsyncConnection, mine: Owned, limits: Limits) -> Change:
        """Of a session that is not there yet, with all fields at their defaults."""
        id = new_session_id()
        fixed = {"id": id, "metadata": {}, "revision": 0, "message_count": 0, "next_position": 0}
        times = dict.fromkeys(("created_at", "updated_at"), mine.now)
        expiry = {"ttl_seconds": limits.ttl_seconds, "expires_at": mine.now + timedelta(seconds=limits.ttl_seconds)}
        await mine.insert(connection, "sessions", [{**fixed, **times, **expiry}])
        return cls(connection, mine, await mine.session(connection, id), limits)

    def set(self, fields: SessionFields | Mapping[str, object]) -> None:
        """Fields of the session, checked already; a lifetime that is taken away becomes the default."""
        self._now.update(fields)
        self._now["ttl_seconds"] = self._now["ttl_seconds"] or self._limits.ttl_seconds
        self._now["metadata"] = self._now["metadata"] or {}

    async def add(self, messages: Sequence[StoredMessage]) -> None:
        """Behind all that are there. Raises QuotaExceeded past the session's limit, Conflict for a taken id."""
        self._limits.check_room(self._now["message_count"], len(messages))
        await self._refuse_taken([message.id for message in messages])
        first = self._now["next_position"]
        rows = [
            {**columns_of(message), "session": self.row.number, "position": position}
            for position, message in enumerate(messages, first)
        ]
        numbers = await self.mine.insert(self.connection, "messages", rows) if rows else []
        texts = {number: message.content for number, message in zip(numbers, messages, strict=True)}
        await search.add(self.connection, "message_grams", self.mine.owner, texts)
        self._now["message_count"] += len(messages)
        self._now["next_position"] = first + len(messages)
        if self._now["title"] is None:
            self._now["title"] = title_of(messages)

    async def remove(self, message: Row[Any]) -> None:
        """A title that was made of it is made anew, of what is left."""
        its = self.mine.columns("messages")
        await search.remove(self.connection, "message_grams", self.mine.owner, {message.number: message.content})
        await self.connection.execute(self.mine.delete("messages").where(its.number == message.number))
        self._now["message_count"] -= 1
        if self._now["title"] == _cut(message.content):
            asked = self.mine.select("messages", "content").where(its.session == self.row.number, its.role == "user")
            left = (await self.connection.execute(asked.order_by(its.position).limit(1))).scalar_one_or_none()
            self._now["title"] = None if left is None else _cut(left)

    async def edit(self, message: Row[Any], content: str | None, pinned: bool | None) -> None:
        changed: dict[str, object] = {}
        if pinned is not None:
            changed["pinned"] = pinned
        if content is not None:
            changed["content"] = content
            await search.remove(self.connection, "message_grams", self.mine.owner, {message.number: message.content})
            await search.add(self.connection, "message_grams", self.mine.owner, {message.number: content})
        if changed:
            its = self.mine.columns("messages")
            await self.connection.execute(
                self.mine.update("messages").where(its.number == message.number).values(changed)
            )

    async def save(self) -> Session:
        """The session as it is after this write."""
        ttl = timedelta(seconds=self._now["ttl_seconds"])
        self._now.update(revision=self.row.revision + 1, updated_at=self.mine.now, expires_at=self.mine.now + ttl)
        its = self.mine.columns("sessions")
        after = {name: value for name, value in self._now.items() if value != getattr(self.row, name)}
        await self.connection.execute(self.mine.update("sessions").where(its.number == self.row.number).values(after))
        await self._index()
        return session_of(await self.mine.session(self.connection, self.row.id))

    async def _index(self) -> None:
        before = text_of(self.row.title, self.row.metadata)
        after = text_of(self._now["title"], self._now["metadata"])
        if before != after or self.row.revision == 0:
            if self.row.revision:
                await search.remove(self.connection, "session_grams", self.mine.owner, {self.row.number: before})
            await search.add(self.connection, "session_grams", self.mine.owner, {self.row.number: after})

    async def _refuse_taken(self, ids: Sequence[str]) -> None:
        its = self.mine.columns("messages")
        taken = self.mine.select("messages", "id").where(its.id.in_(ids)).limit(1)
        if (await self.connection.execute(taken)).first() is not None:
            raise Conflict("This turn is stored already: a message has the id of one of its messages")


def text_of(title: str | None, metadata: Mapping[str, object]) -> str:
    """What a session itself is indexed by."""
    return "\n".join(words_of(title, metadata))


def title_of(messages: Sequence[StoredMessage]) -> str | None:
    """The first user message, on one line and cut."""
    first = next((message.content for message in messages if message.role == "user"), None)
    return None if first is None else _cut(first)


def _cut(content: str) -> str | None:
    return " ".join(content.split())[:TITLE_CHARACTERS].rstrip() or None
