"""Feedback keeps the votes on answers: which are good, and which of two is the better. It knows no wire format.

    vote ──▶ message, the answer ──▶ session
      └────▶ another message, the answer that it is preferred over ──▶ its session

A vote goes with the sessions of its answers, and with a message of them that is deleted. Where an answer is replaced or
its text edited, the vote still counts for the version, but there is no text for a pair any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, or_
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import NotFound
from service.storage.database.database import uninterrupted
from service.storage.sessions.limits import check_limit, check_text
from service.storage.sessions.owned import Owned, StoredKind, one
from service.storage.sessions.rows import from_newest, newest_cursor, page_of
from service.storage.sessions.values import NewVote, Page, Pair, Tally, Vote

Prompt = tuple[tuple[str, str], ...]
Made = tuple[str | None, str | None]
"""The model and the version that made an answer."""


class Feedback(StoredKind):
    @uninterrupted("write")
    async def vote(self, owner: str, new: NewVote) -> tuple[Vote, bool]:
        """Stores a vote. Returns it, and whether it replaces an earlier one: on the same answer, or for the other of
        the same two. This is no write of the session: its revision and its expiry stay. Raises NotFound for an answer
        that is not there, InvalidRequest, QuotaExceeded past the session's limit."""
        check_text(new.comment, "comment")
        mine = self._owned(owner)
        async with self._database.writing() as connection:
            answer, other = await _locked(connection, mine, new)
            replaced = await _withdraw(connection, mine, answer, other)
            await self._check_room(connection, mine, answer)
            row = {**_of(answer), "digest": answer.digest, "rating": new.rating, "comment": new.comment}
            over = {} if other is None else {f"other_{name}": value for name, value in _of(other).items()}
            await mine.insert(connection, "feedback", [{**row, **over, "created_at": mine.now}])
        if replaced:
            self._leave_traces()
        made = (answer.model, answer.version, answer.digest)
        vote = Vote(new.id, *made, new.rating, new.preferred_over, new.comment, answer.session_id, mine.now)
        return vote, replaced

    @uninterrupted("read")
    async def all(
        self,
        owner: str,
        *,
        name: str | None = None,
        version: str | None = None,
        cursor: str | None = None,
        limit: int = 20,
    ) -> Page[Vote]:
        """Returns votes, newest first; of one model, or of one version."""
        check_limit(limit)
        check_text(version, "version")
        mine = self._owned(owner)
        its, of = mine.columns("feedback"), mine.columns("sessions")
        votes = mine.select("feedback").where(*_made_by(its, name, version))
        joined = votes.join(of.number.table, of.number == its.session).add_columns(of.id.label("session_id"))
        async with self._database.reading() as connection:
            newest = from_newest(joined, its, cursor)
            rows = list((await connection.execute(newest.limit(limit + 1))).all())
        return page_of(rows, limit, _vote_of, newest_cursor)

    @uninterrupted("read")
    async def summary(self, owner: str, name: str | None = None, version: str | None = None) -> list[Tally]:
        """Returns the counts of each version that has a vote; of one model, or of one version."""
        check_text(version, "version")
        mine = self._owned(owner)
        its = mine.columns("feedback")
        own = mine.select("feedback", "model", "version", "rating")
        others = mine.select("feedback", "other_model", "other_version").where(its.other_id.is_not(None))
        good, bad = Counter[Made](), Counter[Made]()
        async with self._database.reading() as connection:
            for model, made_by, rating, count in await connection.execute(_counted(own)):
                (good if rating > 0 else bad)[model, made_by] += count
            for model, made_by, count in await connection.execute(_counted(others)):
                bad[model, made_by] += count
        found = [made for made in {*good, *bad} if _is_wanted(made, name, version)]
        return [Tally(*made, good[made], bad[made]) for made in sorted(found, key=_natural)]

    @uninterrupted("read")
    async def pair(self, owner: str, cursor: str | None = None) -> tuple[Pair, str] | None:
        """Returns the newest preference behind the cursor whose two texts are there, and the cursor behind it; None
        where there is no more. Holds the chats of the two answers in memory."""
        mine = self._owned(owner)
        its = mine.columns("feedback")
        both = mine.select("feedback").where(its.message.is_not(None), its.other_message.is_not(None))
        newest = from_newest(both, its, cursor).limit(1)
        async with self._database.reading() as connection:
            row = (await connection.execute(newest)).one_or_none()
            if row is None:
                return None
            chosen, rejected = [await _message(connection, mine, at) for at in (row.message, row.other_message)]
            prompt = await _prompt(connection, mine, chosen)
            same = row.session != row.other_session and prompt == await _prompt(connection, mine, rejected)
        made = (chosen.model, chosen.digest, rejected.model, rejected.digest)
        return Pair(prompt, chosen.content, rejected.content, *made, row.created_at, same), newest_cursor(row)

    async def _check_room(self, connection: AsyncConnection, mine: Owned, answer: Row[Any]) -> None:
        most, its = self._limits.max_messages, mine.columns("feedback")
        votes = mine.select("feedback", "number").where(its.session == answer.session)
        self._limits.check_votes(await mine.count(connection, votes, most))


