"""This module keeps summaries of a session's messages up to a position. A summary goes with its session, and with any
edit or deletion of a message that it is made of. Only the caller knows what a key stands for."""

from __future__ import annotations

from collections.abc import Mapping

from service.errors import Stale
from service.storage.database.database import uninterrupted
from service.storage.sessions.owned import StoredKind

MOST_KEPT = 4
"""The most summaries of one session; summaries of older cuts are deleted."""


class StoredSummaries(StoredKind):
    @uninterrupted
    async def of(self, owner: str, session_id: str) -> Mapping[str, str]:
        """Returns key → text. Raises NotFound."""
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            session = await mine.session(connection, session_id)
            its = mine.columns("summaries")
            rows = mine.select("summaries", "key", "content").where(its.session == session.number)
            return {row.key: row.content for row in await connection.execute(rows)}

    @uninterrupted
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
