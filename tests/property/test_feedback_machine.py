"""Votes beside a plain model of them in memory: two owners, any order of answers, votes, edits, deletions and time.

After each call the lists, the counts and the pairs are the model's, and a sweep leaves no row of what is gone.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings, stateful
from hypothesis import strategies as st

from service.api.http.fields import validated
from service.api.sessions.feedback import FeedbackBody
from service.errors import InvalidRequest, NotFound
from service.storage.sessions import Answered, NewMessage, NewReply, NewTurn, NewVote, SessionStore, Tally
from tests.effort import drawn
from tests.sessions import Clock, needs_postgresql, new_database

Result = TypeVar("Result")
OWNERS = ("ann", "bob")
WHICH = st.integers(0, 20)
VERSIONS = st.sampled_from(["1", "2", "10"])
TTL = 50.0


@dataclass(eq=False)
class Chat:
    id: str
    owner: str
    expires: float
    answers: list[Given] = field(default_factory=list)


@dataclass(eq=False)
class Given:
    """An answer in its message. `id` is None once its text was edited."""

    message: str
    id: str | None
    version: str
    chat: Chat
    text: str


@dataclass(eq=False)
class Kept:
    """A vote. `on` and `over` are None once their texts are gone."""

    id: str
    rating: int
    chat: Chat
    version: str
    on: Given | None
    over_id: str | None = None
    over_chat: Chat | None = None
    over_version: str | None = None
    over: Given | None = None


class FeedbackMachine(stateful.RuleBasedStateMachine):
    kind: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = Clock()
        url = new_database(self.kind, Path(self.directory.name))
        self.store = self.run(SessionStore.open(url, clock=self.clock))
        self.chats: list[Chat] = []
        self.made: list[Given] = []
        self.votes: list[Kept] = []
        self.given = 0
        for owner in OWNERS:
            for version in ("1", "2"):
                self.start(owner)
                self.say(self.chats[-1], version)
                self.say(self.chats[-1], version)
            self.votes_on(owner, [(number, None if number % 2 else number + 2, False) for number in range(4)])

    def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(call)

    def living(self, owner: str | None = None) -> list[Chat]:
        now = self.clock.now.timestamp()
        return [chat for chat in self.chats if chat.expires > now and owner in (None, chat.owner)]

    def chat(self, which: int) -> Chat:
        if not self.living():
            self.start(OWNERS[which % 2])
        return self.living()[which % len(self.living())]

    def answers(self, owner: str) -> list[Given]:
        """In the order in which they were stored, for the first of several copies is the one that is meant."""
        found = [given for chat in self.living(owner) for given in chat.answers if given.id]
        return sorted(found, key=self.made.index)

    def start(self, owner: str) -> None:
        session = self.run(self.store.create(owner, {"ttl_seconds": TTL}))
        self.chats.append(Chat(session.id, owner, self.clock.now.timestamp() + TTL))

    def wrote(self, chat: Chat) -> None:
        chat.expires = self.clock.now.timestamp() + TTL

    def reply(self, version: str) -> NewReply:
        self.given += 1
        id = f"gen-{self.given}"
        return NewReply(f"text of {id}", Answered(model=f"demo:{version}", version=version, answer_id=id))

    def note(self, chat: Chat, message: str, id: str | None, version: str, text: str) -> None:
        given = Given(message, id, version, chat, text)
        chat.answers.append(given)
        self.made.append(given)

    def say(self, chat: Chat, version: str) -> None:
        reply = self.reply(version)
        turn = NewTurn((NewMessage("hi"),), reply)
        stored = self.run(self.store.append_turn(chat.owner, chat.id, turn)).reply
        self.note(chat, stored.id, f"gen-{self.given}", version, reply.content)
        self.wrote(chat)

    @stateful.rule(owner=st.sampled_from(OWNERS))
    def another_chat(self, owner: str) -> None:
        self.start(owner)
        self.say(self.chats[-1], "1")

    @stateful.rule(which=WHICH, version=VERSIONS)
    def answer(self, which: int, version: str) -> None:
        self.say(self.chat(which), version)

    @stateful.rule(
        owner=st.sampled_from(OWNERS),
        opinions=st.lists(st.tuples(WHICH, st.none() | WHICH, st.booleans()), min_size=1, max_size=6),
    )
    def votes_on(self, owner: str, opinions: list[tuple[int, int | None, bool]]) -> None:
        for which, over, bad in opinions:
            self.vote(owner, which, over, bad)

    def vote(self, owner: str, which: int, over: int | None, bad: bool) -> None:
        self.clock.move(0.001)
        known = self.answers(owner)
        ids = list(dict.fromkeys(each.id for each in known if each.id))
        if not ids:
            return
        id, other = ids[which % len(ids)], None if over is None else ids[over % len(ids)]
        other = None if other == id else other
        rating = -1 if bad and other is None else 1
        _, replaced = self.run(self.store.feedback.vote(owner, NewVote(id, rating, other)))
        on = next(each for each in known if each.id == id)
        kept = Kept(id, rating, on.chat, on.version, on)
        if other is not None:
            worse = next(each for each in known if each.id == other)
            kept.over_id, kept.over_chat, kept.over_version, kept.over = other, worse.chat, worse.version, worse
        before = len(self.votes)
        self.votes = [
            each
            for each in self.votes
            if each.on is not on and not (kept.over and each.on is kept.over and each.over is on)
        ]
        assert replaced == (len(self.votes) < before)
        self.votes.append(kept)

    def vote_on_what_is_not_there(self, owner: str) -> None:
        """Another owner's answer, or one that was deleted, replaced or edited, or whose session has expired."""
        known = {each.id for each in self.answers(owner)}
        for id in {f"gen-{number}" for number in range(1, self.given + 1)} - known:
            with pytest.raises(NotFound):
                self.run(self.store.feedback.vote(owner, NewVote(id, 1)))

    @stateful.rule(which=WHICH, version=VERSIONS)
    def regenerate(self, which: int, version: str) -> None:
        chat = self.chat(which)
        if not chat.answers:
            return
        reply = self.reply(version)
        turn = self.run(self.store.replace_last_reply(chat.owner, chat.id, reply))
        self.forget_text(chat.answers.pop())
        self.note(chat, turn.reply.id, f"gen-{self.given}", version, reply.content)
        self.wrote(chat)

    @stateful.rule(which=WHICH, at=WHICH, same=st.booleans())
    def edit(self, which: int, at: int, same: bool) -> None:
        chat = self.chat(which)
        if not chat.answers:
            return
        given = chat.answers[at % len(chat.answers)]
        text = given.text if same else given.text + "!"
        self.run(self.store.edit_message(chat.owner, chat.id, given.message, content=text))
        if not same:
            self.forget_text(given)
            given.id, given.text = None, text
        self.wrote(chat)

    def forget_text(self, given: Given) -> None:
        for kept in self.votes:
            kept.on = None if kept.on is given else kept.on
            kept.over = None if kept.over is given else kept.over

    @stateful.rule(which=WHICH)
    def delete_the_last_turn(self, which: int) -> None:
        """Question and answer, so that `regenerate` finds an answer at the end."""
        chat = self.chat(which)
        if len(chat.answers) < 2:
            return
        gone = chat.answers.pop()
        asked = self.run(self.store.history(chat.owner, chat.id)).messages[-2].id
        for message in (gone.message, asked):
            self.run(self.store.delete_message(chat.owner, chat.id, message))
        self.votes = [each for each in self.votes if each.on is not gone and each.over is not gone]
        self.wrote(chat)

    @stateful.rule(which=WHICH, at=WHICH)
    def fork(self, which: int, at: int) -> None:
        chat = self.chat(which)
        if not chat.answers:
            return
        last = at % len(chat.answers)
        made = self.run(self.store.copies.fork(chat.owner, chat.id, chat.answers[last].message))
        copy = Chat(made.id, chat.owner, self.clock.now.timestamp() + TTL)
        copies = [
            each for each in self.run(self.store.history(chat.owner, made.id)).messages if each.role == "assistant"
        ]
        for stored, each in zip(copies, chat.answers[: last + 1], strict=True):
            self.note(copy, stored.id, each.id, each.version, each.text)
        self.chats.append(copy)

    @stateful.rule(which=WHICH)
    def delete(self, which: int) -> None:
        chat = self.chat(which)
        self.run(self.store.delete(chat.owner, chat.id))
        self.chats.remove(chat)
        self.votes = [each for each in self.votes if chat not in (each.chat, each.over_chat)]

    @stateful.rule(seconds=st.sampled_from([1.0, TTL / 2, TTL]))
    def time_goes_by(self, seconds: float) -> None:
        self.clock.move(seconds)
        for owner in OWNERS:
            self.vote_on_what_is_not_there(owner)

    @stateful.rule()
    def sweep(self) -> None:
        self.run(self.store.sweep())
        self.chats = self.living()
        self.votes = [kept for owner in OWNERS for kept in self.visible(owner)]
        assert self.run(self.rows()) == len(self.votes)

    async def rows(self) -> int:
        async with self.store._database.reading() as connection:
            return int((await connection.exec_driver_sql("SELECT count(*) FROM feedback")).scalar_one())

    def visible(self, owner: str) -> list[Kept]:
        living = self.living(owner)
        return [kept for kept in self.votes if kept.chat in living and kept.over_chat in (None, *living)]

    @stateful.invariant()
    def what_is_shown_is_the_model(self) -> None:
        for owner in OWNERS:
            kept = self.visible(owner)
            shown = self.run(self.store.feedback.all(owner, limit=100)).data
            newest = sorted(kept, key=self.votes.index, reverse=True)
            assert [(each.id, each.rating, each.preferred_over, each.session_id) for each in shown] == [
                (each.id, each.rating, each.over_id, each.chat.id) for each in newest
            ]
            assert {each.version: each for each in self.run(self.store.feedback.summary(owner))} == counted(kept)
            assert self.pairs(owner) == [(each.on.text, each.over.text) for each in newest if each.on and each.over]

    def pairs(self, owner: str) -> list[tuple[str, str]]:
        found, cursor = [], None
        while (following := self.run(self.store.feedback.pair(owner, cursor))) is not None:
            pair, cursor = following
            found.append((pair.chosen, pair.rejected))
            assert pair.prompt[-1] == ("user", "hi")
        return found

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()
        self.directory.cleanup()


