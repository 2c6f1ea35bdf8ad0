"""The knowledge base holds documents that an owner adds, for all of the owner's chats or for one session; a search
finds their passages. Summaries are texts of a session's messages up to a position; only their caller knows what a key
stands for.

    document ─< passages ── passage_grams, the index of their pairs of characters

A summary goes with its session, and with any edit or deletion of a message that it is made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, false, func, or_
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import NotFound, Stale
from service.storage.database.database import uninterrupted
from service.storage.sessions import search
from service.storage.sessions.limits import check_limit, check_text
from service.storage.sessions.owned import Owned, StoredKind, is_id, one
from service.storage.sessions.rows import from_newest, newest_cursor, page_of
from service.storage.sessions.values import Knowledge, Page, Passage, new_knowledge_id
from service.text.passages import passages_of, titled

MOST_FOUND = 50
MOST_KEPT = 4
"""The most summaries of one session; summaries of older cuts are deleted."""


class KnowledgeBase(StoredKind):
    @uninterrupted("write")
    async def add(self, owner: str, text: str, title: str | None = None, session_id: str | None = None) -> Knowledge:
        """Stores a document. Raises InvalidRequest, NotFound for a session, QuotaExceeded past the owner's limit."""
        check_text(title, "title")
        self._limits.check_content(text, "text")
        mine = self._owned(owner)
        async with self._database.writing() as connection:
            await self._database.lock(connection, "owner", owner)
            if session_id is not None:
                await mine.session(connection, session_id, lock=True)
            present = await mine.count(connection, mine.select("knowledge", "number"), self._limits.max_per_owner)
            self._limits.check_owned(present, "documents")
            id, passages = new_knowledge_id(), passages_of(text)
            row = {"id": id, "title": title, "content": text, "session_id": session_id, "created_at": mine.now}
            [number] = await mine.insert(connection, "knowledge", [row])
            rows = [{"knowledge": number, "session_id": session_id, "content": each} for each in passages]
            numbers = await mine.insert(connection, "passages", rows) if rows else []
            texts = dict(zip(numbers, (titled(title, each) for each in passages), strict=True))
            await search.add(connection, "passage_grams", owner, texts)
        return Knowledge(id, title, text, session_id, len(passages), mine.now)

    @uninterrupted("read")
    async def get(self, owner: str, id: str) -> Knowledge:
        """Returns a document. Raises NotFound."""
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            row = await _row(connection, mine, id)
            return _knowledge(row, (await _passages(connection, mine, [row]))[row.number])

    @uninterrupted("read")
    async def all(
        self, owner: str, *, session_id: str | None = None, cursor: str | None = None, limit: int = 20
    ) -> Page[Knowledge]:
        """Returns documents, newest first; with `session_id` only those of one session."""
        check_limit(limit)
        mine = self._owned(owner)
        its = mine.columns("knowledge")
        newest = from_newest(mine.select("knowledge"), its, cursor)
        if session_id is not None:
            newest = newest.where(its.session_id == session_id if is_id(session_id) else false())
        async with self._database.reading() as connection:
            rows = list((await connection.execute(newest.limit(limit + 1))).all())
            counts = await _passages(connection, mine, rows)
        return page_of(rows, limit, lambda row: _knowledge(row, counts[row.number]), newest_cursor)

    @uninterrupted("write")
    async def delete(self, owner: str, id: str) -> None:
        """Deletes a document. Raises NotFound."""
        mine = self._owned(owner)
        async with self._database.writing() as connection:
            row = await _row(connection, mine, id)
            await remove(connection, mine, row)
        self._leave_traces()

    @uninterrupted("read")
    async def find(self, owner: str, question: str, session_id: str | None = None) -> tuple[Passage, ...] | None:
        """Returns at most MOST_FOUND passages that share pairs of characters with `question`, the most alike first.
        They come from the owner's shared documents and the session's own. Returns None where there are no such
        documents."""
        mine = self._owned(owner)
        its, of_document = mine.columns("passages"), mine.columns("knowledge")
        visible = or_(its.session_id.is_(None), its.session_id == session_id)
        async with self._database.reading() as connection:
            some = mine.select("passages", "number").where(visible).limit(1)
            if (await connection.execute(some)).first() is None:
                return None
            proposed = await search.alike_passages(connection, owner, question, session_id, MOST_FOUND)
            if not proposed:
                return ()
            joined = (
                mine.select("passages")
                .where(visible, its.number.in_(proposed))
                .join(of_document.number.table, of_document.number == its.knowledge)
                .add_columns(of_document.id.label("document"), of_document.title)
            )
            rows = {row.number: row for row in await connection.execute(joined)}
        found = [rows[number] for number in proposed if number in rows]
        return tuple(Passage(row.document, row.title, row.content) for row in found)


