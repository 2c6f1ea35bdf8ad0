"""History reads a session's messages: without receipts for a prompt, with derived receipts for a caller.

    0 ─── systems ─── … ─── a turn that stays ─── … ─── since ─────────── end
          read              read                         read               everything else: ids at most

A long session's next turn reads what may be sent, not what was cut before. The module knows no tokens, and of policies
only how they divide a chat into turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import dropwhile
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, and_, or_
from sqlalchemy.ext.asyncio import AsyncConnection

from service.context.partition import NEAREST, SYSTEM, Named, partition_of, wire_form
from service.context.policies import SYSTEM_ROLES, turn_ranges
from service.storage.sessions.owned import Owned, is_id
from service.storage.sessions.rows import ASSISTANT, TOOL
from service.storage.sessions.values import PromptPart, Said, StoredMessage

_COLUMNS: Final = ("id", "position", "role", "content", "name", "pinned", "tool_calls", "tool_call_id")
_RANGES: Final = 100
"""The most ranges of positions in one statement."""


class Reading:
    """Reads one session's messages in one transaction."""

    def __init__(self, connection: AsyncConnection, mine: Owned, session: Row[Any]) -> None:
        self._connection = connection
        self._mine = mine
        self._its = mine.columns("messages")
        self._in_session: ColumnElement[bool] = self._its.session == session.number
        self._session = session

    async def all(self) -> tuple[Said, ...]:
        return await self._said()

    async def rows(self, after: int, most: int) -> list[Row[Any]]:
        """Returns rows with all their columns, behind the position `after`."""
        statement = self._mine.select("messages").where(self._in_session, self._its.position > after)
        return list(await self._connection.execute(statement.order_by(self._its.position).limit(most)))

    async def part(self, part: PromptPart) -> tuple[tuple[Said, ...], tuple[Named, ...]] | None:
        """Returns the messages, and positions and ids of up to NEAREST other messages just before `since`; None where
        no turn begins there."""
        newest = await self._said(self._its.position >= part.since)
        role = next((said.role for said in newest if said.role not in SYSTEM_ROLES), "")
        if not newest or (newest[0].position, role) != (part.since, "user"):
            return None
        before = self._its.position < part.since
        by_position = {said.position: said for said in newest}
        # one message more, so that a system message between turns does not become one of the first
        first = list(await self._said(before, most=part.systems + 1))
        while first and first[-1].role in SYSTEM_ROLES and any(said.role not in SYSTEM_ROLES for said in first):
            first.pop()  # it begins the next turn, and would be taken for the beginning of the one at `since`
        by_position |= {said.position: said for said in first}
        for ranges in _batches(await self._turns(part)):
            inside = or_(*(and_(self._its.position >= first, self._its.position < stop) for first, stop in ranges))
            by_position |= {said.position: said for said in await self._said(before, inside)}
        others = await self.names(before, most=NEAREST)
        return tuple(by_position[at] for at in sorted(by_position)), others

    async def names(self, *conditions: ColumnElement[bool], most: int | None = None) -> tuple[Named, ...]:
        """Returns positions and ids in order, at most the newest `most`."""
        statement = self._mine.select("messages", "position", "id").where(self._in_session, *conditions)
        rows = await self._connection.execute(statement.order_by(self._its.position.desc()).limit(most))
        return tuple(reversed([(row.position, row.id) for row in rows]))

    async def results_of(self, message: Row[Any]) -> Sequence[Row[Any]]:
        """Returns the messages with results of this message's calls: those behind it in its turn."""
        if not message.tool_calls:
            return ()
        behind = self._in_session, self._its.position > message.position
        user = self._mine.select("messages", "position").where(*behind, self._its.role == "user")
        statement = self._mine.select("messages").where(*behind, self._its.role == TOOL)
        stop = (await self._connection.execute(user.order_by(self._its.position).limit(1))).scalar_one_or_none()
        if stop is not None:
            statement = statement.where(self._its.position < stop)
        ids = {call["id"] for call in message.tool_calls}
        return [row for row in (await self._connection.execute(statement)).all() if row.tool_call_id in ids]

    async def open_calls(self) -> set[str]:
        """Returns the ids of the calls since the user's last message: those that a result may name."""
        user = self._mine.select("messages", "position").where(self._in_session, self._its.role == "user")
        last = (await self._connection.execute(user.order_by(self._its.position.desc()).limit(1))).scalar_one_or_none()
        behind = self._its.position > (-1 if last is None else last)
        statement = self._mine.select("messages", "tool_calls").where(
            self._in_session, behind, self._its.role == ASSISTANT
        )
        rows = await self._connection.execute(statement)
        return {str(call["id"]) for calls in rows.scalars() for call in calls or ()}

    async def with_receipts(self, rows: Sequence[Row[Any]], messages: Iterable[StoredMessage]) -> list[StoredMessage]:
        """Returns the same messages, which come from `rows` in order, with receipts that name messages."""
        stored = [row for row in rows if row.context is not None and partition_of(row.context) is not None]
        if not stored:
            return list(messages)
        cuts = [_cut(row) for row in stored]
        below, last = min(cuts), stored[-1].position
        names = [
            *((-1, SYSTEM),),
            *await self.names(self._its.position < below, most=NEAREST),
            *await self.names(self._its.position >= below, self._its.position <= last),
        ]
        return [_derived(row, message, names) for row, message in zip(rows, messages, strict=True)]

    async def _said(self, *conditions: ColumnElement[bool], most: int | None = None) -> tuple[Said, ...]:
        statement = self._mine.select("messages", *_COLUMNS).where(self._in_session, *conditions)
        rows = await self._connection.execute(statement.order_by(self._its.position).limit(most))
        return tuple(Said(*row) for row in rows)

    async def _turns(self, part: PromptPart) -> list[tuple[int, int]]:
        """Returns where the turns that stay begin and end, before `since`."""
        return sorted({await self._turn(at, part.since) for at in await self._staying(part)})

    async def _turn(self, at: int, since: int) -> tuple[int, int]:
        """Returns where the turn of the message at position `at` begins and ends; `since` is where a later one begins.
        Reads the roles from two users' messages before the turn's end to two behind it, for `turn_ranges` to divide."""
        user = self._mine.select("messages", "position").where(self._in_session, self._its.role == "user")
        upto = user.where(self._its.position <= at).order_by(self._its.position.desc()).limit(2)
        behind = user.where(self._its.position > at).order_by(self._its.position).limit(2)
        before = list((await self._connection.execute(upto)).scalars())
        first = before[1] if len(before) == 2 else 0
        last = max((await self._connection.execute(behind)).scalars(), default=since)
        near = self._mine.select("messages", "position", "role").where(
            self._in_session, self._its.position >= first, self._its.position < min(last + 1, since)
        )
        rows = (await self._connection.execute(near.order_by(self._its.position))).all()
        chat = list(dropwhile(lambda row: row.role in SYSTEM_ROLES, rows))
        positions = [*(row.position for row in chat), since]
        ranges = ((positions[first], positions[stop]) for first, stop in turn_ranges([row.role for row in chat]))
        return next((each for each in ranges if each[0] <= at < each[1]), (at, at + 1))

    async def _staying(self, part: PromptPart) -> set[int]:
        """Returns the positions of messages whose turns stay."""
        before = self._mine.select("messages", "position").where(self._in_session, self._its.position < part.since)
        positions = set((await self._connection.execute(before.where(self._its.pinned))).scalars())
        if pins := list(filter(is_id, part.pins)):
            positions |= set((await self._connection.execute(before.where(self._its.id.in_(pins)))).scalars())
        if part.opening:
            first = before.order_by(self._its.position).offset(part.systems).limit(1)
            positions |= set((await self._connection.execute(first)).scalars())
        return positions


def _cut(row: Row[Any]) -> int:
    partition = partition_of(row.context)
    return row.position if partition is None or partition.cut is None else partition.cut


def _derived(row: Row[Any], message: StoredMessage, names: Sequence[Named]) -> StoredMessage:
    partition = None if message.answered is None or row.context is None else partition_of(row.context)
    if message.answered is None or partition is None:
        return message
    own = any(stop > row.position for _, stop in partition.kept)  # an answer that went on from its own beginning
    prompt = [each for each in names if each[0] < row.position + own]
    return replace(message, answered=replace(message.answered, context=wire_form(row.context, prompt)))


def _batches(ranges: Sequence[tuple[int, int]]) -> list[Sequence[tuple[int, int]]]:
    return [ranges[at : at + _RANGES] for at in range(0, len(ranges), _RANGES)]