def counted(kept: list[Kept]) -> dict[str | None, Tally]:
    good = Counter(each.version for each in kept if each.rating > 0)
    bad = Counter(each.version for each in kept if each.rating < 0)
    bad += Counter(each.over_version for each in kept if each.over_version)
    return {each: Tally(f"demo:{each}", each, good[each], bad[each]) for each in {*good, *bad}}


class OnSqlite(FeedbackMachine):
    kind = "sqlite"


class OnPostgresql(FeedbackMachine):
    kind = "postgresql"


ROUNDS = settings(
    max_examples=drawn(2, 8), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestOnSqlite = OnSqlite.TestCase
TestOnSqlite.settings = ROUNDS
TestOnPostgresql = needs_postgresql(OnPostgresql.TestCase)
TestOnPostgresql.settings = ROUNDS

RATINGS = st.sampled_from([1, -1]) | st.integers() | st.booleans() | st.floats() | st.text(max_size=2) | st.none()
IDS = st.text(min_size=1, max_size=3) | st.integers(0, 102).map(lambda length: "a" * length)
COMMENTS = st.none() | st.text(max_size=5) | st.integers(1998, 2002).map(lambda length: "가" * length)


@settings(deadline=None, max_examples=300)
@given(id=IDS, rating=RATINGS, over=st.none() | IDS, comment=COMMENTS)
def test_the_borders_of_a_body(id: str, rating: object, over: str | None, comment: str | None) -> None:
    """What is accepted is exactly what a vote can be, and is taken as it was sent."""
    body = {"id": id, "rating": rating, "preferred_over": over, "comment": comment}
    is_rating = type(rating) is int and rating in (1, -1)
    is_pair = over is None or (rating == 1 and 1 <= len(over) <= 100 and over != id)
    good = is_rating and 1 <= len(id) <= 100 and is_pair and len(comment or "") <= 2000
    if good:
        assert validated(FeedbackBody, body).model_dump() == body
    else:
        with pytest.raises(InvalidRequest) as refused:
            validated(FeedbackBody, body)
        assert refused.value.param in ("id", "rating", "preferred_over", "comment")
