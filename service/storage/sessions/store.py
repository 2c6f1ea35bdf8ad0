"""The session store does what a caller can do with sessions: each call is one transaction that is durable when it
returns.

Every call names the owner, and sees only what belongs to the owner and has not expired; all else is NotFound. Writes
increment the session's revision and move its expiry; reads change nothing. `expected_revision` makes a write
conditional: it raises Stale where another writer was first. Any call may raise Unavailable (with `retry_after`) or
StorageFull; then nothing was written, but a connection lost during a commit leaves that turn wholly there or absent.

The store knows no HTTP, no model and no policy of the context.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import Conflict, InvalidRequest
from service.storage.audit.trail import Trail
from service.storage.database import migrating
from service.storage.database.database import Database, Observe, translated, uninterrupted
from service.storage.database.failures import Busy
from service.storage.outages import SESSIONS, Outages
from service.storage.sessions import retention
from service.storage.sessions.answers import StoredAnswers
from service.storage.sessions.batches import StoredBatches
from service.storage.sessions.change import Change, check_revision
from service.storage.sessions.claims import Done
from service.storage.sessions.copies import Copies
from service.storage.sessions.feedback import Feedback
from service.storage.sessions.files import StoredFiles
from service.storage.sessions.history import Reading
from service.storage.sessions.idempotency import Idempotency
from service.storage.sessions.knowledge import KnowledgeBase, StoredSummaries
from service.storage.sessions.limits import Limits, check_distinct, check_limit, check_results, check_text
from service.storage.sessions.owned import Owned, is_id, no_session
from service.storage.sessions.rows import (
    ASSISTANT,
    TOOL,
    from_newest,
    message_after,
    message_cursor,
    message_of,
    newest_cursor,
    page_of,
    session_of,
    stored,
    stored_reply,
)
from service.storage.sessions.search import search
from service.storage.sessions.turn_locks import TurnLocks
from service.storage.sessions.usage import StoredUsage
from service.storage.sessions.values import (
    History,
    Json,
    NewMessage,
    NewReply,
    NewTurn,
    Page,
    PromptPart,
    Session,
    SessionFields,
    StoredMessage,
    Turn,
)
from service.text.grams import fold

PartChoice = Callable[[Session], PromptPart | None]
PATIENCE_SECONDS = 5.0
DEFAULT_PAGE = 20


def utc_now() -> datetime:
    return datetime.now(UTC)


class SessionStore:
    """`open` opens the store, and the caller closes it. One object serves a whole process, in one event loop; several
    processes may share a database."""

    def __init__(self, database: Database, limits: Limits, clock: Callable[[], datetime]) -> None:
        self._database = database
        self.limits = limits
        self._clock = clock
        self._traces = True  # removed rows may have left traces, even before this process
        self._turns = TurnLocks(database)
        of_owners = database, self._owned, limits, self._leave_traces
        self.summaries = StoredSummaries(*of_owners)
        self.knowledge = KnowledgeBase(*of_owners)
        self.answers = StoredAnswers(*of_owners)
        self.idempotency = Idempotency(database, self._owned, self.answers)
        self.feedback = Feedback(*of_owners)
        self.copies = Copies(*of_owners, self._new)
        self.batches = StoredBatches(*of_owners)
        self.files = StoredFiles(*of_owners)
        self.audit = Trail(database)
        self.usage = StoredUsage(database)

    @classmethod
    async def open(
        cls,
        url: str,
        limits: Limits | None = None,
        *,
        clock: Callable[[], datetime] = utc_now,
        patience: float = PATIENCE_SECONDS,
        observe: Observe | None = None,
        outages: Outages | None = None,
    ) -> SessionStore:
        """Opens `url`, `sqlite+aiosqlite:///FILE` or `postgresql+asyncpg://…`, and brings the schema up to date; the
        rest is as in Database. Raises ValueError for another URL, NewerDatabase, Unavailable."""
        outages = outages or Outages(SESSIONS)
        with translated(outages):
            database = Database(url, patience, observe, outages)
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            try:
                await migrating.upgrade(database)
                return cls(database, limits or Limits(), clock)
            except Busy:  # the database is starting too, or another instance prepares it
                if asyncio.get_running_loop().time() > deadline:
                    await database.close()
                    raise
                await asyncio.sleep(0.1)
            except BaseException:
                await database.close()
                raise

    def now(self) -> datetime:
        """Returns the time by which rows expire."""
        return self._clock()

    @uninterrupted("write")
    async def require_writing(self) -> None:
        """Raises what a write would raise now, where calls failed: what cannot be kept need not be made."""
        await self._database.require_writing()

    async def close(self) -> None:
        await self._turns.close()
        await self._database.close()

    # Sessions

    @uninterrupted("write")
    async def create(
        self,
        owner: str,
        fields: SessionFields | None = None,
        messages: Sequence[NewMessage] = (),
        places: Sequence[str] = (),
    ) -> Session:
        """Makes a session, with messages that nobody has answered yet. Raises InvalidRequest, also for a result without
        its call, which `places` name as in `check_results`; QuotaExceeded past the owner's limit."""
        self.limits.check_fields(fields or {})
        self._check_each(messages)
        check_results(set(), messages, places)
        async with self._database.writing() as connection:
            change = await self._new(connection, owner)
            change.set(fields or {})
            await change.add([stored(message, change.mine.now) for message in messages])
            return await change.save()

    @uninterrupted("read")
    async def get(self, owner: str, session_id: str) -> Session:
        async with self._database.reading() as connection:
            return session_of(await self._owned(owner).session(connection, session_id))

    @uninterrupted("write")
    async def patch(
        self, owner: str, session_id: str, fields: SessionFields, expected_revision: int | None = None
    ) -> Session:
        self.limits.check_fields(fields)
        async with self._removal(owner, session_id, expected_revision) as change:
            change.set(fields)
            return await change.save()

    @uninterrupted("write")
    async def delete(self, owner: str, session_id: str, expected_revision: int | None = None) -> None:
        """Deletes a session for every reader at once; `sweep` clears its traces, `erase` does both."""
        async with self._removal(owner, session_id, expected_revision) as change:
            room = await retention.remove(change.connection, change.row)
        if not room:
            await retention.remove_rest(self._database, change.row)

    @uninterrupted("read")
    async def sessions(
        self, owner: str, *, query: str | None = None, cursor: str | None = None, limit: int = DEFAULT_PAGE
    ) -> Page[Session]:
        """Returns sessions, newest first. `query`: only those with this text, in any case, in title, metadata or a
        message."""
        check_limit(limit)
        check_text(query, "query")
        mine = self._owned(owner)
        newest = from_newest(mine.select("sessions"), mine.columns("sessions"), cursor)
        async with self._database.reading() as connection:
            if query is not None and fold(query):
                rows = await search(connection, mine, newest, query, limit + 1)
            else:
                rows = list((await connection.execute(newest.limit(limit + 1))).all())
        return page_of(rows, limit, session_of, newest_cursor)

    # Messages

    @uninterrupted("read")
    async def messages(
        self, owner: str, session_id: str, *, cursor: str | None = None, limit: int = DEFAULT_PAGE
    ) -> Page[StoredMessage]:
        """Returns messages, oldest first."""
        check_limit(limit)
        after = -1 if cursor is None else message_after(cursor)
        async with self._database.reading() as connection:
            mine = self._owned(owner)
            reading = Reading(connection, mine, await mine.session(connection, session_id))
            rows = await reading.rows(after, limit + 1)
            shown = await reading.with_receipts(rows[:limit], map(message_of, rows[:limit]))
        page = page_of(rows, limit, message_of, message_cursor)
        return Page(tuple(shown), page.next_cursor)

    @uninterrupted("read")
    async def messages_from(
        self, owner: str, session_id: str, at: str | None, most: int, *, newest_first: bool = False
    ) -> tuple[StoredMessage, ...]:
        """Returns up to `most` messages, without receipts, from the message `at` on, which is the first of them; from
        the session's first or newest where `at` is None."""
        async with self._database.reading() as connection:
            mine = self._owned(owner)
            session, its = await mine.session(connection, session_id), mine.columns("messages")
            statement = mine.select("messages").where(its.session == session.number).limit(most)
            if at is not None:
                position = (await mine.message(connection, session, at)).position
                statement = statement.where(its.position <= position if newest_first else its.position >= position)
            rows = await connection.execute(statement.order_by(its.position.desc() if newest_first else its.position))
            return tuple(map(message_of, rows))

    @uninterrupted("write")
    async def add_messages(
        self,
        owner: str,
        session_id: str,
        messages: Sequence[NewMessage],
        expected_revision: int | None = None,
        *,
        places: Sequence[str] = (),
    ) -> tuple[StoredMessage, ...]:
        """Adds messages behind all others, unanswered. Raises as `create`."""
        self._check_messages(messages)
        async with self._change(owner, session_id, expected_revision) as change:
            open_calls = await Reading(change.connection, change.mine, change.row).open_calls()
            check_results(open_calls, messages, places)
            new = tuple(stored(message, change.mine.now) for message in messages)
            await change.add(new)
            await change.save()
            return new

    @uninterrupted("history")
    async def history(
        self, owner: str, session_id: str, expected_revision: int | None = None, choose_part: PartChoice | None = None
    ) -> History:
        """Returns the session and its messages as they are at one moment, for a prompt. `choose_part` says which
        part of this session the prompt needs; None, or a part that does not exist, takes all."""
        async with self._database.reading() as connection:
            mine = self._owned(owner)
            row = await mine.session(connection, session_id)
            session, reading = session_of(row), Reading(connection, mine, row)
            check_revision(session.revision, expected_revision)
            part = None if choose_part is None else choose_part(session)
            partial = None if part is None else await reading.part(part)
            if partial is not None:
                return History(session, partial[0], row.next_position, partial[1], is_whole=False)
            return History(session, await reading.all(), row.next_position)

    @uninterrupted("write")
    async def edit_message(
        self,
        owner: str,
        session_id: str,
        message_id: str,
        *,
        content: str | None = None,
        pinned: bool | None = None,
        expected_revision: int | None = None,
    ) -> tuple[Session, StoredMessage]:
        """Changes this message only; its receipt stays as it was. None leaves a field as it is. Returns the session
        too, as it is after this write."""
        if content is not None:
            self.limits.check_content(content, "content")
        async with self._removal(owner, session_id, expected_revision) as change:
            message = await change.mine.message(change.connection, change.row, message_id)
            await change.edit(message, content, pinned)
            session = await change.save()
            row = await change.mine.message(change.connection, change.row, message_id)
            reading = Reading(change.connection, change.mine, change.row)
            return session, (await reading.with_receipts([row], [message_of(row)]))[0]

    @uninterrupted("write")
    async def delete_message(
        self, owner: str, session_id: str, message_id: str, expected_revision: int | None = None
    ) -> Session:
        """Deletes a message, and with a call its results. Raises Conflict for a result alone."""
        async with self._removal(owner, session_id, expected_revision) as change:
            message = await change.mine.message(change.connection, change.row, message_id)
            if message.role == TOOL:
                raise Conflict("This is the result of a call: delete the message with the call, and it goes along")
            reading = Reading(change.connection, change.mine, change.row)
            for result in await reading.results_of(message):
                await change.remove(result)
            await change.remove(message)
            return await change.save()

    # Turns

    def turn_lock(self, owner: str, session_id: str) -> AbstractAsyncContextManager[None]:
        """Makes the turns of one session wait for each other: those of this process, and on PostgreSQL those of every
        instance. Raises NotFound for what is no id of a session, Unavailable on entry. Writes do not take this lock:
        the revision guards them."""
        if not is_id(session_id):
            raise no_session(session_id)
        return self._turns.held(owner, session_id)

    async def check_turn(
        self,
        owner: str,
        session_id: str,
        messages: Sequence[NewMessage],
        expected_revision: int | None = None,
        choose_part: PartChoice | None = None,
    ) -> History:
        """Does as `history`, before a turn with these messages. Raises what `append_turn` would raise, before the
        generation."""
        self._check_messages(messages)
        history = await self.history(owner, session_id, expected_revision, choose_part)
        self.limits.check_room(history.session.message_count, len(messages) + 1)
        return history

    @uninterrupted("append")
    async def append_turn(
        self,
        owner: str,
        session_id: str,
        turn: NewTurn,
        expected_revision: int | None = None,
        done: Done | None = None,
    ) -> Turn:
        """Stores messages and reply, and `done`, the answer kept for its Idempotency-Key: all of it or nothing. Raises
        Conflict where it is stored already, or where another request took the key over."""
        self._check_messages(turn.messages)
        check_distinct([*(message.id for message in turn.messages), turn.reply.id])
        async with self._change(owner, session_id, expected_revision) as change:
            new = [stored(message, change.mine.now) for message in turn.messages]
            reply = stored_reply(turn.reply, change.mine.now)
            await change.add([*new, reply])
            return Turn(await self._finish(change, turn.cut, done), tuple(new), reply)

    @uninterrupted("append")
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
        """Puts `reply` in place of the last message. Raises Conflict where that is not an assistant's."""
        async with self._removal(owner, session_id, expected_revision) as change:
            its = change.mine.columns("messages")
            statement = change.mine.select("messages").where(its.session == change.row.number)
            last = (await change.connection.execute(statement.order_by(its.position.desc()).limit(1))).one_or_none()
            if last is None or last.role != ASSISTANT:
                raise Conflict("The session's last message is not an answer: send a message to get one")
            await change.remove(last, is_last=True)
            new = stored_reply(reply, change.mine.now)
            await change.add([new])
            return Turn(await self._finish(change, cut, done), (), new)

    # Retention

    @uninterrupted("maintain")
    async def sweep(self) -> int:
        """Removes expired rows of every owner, and the traces of removed rows; the server calls it at intervals.
        Returns the number of sessions."""
        removed, others = await retention.remove_expired(self._database, self._clock())
        if removed or others or self._traces:
            self._traces = False  # what is removed from here on leaves new ones
            try:
                await retention.compact(self._database)
            except BaseException:
                self._leave_traces()
                raise
        return removed

    @uninterrupted("maintain")
    async def erase(self, owner: str, session_id: str) -> None:
        """Deletes a session so that SQLite's files hold no byte of it. Takes time in proportion to the file. When this
        raises Unavailable after the deletion, `erase_owner` or a later `erase` clears the bytes."""
        await self.delete(owner, session_id)
        await retention.rewrite(self._database)

    @uninterrupted("maintain")
    async def erase_owner(self, owner: str) -> int:
        """Erases all that an owner has, as `erase` does. Returns the number of sessions."""
        removed = await retention.remove_owner(self._database, owner)
        self._leave_traces()  # where the rewriting fails
        await retention.rewrite(self._database)
        return removed

    def _leave_traces(self) -> None:
        """Has the next sweep clear the traces of removed rows."""
        self._traces = True

    def _owned(self, owner: str) -> Owned:
        return Owned(owner, self._clock())

    def _check_messages(self, messages: Sequence[NewMessage]) -> None:
        if not messages:
            raise InvalidRequest("A turn needs a message: add one to `messages`", param="messages")
        self._check_each(messages)

    def _check_each(self, messages: Sequence[NewMessage]) -> None:
        for message in messages:
            self.limits.check_message(message)

    async def _new(self, connection: AsyncConnection, owner: str) -> Change:
        """Makes an empty session, where the owner may have one more."""
        await self._database.lock(connection, "owner", owner)
        mine = self._owned(owner)
        present = await mine.count(connection, mine.select("sessions", "number"), self.limits.max_per_owner)
        self.limits.check_owned(present, "sessions")
        return await Change.create(connection, mine, self.limits)

    @asynccontextmanager
    async def _change(self, owner: str, session_id: str, expected: int | None) -> AsyncIterator[Change]:
        async with self._database.writing() as connection:
            mine = self._owned(owner)
            row = await mine.session(connection, session_id, lock=True)
            check_revision(row.revision, expected)
            yield Change(connection, mine, row, self.limits)

    @asynccontextmanager
    async def _removal(self, owner: str, session_id: str, expected: int | None) -> AsyncIterator[Change]:
        """Does as `_change`, for a write that leaves traces of what it removes; also where its commit seems to fail."""
        try:
            async with self._change(owner, session_id, expected) as change:
                yield change
        finally:
            self._leave_traces()

    async def _finish(self, change: Change, cut: Json | None, done: Done | None) -> Session:
        if cut is not None:
            change.set({"cut": cut})
        if done is not None:
            await self.idempotency.settle(change.connection, change.mine, done, change.row.id)
        return await change.save()
