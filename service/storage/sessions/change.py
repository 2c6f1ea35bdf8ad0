"""A change is one write to one session inside a transaction: its messages, its fields, and what every write does.

Every write increments the revision, moves the expiry and updates the index. The code that makes a Change locks the
session's row first, so that writers of one session come one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, or_
from sqlalchemy.ext.asyncio import AsyncConnection

from service.context.partition import SYSTEM_POSITION
from service.errors import Conflict, Stale
from service.storage.sessions import feedback, search
from service.storage.sessions.limits import Limits
from service.storage.sessions.owned import Owned
from service.storage.sessions.rows import columns_of, session_of
from service.storage.sessions.search import words_of
from service.storage.sessions.values import Session, SessionFields, StoredMessage, new_session_id

TITLE_CHARACTERS = 80
_BATCH = 200
"""How many messages are indexed at once: other requests run in between."""
_BATCH_CHARACTERS = 256 * 1024
"""How much text they have: a longer message is indexed alone."""


class Change:
    def __init__(self, connection: AsyncConnection, mine: Owned, row: Row[Any], limits: Limits) -> None:
        """Takes `row`, the session's row, locked."""
        self.connection = connection
        self.mine = mine
        self.row = row
        self._limits = limits
        self._now: dict[str, Any] = dict(row._mapping)

    @classmethod
    async def create(cls, connection: AsyncConnection, mine: Owned, limits: Limits) -> Change:
        """Returns a change of a new session, with all fields at their defaults."""
        id = new_session_id()
        fixed = {"id": id, "metadata": {}, "revision": 0, "message_count": 0, "next_position": 0}
        times = dict.fromkeys(("created_at", "updated_at"), mine.now)
        expiry = {"ttl_seconds": limits.ttl_seconds, "expires_at": mine.now + timedelta(seconds=limits.ttl_seconds)}
        await mine.insert(connection, "sessions", [{**fixed, **times, **expiry}])
        return cls(connection, mine, await mine.session(connection, id), limits)

    def set(self, fields: SessionFields | Mapping[str, object]) -> None:
        """Sets fields of the session, which are checked already. A lifetime of None becomes the default."""
        self._now.update(fields)
        self._now["ttl_seconds"] = self._now["ttl_seconds"] or self._limits.ttl_seconds
        self._now["metadata"] = self._now["metadata"] or {}

    async def add(self, messages: Sequence[StoredMessage]) -> None:
        """Adds messages behind all others. Raises QuotaExceeded past the session's limit, Conflict for an id that
        exists."""
        self._limits.check_room(self._now["message_count"], len(messages))
        for some in _batches(messages):
            await self._add(some)
        if self._now["title"] is None:
            self._now["title"] = title_of(messages)

    async def _add(self, messages: Sequence[StoredMessage]) -> None:
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

    async def remove(self, message: Row[Any], *, is_last: bool = False) -> None:
        """Removes a message with the votes on it. A title made of it is made anew from the other messages. With
        `is_last` it is an answer that another one replaces: nothing was derived from it yet, and its votes still
        count."""
        if is_last:
            await feedback.detach(self.connection, self.mine, message)
        else:
            await self._forget(message.position)
            await feedback.remove(self.connection, self.mine, message)
        its = self.mine.columns("messages")
        await search.remove(self.connection, "message_grams", self.mine.owner, {message.number: message.content})
        await self.connection.execute(self.mine.delete("messages").where(its.number == message.number))
        self._now["message_count"] -= 1
        await self._retitle(message.content)

    async def edit(self, message: Row[Any], content: str | None, pinned: bool | None) -> None:
        """Changes what is given. A title made of the old content is made anew."""
        changed: dict[str, object] = {}
        if pinned is not None:
            changed["pinned"] = pinned
        if content is not None:
            changed["content"] = content
            if content != message.content:
                changed["answer_id"] = None  # the text is no longer the answer's
                await feedback.detach(self.connection, self.mine, message)
            await self._forget(message.position)
            await search.remove(self.connection, "message_grams", self.mine.owner, {message.number: message.content})
            await search.add(self.connection, "message_grams", self.mine.owner, {message.number: content})
        if changed:
            its = self.mine.columns("messages")
            await self.connection.execute(
                self.mine.update("messages").where(its.number == message.number).values(changed)
            )
        if content is not None:
            await self._retitle(message.content)

    async def _retitle(self, gone: str) -> None:
        """Makes the title anew from the first user message, where it was made of a text that is gone."""
        if self._now["title"] != _cut(gone):
            return
        its = self.mine.columns("messages")
        statement = self.mine.select("messages", "content").where(its.session == self.row.number, its.role == "user")
        first = (await self.connection.execute(statement.order_by(its.position).limit(1))).scalar_one_or_none()
        self._now["title"] = None if first is None else _cut(first)

    async def save(self) -> Session:
        """Saves, and returns the session as it is after this write."""
        if self.row.revision and self._now["system"] != self.row.system:
            await self._forget(SYSTEM_POSITION)
        ttl = timedelta(seconds=self._now["ttl_seconds"])
        self._now.update(revision=self.row.revision + 1, updated_at=self.mine.now, expires_at=self.mine.now + ttl)
        its = self.mine.columns("sessions")
        after = {name: value for name, value in self._now.items() if value != getattr(self.row, name)}
        await self.connection.execute(self.mine.update("sessions").where(its.number == self.row.number).values(after))
        await self._index()
        return session_of(await self.mine.session(self.connection, self.row.id))

    async def _forget(self, position: int) -> None:
        """Deletes what was derived from the message at this position: summaries, and numbers of what stands before the
        cut."""
        its, cut = self.mine.columns("summaries"), self._now["cut"]
        made_of_it = or_(its.before.is_(None), its.before > position)
        forgotten = self.mine.delete("summaries").where(its.session == self.row.number, made_of_it)
        await self.connection.execute(forgotten)
        at = None if cut is None else cut.get("at")
        if not isinstance(at, int) or position == at:
            self._now["cut"] = None
        elif SYSTEM_POSITION < position < at:
            self._now["cut"] = {key: value for key, value in cut.items() if key != "before"}
        self._now["edited"] = self.row.revision + 1

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


def check_revision(present: int, expected: int | None) -> None:
    """Raises Stale where another writer was first."""
    if expected is not None and present != expected:
        raise Stale(
            f"The session is at revision {present}, not {expected}: read it again, then decide", revision=present
        )


def _batches(messages: Sequence[StoredMessage]) -> Iterator[Sequence[StoredMessage]]:
    first, characters = 0, 0
    for at, message in enumerate(messages):
        characters += len(message.content)
        if at > first and (at - first == _BATCH or characters > _BATCH_CHARACTERS):
            yield messages[first:at]
            first, characters = at, len(message.content)
    if first < len(messages):
        yield messages[first:]


def text_of(title: str | None, metadata: Mapping[str, object]) -> str:
    """Returns the text by which a session itself is indexed."""
    return "\n".join(words_of(title, metadata))


def title_of(messages: Sequence[StoredMessage]) -> str | None:
    """Returns the first user message on one line, shortened."""
    first = next((message.content for message in messages if message.role == "user"), None)
    return None if first is None else _cut(first)


def _cut(content: str) -> str | None:
    return " ".join(content.split())[:TITLE_CHARACTERS].rstrip() or None
