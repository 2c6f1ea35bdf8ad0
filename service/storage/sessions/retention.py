"""Retention removes data of any owner: one session, all that an owner has, and what has expired, with their traces.

    remove    the rows are gone for every reader, in the transaction of the caller
    compact   SQLite: the index forgets them too, and the log is emptied; the bytes of a row become zeroes, except in
              copies from when rows moved between pages
    rewrite   SQLite: the file is written anew, so that it holds no byte of them

PostgreSQL keeps dead rows until its vacuum, and its log as long as it is configured to (docs/operations.md).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.storage.database.database import Database
from service.storage.database.search_index import INDEXES, Indexed
from service.storage.database.tables import (
    answers,
    batches,
    feedback,
    files,
    idempotency,
    knowledge,
    messages,
    sessions,
    summaries,
    usage,
)
from service.storage.sessions import search
from service.storage.sessions.change import text_of
from service.storage.sessions.knowledge import remove as remove_document
from service.storage.sessions.owned import Owned
from service.storage.sessions.usage import remove_old

_BATCH = 100
"""Sessions of one transaction, and messages: the grams of a message take a millisecond, and on SQLite all writers wait
for the one that writes."""
_MERGED_PAGES = 500


async def remove(connection: AsyncConnection, session: Row[Any], room: int = _BATCH) -> int:
    """Removes a session whose row the caller has locked, with all that belongs to it, also the votes on its answers
    and the answers kept for replays, but `room` messages at most. Returns the room that is left. Where none is, the
    session has ended for every reader, and the next call goes on with its rest."""
    votes = or_(feedback.c.session == session.number, feedback.c.other_session == session.number)
    await connection.execute(delete(feedback).where(votes))
    await connection.execute(delete(idempotency).where(idempotency.c.session_id == session.id))
    await connection.execute(delete(summaries).where(summaries.c.session == session.number))
    its = messages.c.session == session.number
    some = select(messages.c.number, messages.c.content).where(its).order_by(messages.c.number).limit(room)
    if texts := {row.number: row.content for row in await connection.execute(some)}:
        await search.remove(connection, "message_grams", session.owner, texts)
        await connection.execute(delete(messages).where(messages.c.number.in_(texts)))
    if len(texts) == room:
        await _end(connection, sessions.c.number == session.number)
        return 0
    await _remove_knowledge(connection, knowledge.c.session_id == session.id)
    own = text_of(session.title, session.metadata)
    await search.remove(connection, "session_grams", session.owner, {session.number: own})
    await connection.execute(delete(sessions).where(sessions.c.number == session.number))
    return room - len(texts)


async def remove_rest(database: Database, session: Row[Any]) -> None:
    """Goes on with what `remove` has begun."""
    await _remove_all(database, sessions.c.number == session.number)


async def remove_expired(database: Database, now: datetime) -> tuple[int, int]:
    """Removes expired sessions, answers with the responses kept for their keys, such responses, and counts, a few at
    a time so that writers get in between. Returns the number of sessions, and of other rows that held words."""
    others = 0
    async with database.writing() as connection:
        shown = select(answers.c.id).where(answers.c.expires_at <= now)
        others += (await connection.execute(delete(idempotency).where(idempotency.c.answer_id.in_(shown)))).rowcount
        for table in (idempotency, answers):
            others += (await connection.execute(delete(table).where(table.c.expires_at <= now))).rowcount
        await remove_old(connection, now.timestamp())
    return await _remove_all(database, sessions.c.expires_at <= now), others


async def remove_owner(database: Database, owner: str) -> int:
    """Removes all that an owner has, expired or not. The contents of files go with the next sweep of their
    directory."""
    async with database.writing() as connection:
        for table in (idempotency, answers, files, batches, usage):
            await connection.execute(delete(table).where(table.c.owner == owner))
        await _remove_knowledge(connection, knowledge.c.owner == owner)
        await _end(connection, sessions.c.owner == owner)
    return await _remove_all(database, sessions.c.owner == owner)


async def compact(database: Database) -> None:
    if not database.is_sqlite:
        return
    for name in INDEXES:
        pages = -_MERGED_PAGES  # negative begins a merge of everything, positive goes on with it
        while await _merge(database, name, pages):
            pages = _MERGED_PAGES
    await database.truncate_log()


async def rewrite(database: Database) -> None:
    await compact(database)
    if database.is_sqlite:
        await database.rewrite()
        await database.truncate_log()


async def _remove_knowledge(connection: AsyncConnection, condition: Any) -> None:
    for document in (await connection.execute(select(knowledge).where(condition))).all():
        await remove_document(connection, Owned(document.owner, document.created_at), document)


async def _end(connection: AsyncConnection, condition: Any) -> None:
    """Ends sessions for every reader before they are removed."""
    await connection.execute(update(sessions).where(condition).values(expires_at=sessions.c.created_at))


async def _remove_all(database: Database, condition: Any) -> int:
    removed = 0
    while True:
        async with database.writing() as connection:
            some = select(sessions).where(condition).order_by(sessions.c.number).limit(_BATCH)
            rows = (await connection.execute(some.with_for_update())).all()
            room = _BATCH
            for row in rows:
                room = await remove(connection, row, room)
                if not room:
                    break
                removed += 1
        if not rows:
            return removed


async def _merge(database: Database, name: Indexed, pages: int) -> bool:
    """Makes one short step towards an index without traces of removed rows. Returns whether there is more to do."""
    async with database.writing() as connection:
        changes = text("SELECT total_changes()")
        before = (await connection.execute(changes)).scalar_one()
        await connection.execute(text(f"INSERT INTO {name}({name}, rank) VALUES ('merge', :pages)"), {"pages": pages})
        changed: int = (await connection.execute(changes)).scalar_one() - before
    return changed >= 2  # SQLite reports "nothing left to merge" as fewer than two changes