async def remove(connection: AsyncConnection, mine: Owned, document: Row[Any]) -> None:
    """Removes a document with its passages, also from the index."""
    its = mine.columns("passages")
    statement = mine.select("passages", "number", "content").where(its.knowledge == document.number)
    texts = {row.number: titled(document.title, row.content) for row in await connection.execute(statement)}
    await search.remove(connection, "passage_grams", document.owner, texts)
    await connection.execute(mine.delete("passages").where(its.knowledge == document.number))
    await connection.execute(mine.delete("knowledge").where(mine.columns("knowledge").number == document.number))


async def _row(connection: AsyncConnection, mine: Owned, id: str) -> Row[Any]:
    statement = mine.select("knowledge").where(mine.columns("knowledge").id == id)
    missing = NotFound(f"There is no document {id[:80]!r}; GET /v1/knowledge lists yours", param="knowledge_id")
    return await one(connection, statement, id, missing)


async def _passages(connection: AsyncConnection, mine: Owned, documents: Sequence[Row[Any]]) -> Counter[int]:
    """Returns the number of passages of each document, by the document's number."""
    its = mine.columns("passages").knowledge
    counted = mine.select("passages", "knowledge").add_columns(func.count().label("passages")).group_by(its)
    found = await connection.execute(counted.where(its.in_([document.number for document in documents])))
    return Counter({row.knowledge: row.passages for row in found})


def _knowledge(row: Row[Any], passages: int) -> Knowledge:
    return Knowledge(row.id, row.title, row.content, row.session_id, passages, row.created_at)


class StoredSummaries(StoredKind):
    @uninterrupted("read")
    async def of(self, owner: str, session_id: str) -> Mapping[str, str]:
        """Returns key → text. Raises NotFound."""
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            session = await mine.session(connection, session_id)
            its = mine.columns("summaries")
            rows = mine.select("summaries", "key", "content").where(its.session == session.number)
            return {row.key: row.content for row in await connection.execute(rows)}

    @uninterrupted("write")
    async def keep(self, owner: str, session_id: str, key: str, text: str, *, before: int, revision: int) -> None:
        """Stores `text`, made of the messages before the position `before`, as they were at `revision`. This is no
        write of the session: its revision stays. Raises NotFound; Stale where a message was edited or deleted since."""
        mine = self._owned(owner)
        its = mine.columns("summaries")
        async with self._database.writing() as connection:
            session = await mine.session(connection, session_id, lock=True)
            if session.edited > revision:
                raise Stale("A message was edited or deleted since: send the next turn to have it summarised again")
            held = its.session == session.number
            others = mine.select("summaries", "key").where(held, its.key != key).order_by(its.created_at.desc())
            newest = list((await connection.execute(others.limit(MOST_KEPT - 1))).scalars())
            await connection.execute(mine.delete("summaries").where(held, its.key.not_in(newest)))
            content = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
            row = {"session": session.number, "key": key, "before": before, "content": content}
            row["created_at"] = mine.now
            await mine.insert(connection, "summaries", [row])
