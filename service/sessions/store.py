"""The session store: what a caller can do with sessions, each call one transaction that is durable when it returns.

Every call names the owner, and sees only what belongs to the owner and has not expired: the rest is NotFound. Writes
count the session's revision up and move its expiry; reads change nothing. `expected_revision` makes a write
conditional: Stale where another was faster. Any call may raise Unavailable (with `retry_after`) or StorageFull; then
nothing was written, save that a connection lost during a commit leaves that turn wholly there or wholly absent.

Knows no HTTP, no model and no policy of the context.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import Conflict, InvalidRequest, Stale, Unavailable
from service.sessions import cursors, idempotency, migrating, retention, transfer
from service.sessions.change import Change
from service.sessions.claims import Done
from service.sessions.database import Database, translated, uninterrupted
from service.sessions.idempotency import Idempotency
from service.sessions.knowledge import KnowledgeBase
from service.sessions.limits import Limits, check_distinct, check_limit, check_text
from service.sessions.owned import Owned
from service.sessions.records import ASSISTANT, message_of, session_of, stored, stored_reply
from service.sessions.search import search
from service.sessions.summaries import StoredSummaries
from service.sessions.turn_locks import TurnLocks
from service.sessions.values import (
    Json,
    NewMessage,
    NewReply,
    NewTurn,
    Page,
    Session,
    SessionFields,
    StoredMessage,
    Turn,
)
from service.text.grams import fold

PATIENCE_SECONDS = 5.0
DEFAULT_PAGE = 20


def utc_now() -> datetime:
    return datetime.now(UTC)


class SessionStore:
    """Open it with `open`, and close it. One object serves a whole process, in one event loop; several processes may
    share a database."""

    def __init__(self, database: Database, limits: Limits, clock: Callable[[], datetime]) -> None:
        self._database = database
        self.limits = limits
        self._clock = clock
        self._traces = True  # of what was removed, perhaps before this process began
        self._turns = TurnLocks(database)
        self.idempotency = Idempotency(database, self._owned)
        self.summaries = StoredSummaries(database, self._owned)
        self.knowledge = KnowledgeBase(database, self._owned, limits)

    @classmethod
    async def open(
        cls,
        url: str,
        limits: Limits | None = None,
        *,
        clock: Callable[[], datetime] = utc_now,
        patience: float = PATIENCE_SECONDS,
    ) -> SessionStore:
        """`url`: `sqlite+aiosqlite:///FILE` or `postgresql+asyncpg://…`. Brings the schema up to date. `patience` is
        the longest wait for the database, in seconds. Raises ValueError for another URL, NewerDatabase, Unavailable.
        """
        with translated():
            database = Database(url, patience)
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            try:
                await migrating.upgrade(database)
                return cls(database, limits or Limits(), clock)
            except Unavailable:  # it starts as we do, or another instance prepares it
                if asyncio.get_running_loop().time() > deadline:
                    await database.close()
                    raise
                await asyncio.sleep(0.1)
            except BaseException:
                await database.close()
                raise

    async def close(self) -> None:
        await self._turns.close()
        await self._database.close()

    # Sessions

    @uninterrupted
    async def create(self, owner: str, fields: SessionFields | None = None) -> Session:
        """Raises InvalidRequest, QuotaExceeded past the owner's limit."""
        self.limits.check_fields(fields or {})
        async with self._database.writing() as connection:
            change = await self._new(connection, owner)
            change.set(fields or {})
            return await change.save()

    @uninterrupted
    async def get(self, owner: str, session_id: str) -> Session:
        async with self._database.reading() as connection:
            return session_of(await self._owned(owner).session(connection, session_id))

    @uninterrupted
    async def patch(
        self, owner: str, session_id: str, fields: SessionFields, expected_revision: int | None = None
    ) -> Session:
        self.limits.check_fields(fields)
        async with self._change(owner, session_id, expected_revision) as change:
            change.set(fields)
            return await change.save()

    @uninterrupted
    async def delete(self, owner: str, session_id: str, expected_revision: int | None = None) -> None:
        """Gone for every reader at once; `sweep` clears its traces, `erase` does both."""
        self._traces = True
        async with self._change(owner, session_id, expected_revision) as change:
            await retention.remove(change.connection, change.row)

    @uninterrupted
    async def sessions(
        self, owner: str, *, query: str | None = None, cursor: str | None = None, limit: int = DEFAULT_PAGE
    ) -> Page[Session]:
        """Newest first. `query`: only those with this text, whatever its case, in title, metadata or a message."""
        check_limit(limit)
        check_text(query, "query")
        mine = self._owned(owner)
        newest = cursors.newest_first(mine.select("sessions"), mine.columns("sessions"), cursor)
        async with self._database.reading() as connection:
            if query is not None and fold(query):
                rows = await search(connection, mine, newest, query, limit + 1)
            else:
                rows = list((await connection.execute(newest.limit(limit + 1))).all())
        return cursors.page(rows, limit, session_of, cursors.of_newest)

    # Messages

    @uninterrupted
    async def messages(
        self, owner: str, session_id: str, *, cursor: str | None = None, limit: int = DEFAULT_PAGE
    ) -> Page[StoredMessage]:
        """Oldest first."""
        check_limit(limit)
        after = -1 if cursor is None else cursors.message_after(cursor)
        async with self._database.reading() as connection:
            rows = await self._read(connection, owner, session_id, after, limit + 1)
        return cursors.page(rows, limit, message_of, cursors.of_message)

    @uninterrupted
    async def history(
        self, owner: str, session_id: str, expected_revision: int | None = None
    ) -> tuple[Session, tuple[StoredMessage, ...]]:
        """The session and all its messages as they are at one moment: what a prompt is made of."""
        async with self._database.reading() as connection:
            session = session_of(await self._owned(owner).session(connection, session_id))
            _check_revision(session.revision, expected_revision)
            rows = await self._read(connection, owner, session_id, -1, session.message_count)
        return session, tuple(map(message_of, rows))

    @uninterrupted
    async def edit_message(
        self,
        owner: str,
        session_id: str,
        message_id: str,
        *,
        content: str | None = None,
        pinned: bool | None = None,
        expected_revision: int | None = None,
    ) -> StoredMessage:
        """Change this message and no other; its receipt stays what it was. None leaves as it is."""
        if content is not None:
            self.limits.check_content(content, "content")
        async with self._change(owner, session_id, expected_revision) as change:
            message = await change.mine.message(change.connection, change.row, message_id)
            await change.edit(message, content, pinned)
            await change.save()
            return message_of(await change.mine.message(change.connection, change.row, message_id))

    @uninterrupted
    async def delete_message(
        self, owner: str, session_id: str, message_id: str, expected_revision: int | None = None
    ) -> Session:
        self._traces = True
        async with self._change(owner, session_id, expected_revision) as change:
            await change.remove(await change.mine.message(change.connection, change.row, message_id))
            return await change.save()

    # Turns

    def turn_lock(self, owner: str, session_id: str) -> AbstractAsyncContextManager[None]:
        """Turns of one session wait for each other here: those of this process, and on PostgreSQL those of every other.
        Raises Unavailable on entry. Writes do not ask for it: what guards them is the revision."""
        return self._turns.held(owner, session_id)

    @uninterrupted
    async def check_turn(
        self,
        owner: str,
        session_id: str,
        messages: Sequence[NewMessage],
        expected_revision: int | None = None,
    ) -> tuple[Session, tuple[StoredMessage, ...]]:
        """The history before a turn with these messages, which could be stored now: ask before generating. Raises what
        `append_turn` would."""
        self._check_messages(messages)
        session, stored = await self.history(owner, session_id, expected_revision)
        self.limits.check_room(session.message_count, len(messages) + 1)
        return session, stored

    @uninterrupted
    async def append_turn(
        self,
        owner: str,
        session_id: str,
        turn: NewTurn,
        expected_revision: int | None = None,
        done: Done | None = None,
    ) -> Turn:
        """Store messages and reply, and `done`, the answer kept for its Idempotency-Key: all of it or nothing. Raises
        Conflict where it is stored already, or where another took the key over."""
        self._check_messages(turn.messages)
        check_distinct([*(message.id for message in turn.messages), turn.reply.id])
        async with self._change(owner, session_id, expected_revision) as change:
            new = [stored(message, change.mine.now) for message in turn.messages]
            reply = stored_reply(turn.reply, change.mine.now)
            await change.add([*new, reply])
            return Turn(await self._finish(change, turn.cut, done), tuple(new), reply)

    @uninterrupted
    async def replace_last_reply(
        self,
        owner: str,
        session_id: str,
        reply: NewReply,
        expected_revision: int | None = None,
        *,
        cut: Json | None = None,
        done: Done | None = None,
    ) -> Turn:
        """Put `reply` in the place of the last message. Raises Conflict where that is not an assistant's."""
        self._traces = True
        async with self._change(owner, session_id, expected_revision) as change:
            its = change.mine.columns("messages")
            asked = change.mine.select("messages").where(its.session == change.row.number)
            last = (await change.connection.execute(asked.order_by(its.position.desc()).limit(1))).one_or_none()
            if last is None or last.role != ASSISTANT:
                raise Conflict("The session's last message is not an answer: send a message to get one")
            await change.remove(last)
            new = stored_reply(reply, change.mine.now)
            await change.add([new])
            return Turn(await self._finish(change, cut, done), (), new)

    # Copies

    @uninterrupted
    async def fork(self, owner: str, session_id: str, at: str) -> Session:
        """A new session with copies of the messages up to `at`, under new ids that its receipts name as well."""
        async with self._database.writing() as connection:
            change = await self._new(connection, owner)
            source = await change.mine.session(connection, session_id, lock=True)
            last = await change.mine.message(connection, source, at)
            rows = await self._read(connection, owner, session_id, -1, source.message_count)
            kept = [message_of(row) for row in rows if row.position <= last.position]
            fields = {name: getattr(source, name) for name in SessionFields.__annotations__}
            return await self._copy(change, fields, kept, source.cut)

    @uninterrupted
    async def export(self, owner: str, session_id: str) -> list[bytes]:
        """Lines of JSON, without their newlines: the session, then its messages."""
        return transfer.lines_of(*await self.history(owner, session_id))

    @uninterrupted
    async def import_lines(self, owner: str, lines: Iterable[bytes]) -> Session:
        """What `export` gave, as a new session of `owner`. Raises InvalidRequest that names the line,
        QuotaExceeded."""
        fields, cut, messages = transfer.parsed(lines, self.limits)
        async with self._database.writing() as connection:
            return await self._copy(await self._new(connection, owner), fields, messages, cut)

    # Retention

    @uninterrupted
    async def sweep(self) -> int:
        """Remove what has expired, of every owner, and the traces of what was removed; how many sessions that were.

        To be called now and then."""
        removed = await retention.remove_expired(self._database, self._clock())
        if removed or self._traces:
            await retention.compact(self._database)
            self._traces = False
        return removed

    @uninterrupted
    async def erase(self, owner: str, session_id: str) -> None:
        """Delete a session so that SQLite's files hold no byte of it. Takes time in proportion to the file. When this
        raises Unavailable after the deletion, `erase_owner` or a later `erase` clears the bytes."""
        await self.delete(owner, session_id)
        await retention.rewrite(self._database)

    @uninterrupted
    async def erase_owner(self, owner: str) -> int:
        """All that an owner has, as `erase` does; how many sessions that were."""
        removed = await retention.remove_owner(self._database, owner)
        await retention.rewrite(self._database)
        return removed

    def _owned(self, owner: str) -> Owned:
        return Owned(owner, self._clock())

    def _check_messages(self, messages: Sequence[NewMessage]) -> None:
        if not messages:
            raise InvalidRequest("A turn needs a message: add one to `messages`", param="messages")
        for message in messages:
            self.limits.check_message(message)

    async def _new(self, connection: AsyncConnection, owner: str) -> Change:
        """A session to be filled, where the owner may have one more."""
        await self._database.lock(connection, "owner", owner)
        mine = self._owned(owner)
        present = await mine.count(connection, mine.select("sessions", "number"), self.limits.max_per_owner)
        self.limits.check_sessions(present)
        return await Change.create(connection, mine, self.limits)

    @asynccontextmanager
    async def _change(self, owner: str, session_id: str, expected: int | None) -> AsyncIterator[Change]:
        async with self._database.writing() as connection:
            mine = self._owned(owner)
            row = await mine.session(connection, session_id, lock=True)
            _check_revision(row.revision, expected)
            yield Change(connection, mine, row, self.limits)

    async def _finish(self, change: Change, cut: Json | None, done: Done | None) -> Session:
        if cut is not None:
            change.set({"cut": cut})
        if done is not None:
            await idempotency.finish(change.connection, change.mine, done, change.row.id)
        return await change.save()

    async def _copy(self, change: Change, fields: Any, messages: Iterable[StoredMessage], cut: Json | None) -> Session:
        copied, new_cut = transfer.copies(messages, cut)
        change.set({**fields, "cut": new_cut})
        await change.add(copied)
        return await change.save()

    async def _read(
        self, connection: AsyncConnection, owner: str, session_id: str, after: int, most: int
    ) -> list[Row[Any]]:
        mine = self._owned(owner)
        session = await mine.session(connection, session_id)
        its = mine.columns("messages")
        statement = mine.select("messages").where(its.session == session.number, its.position > after)
        return list((await connection.execute(statement.order_by(its.position).limit(most))).all())


def _check_revision(present: int, expected: int | None) -> None:
    if expected is not None and present != expected:
        raise Stale(
            f"The session is at revision {present}, not {expected}: read it again, then decide", revision=present
        )