async def remove(connection: AsyncConnection, mine: Owned, message: Row[Any]) -> None:
    """Removes the votes that name the answer in this message."""
    its = mine.columns("feedback")
    named = or_(its.message == message.number, its.other_message == message.number)
    await connection.execute(mine.delete("feedback").where(named))


async def detach(connection: AsyncConnection, mine: Owned, message: Row[Any]) -> None:
    """Keeps the votes on the answer in this message without its text, which another one replaces."""
    its = mine.columns("feedback")
    for column in (its.message, its.other_message):
        held = mine.update("feedback").where(column == message.number)
        await connection.execute(held.values({column.name: None}))


async def _locked(connection: AsyncConnection, mine: Owned, new: NewVote) -> tuple[Row[Any], Row[Any] | None]:
    """Returns the messages of the vote's answers, whose sessions no other transaction changes before this one ends.
    Sessions are locked in the order of their numbers, so that two votes do not wait for each other."""
    locked = set[int]()
    while True:
        answer = await _answer(connection, mine, new.id, "id")
        other = None
        if new.preferred_over is not None:
            other = await _answer(connection, mine, new.preferred_over, "preferred_over")
        sessions = {answer.session} if other is None else {answer.session, other.session}
        if sessions <= locked:
            return answer, other
        its = mine.columns("sessions")
        rows = mine.select("sessions", "number").where(its.number.in_(sessions)).order_by(its.number)
        await connection.execute(rows.with_for_update())
        locked |= sessions


async def _answer(connection: AsyncConnection, mine: Owned, id: str, param: str) -> Row[Any]:
    """Returns the message with the answer. Of several copies, as forks make them, the first."""
    its, of = mine.columns("messages"), mine.columns("sessions")
    in_session = mine.select("messages").where(its.answer_id == id, of.expires_at > mine.now)
    joined = in_session.join(of.number.table, of.number == its.session).add_columns(of.id.label("session_id"))
    missing = NotFound(
        f"None of your sessions has the answer {id[:80]!r}: `answer_id` of its messages says which it has. Answers "
        "without a session are not kept: send the request with `session_id` to vote on its answer",
        param=param,
    )
    return await one(connection, joined.order_by(its.number).limit(1), id, missing)


async def _withdraw(connection: AsyncConnection, mine: Owned, answer: Row[Any], other: Row[Any] | None) -> bool:
    """Removes the votes that a new vote replaces. Returns whether there were any."""
    its = mine.columns("feedback")
    earlier: ColumnElement[bool] = its.message == answer.number
    if other is not None:
        earlier = or_(earlier, (its.message == other.number) & (its.other_message == answer.number))
    return (await connection.execute(mine.delete("feedback").where(earlier))).rowcount > 0


async def _message(connection: AsyncConnection, mine: Owned, number: int) -> Row[Any]:
    statement = mine.select("messages", "session", "position", "content", "model", "digest")
    row: Row[Any] = (await connection.execute(statement.where(mine.columns("messages").number == number))).one()
    return row


async def _prompt(connection: AsyncConnection, mine: Owned, answer: Row[Any]) -> Prompt:
    """Returns the system prompt and all messages before the answer, as they are now."""
    system = mine.select("sessions", "system").where(mine.columns("sessions").number == answer.session)
    its = mine.columns("messages")
    before = mine.select("messages", "role", "content").where(
        its.session == answer.session, its.position < answer.position
    )
    said = (await connection.execute(before.order_by(its.position))).all()
    text = (await connection.execute(system)).scalar_one()
    return (*([("system", text)] if text else []), *((row.role, row.content) for row in said))


def _of(answer: Row[Any]) -> dict[str, object]:
    """Returns what a vote keeps of one of its answers."""
    return {
        "id": answer.answer_id,
        "session": answer.session,
        "message": answer.number,
        "model": answer.model,
        "version": answer.version,
    }


def _vote_of(row: Row[Any]) -> Vote:
    made = (row.model, row.version, row.digest)
    return Vote(row.id, *made, row.rating, row.other_id, row.comment, row.session_id, row.created_at)


def _made_by(its: Any, name: str | None, version: str | None) -> Sequence[ColumnElement[bool]]:
    """Returns the conditions of a model's name and of a version. `model` is name:version."""
    own_name = [] if name is None else [func.substr(its.model, 1, len(name) + 1) == f"{name}:"]
    return [*own_name, *([] if version is None else [its.version == version])]


def _is_wanted(made: Made, name: str | None, version: str | None) -> bool:
    model, made_by = made
    return (name is None or (model or "").startswith(f"{name}:")) and version in (None, made_by)


def _counted(statement: Select[Any]) -> Select[Any]:
    return statement.add_columns(func.count()).group_by(*statement.selected_columns)


def _natural(made: Made) -> tuple[str, int, str]:
    """The order of versions: by the model's name, numbers by their value."""
    model, version = made[0] or "", made[1] or ""
    return model.partition(":")[0], int(version) if version.isascii() and version.isdigit() else 0, version
