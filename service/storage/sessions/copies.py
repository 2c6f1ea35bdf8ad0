"""Copies makes new sessions from others: from a part of one, and from the lines that one was exported as."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from service.storage.database.database import Database, uninterrupted
from service.storage.sessions import transfer
from service.storage.sessions.change import Change, check_revision
from service.storage.sessions.history import Reading
from service.storage.sessions.limits import Limits
from service.storage.sessions.owned import Owned, StoredKind
from service.storage.sessions.rows import message_of, session_of
from service.storage.sessions.values import Json, Session, SessionFields, StoredMessage


class Copies(StoredKind):
    def __init__(
        self,
        database: Database,
        owned: Callable[[str], Owned],
        limits: Limits,
        leave_traces: Callable[[], None],
        new: Callable[[AsyncConnection, str], Awaitable[Change]],
    ) -> None:
        """`new` makes an empty session of an owner."""
        super().__init__(database, owned, limits, leave_traces)
        self._new = new

    @uninterrupted("write")
    async def fork(self, owner: str, session_id: str, at: str, expected_revision: int | None = None) -> Session:
        """Makes a new session with copies of the messages up to `at`, under new ids. `expected_revision` is that of the
        session that is copied."""
        async with self._database.writing() as connection:
            change = await self._new(connection, owner)
            mine = change.mine
            source = await mine.session(connection, session_id, lock=True)
            check_revision(source.revision, expected_revision)
            last = await mine.message(connection, source, at)
            rows = await Reading(connection, mine, source).rows(-1, source.message_count)
            kept = [row for row in rows if row.position <= last.position]
            positions = [row.position for row in kept]
            fields: Any = {name: getattr(source, name) for name in SessionFields.__annotations__}
            cut = transfer.cut_at(source.cut, positions)
            return await _filled(change, fields, transfer.copies(map(message_of, kept), positions), cut)

    @uninterrupted("read")
    async def export(self, owner: str, session_id: str) -> list[bytes]:
        """Returns lines of JSON without newlines: the session, then its messages."""
        async with self._database.reading() as connection:
            mine = self._owned(owner)
            session = await mine.session(connection, session_id)
            rows = await Reading(connection, mine, session).rows(-1, session.message_count)
        messages, positions = [message_of(row) for row in rows], [row.position for row in rows]
        return await asyncio.to_thread(transfer.lines_of, session_of(session), messages, positions)

    @uninterrupted("write")
    async def import_lines(self, owner: str, lines: Iterable[bytes]) -> Session:
        """Makes a new session of `owner` from the lines of `export`. Raises InvalidRequest that names the line,
        QuotaExceeded."""
        fields, cut, messages = await asyncio.to_thread(transfer.parsed, lines, self._limits)
        copied = transfer.copies(messages, range(len(messages)))
        async with self._database.writing() as connection:
            return await _filled(await self._new(connection, owner), fields, copied, cut)


async def _filled(
    change: Change, fields: SessionFields, messages: Sequence[StoredMessage], cut: Json | None
) -> Session:
    change.set({**fields, "cut": cut})
    await change.add(messages)
    return await change.save()
