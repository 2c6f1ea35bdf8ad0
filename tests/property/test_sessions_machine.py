"""The store beside a plain model of it in memory: two owners, two stores on one database, any order of calls.

Hypothesis chooses the calls; after each the model and what the store shows are the same, and nothing is anybody else's.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings, stateful
from hypothesis import strategies as st

from service.errors import Conflict, NotFound, Stale
from service.storage.sessions import NewReply, Session, SessionStore
from service.storage.sessions.change import TITLE_CHARACTERS
from service.text.grams import fold
from tests.effort import drawn
from tests.sessions import Clock, a_turn, needs_postgresql, new_database

Result = TypeVar("Result")
OWNERS = ("ann", "bob")
WHICH = st.integers(0, 30)
CALLERS = st.sampled_from([True, True, True, True, False])
"""Whether the session's own owner calls, or the other one."""
TEXTS = st.text("가나 aA\n", max_size=12)
TTL = 100.0


@dataclass
class Said:
    id: str
    role: str
    content: str
    pinned: bool = False


@dataclass
class Kept:
    """A session as the model has it."""

    id: str
    owner: str
    made: int
    expires: float
    title: str | None = None
    revision: int = 1
    messages: list[Said] = field(default_factory=list)

    def written(self, now: float) -> None:
        self.revision += 1
        self.expires = now + TTL

    def add(self, *messages: Said) -> None:
        self.messages += messages
        if self.title is None:
            self.title = next((cut(message.content) for message in messages if message.role == "user"), None)

    def remove(self, message: Said) -> None:
        self.messages.remove(message)
        self.retitle(message.content)

    def edit(self, message: Said, content: str) -> None:
        before, message.content = message.content, content
        self.retitle(before)

    def retitle(self, gone: str) -> None:
        if self.title == cut(gone):
            self.title = next((cut(each.content) for each in self.messages if each.role == "user"), None)


def cut(text: str) -> str | None:
    return " ".join(text.split())[:TITLE_CHARACTERS].rstrip() or None


class SessionsMachine(stateful.RuleBasedStateMachine):
    kind: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = Clock()
        url = new_database(self.kind, Path(self.directory.name))
        self.stores = [self.run(SessionStore.open(url, clock=self.clock)) for _ in range(2)]
        self.kept: dict[str, Kept] = {}
        self.made = 0
        self.looks = 0
        self.gone = "s_none"
        """One that is deleted or has expired, once there is one."""
        for owner in OWNERS:
            for _ in range(2):
                id = self.start(0, owner, None)
                for said in ("가나", "b"):
                    self.say(0, owner, id, said)

    def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(call)

    @property
    def now(self) -> float:
        return self.clock.now.timestamp()

    def alive(self, id: str) -> Kept | None:
        kept = self.kept.get(id)
        return kept if kept is not None and kept.expires > self.now else None

    def pick(self, which: int, own: bool) -> tuple[str, str]:
        """A session, mostly one that lives, and who calls: its owner or the other."""
        living = [kept for kept in self.kept.values() if kept.expires > self.now]
        if which == 0 or not living:
            return self.gone, OWNERS[0]
        kept = living[which % len(living)]
        return kept.id, kept.owner if own else OWNERS[1 - OWNERS.index(kept.owner)]

    def call(self, id: str, owner: str, call: Coroutine[Any, Any, Result]) -> tuple[Kept, Result] | None:
        """The result beside the model's session; None where the model says that there is none, and so does the store"""
        kept = self.alive(id)
        if kept is None or kept.owner != owner:
            with pytest.raises(NotFound):
                self.run(call)
            return None
        return kept, self.run(call)

    def keep(self, session: Session, messages: list[Said]) -> str:
        self.made += 1
        kept = Kept(session.id, session.owner, self.made, self.now + TTL, session.title, 1, messages)
        self.kept[session.id] = kept
        return session.id

    def new(self, made: Session) -> list[Said]:
        """The messages of a copy, whose ids only the store knows."""
        stored = self.run(self.stores[0].history(made.owner, made.id)).messages
        return [Said(each.id, each.role, each.content, each.pinned) for each in stored]

    @stateful.rule(store=st.integers(0, 1), owner=st.sampled_from(OWNERS), title=st.none() | TEXTS)
    def create(self, store: int, owner: str, title: str | None) -> None:
        self.start(store, owner, title)

    def start(self, store: int, owner: str, title: str | None) -> str:
        self.clock.move(0.001)
        return self.keep(self.run(self.stores[store].create(owner, {"title": title, "ttl_seconds": TTL})), [])

    @stateful.rule(
        store=st.integers(0, 1),
        own=CALLERS,
        which=WHICH,
        said=TEXTS,
        behind=st.sampled_from([0, 0, 0, 1]),
    )
    def append(self, store: int, own: bool, which: int, said: str, behind: int) -> None:
        id, owner = self.pick(which, own)
        kept = self.alive(id)
        if behind and kept is not None and kept.owner == owner:
            with pytest.raises(Stale):
                self.run(self.stores[store].append_turn(owner, id, a_turn(said), kept.revision - behind))
        else:
            self.say(store, owner, id, said)

    def say(self, store: int, owner: str, id: str, said: str) -> None:
        turn = a_turn(said, "reply " + said)
        expected = self.kept[id].revision if id in self.kept else None
        if (done := self.call(id, owner, self.stores[store].append_turn(owner, id, turn, expected))) is not None:
            done[0].add(Said(turn.messages[0].id, "user", said), Said(turn.reply.id, "assistant", "reply " + said))
            done[0].written(self.now)
            assert done[1].session.revision == done[0].revision

    @stateful.rule(store=st.integers(0, 1), own=CALLERS, which=WHICH)
    def regenerate(self, store: int, own: bool, which: int) -> None:
        id, owner = self.pick(which, own)
        reply = NewReply("another reply")
        kept, call = self.alive(id), self.stores[store].replace_last_reply(owner, id, reply)
        if kept is not None and kept.owner == owner and (not kept.messages or kept.messages[-1].role == "user"):
            with pytest.raises(Conflict):
                self.run(call)
        elif (done := self.call(id, owner, call)) is not None:
            done[0].remove(done[0].messages[-1])
            done[0].add(Said(reply.id, "assistant", reply.content))
            done[0].written(self.now)

    @stateful.rule(
        store=st.integers(0, 1),
        own=CALLERS,
        which=WHICH,
        at=st.integers(0, 8),
        content=st.none() | TEXTS,
        pinned=st.none() | st.booleans(),
    )
    def edit(self, store: int, own: bool, which: int, at: int, content: str | None, pinned: bool | None) -> None:
        id, owner = self.pick(which, own)
        message = self.message(id, at)
        call = self.stores[store].edit_message(owner, id, message.id, content=content, pinned=pinned)
        if message.role == "none":
            with pytest.raises(NotFound):
                self.run(call)
        elif (done := self.call(id, owner, call)) is not None:
            if content is not None:
                done[0].edit(message, content)
            message.pinned = message.pinned if pinned is None else pinned
            done[0].written(self.now)
            found = self.run(self.stores[1 - store].sessions(owner, query=message.content, limit=100)).data
            assert id in [session.id for session in found]

    @stateful.rule(store=st.integers(0, 1), own=CALLERS, which=WHICH, at=st.integers(0, 8))
    def delete_message(self, store: int, own: bool, which: int, at: int) -> None:
        id, owner = self.pick(which, own)
        message = self.message(id, at)
        call = self.stores[store].delete_message(owner, id, message.id)
        if message.role == "none":
            with pytest.raises(NotFound):
                self.run(call)
        elif (done := self.call(id, owner, call)) is not None:
            done[0].remove(message)
            done[0].written(self.now)

    @stateful.rule(store=st.integers(0, 1), own=CALLERS, which=WHICH, at=st.integers(0, 8))
    def fork(self, store: int, own: bool, which: int, at: int) -> None:
        id, owner = self.pick(which, own)
        message = self.message(id, at)
        self.clock.move(0.001)
        call = self.stores[store].copies.fork(owner, id, message.id)
        if message.role == "none":
            with pytest.raises(NotFound):
                self.run(call)
            return
        if (done := self.call(id, owner, call)) is None:
            return
        before = [(each.role, each.content, each.pinned) for each in done[0].messages]
        copies = self.new(done[1])
        assert [(each.role, each.content, each.pinned) for each in copies] == before[: len(copies)]
        asked = next((content for role, content, _ in before if role == "user"), None)
        assert done[0].messages[len(copies) - 1] is message
        assert done[1].title in (done[0].title, None if asked is None else cut(asked))
        self.keep(done[1], copies)

    @stateful.rule(store=st.integers(0, 1), own=CALLERS, to=st.sampled_from(OWNERS), which=WHICH)
    def carry_over(self, store: int, own: bool, to: str, which: int) -> None:
        id, owner = self.pick(which, own)
        self.clock.move(0.001)
        if (done := self.call(id, owner, self.stores[store].copies.export(owner, id))) is None:
            return
        made = self.run(self.stores[1 - store].copies.import_lines(to, done[1]))
        copies = self.new(made)
        assert [(each.role, each.content, each.pinned) for each in copies] == [
            (each.role, each.content, each.pinned) for each in done[0].messages
        ]
        self.keep(made, copies)

    @stateful.rule(store=st.integers(0, 1), own=CALLERS, which=WHICH, title=st.none() | TEXTS)
    def patch(self, store: int, own: bool, which: int, title: str | None) -> None:
        id, owner = self.pick(which, own)
        if (done := self.call(id, owner, self.stores[store].patch(owner, id, {"title": title}))) is not None:
            done[0].title = title
            done[0].written(self.now)

    @stateful.rule(store=st.integers(0, 1), own=CALLERS, which=WHICH)
    def delete(self, store: int, own: bool, which: int) -> None:
        id, owner = self.pick(which, own)
        if self.call(id, owner, self.stores[store].delete(owner, id)) is not None:
            del self.kept[id]
            self.gone = id

    @stateful.rule(seconds=st.sampled_from([1.0, TTL / 20, TTL / 3]))
    def time_goes_by(self, seconds: float) -> None:
        self.clock.move(seconds)

    @stateful.rule(store=st.integers(0, 1))
    def sweep(self, store: int) -> None:
        gone = [id for id in self.kept if self.alive(id) is None]
        assert self.run(self.stores[store].sweep()) == len(gone)
        for id in gone:
            del self.kept[id]
            self.gone = id

    @stateful.rule(
        store=st.integers(0, 1),
        owner=st.sampled_from(OWNERS),
        query=st.text("가나 aA", max_size=2),
        limit=st.integers(1, 4),
    )
    def search(self, store: int, owner: str, query: str, limit: int) -> None:
        needle = fold(query)
        texts = {k.id: [k.title or "", *(said.content for said in k.messages)] for k in self.listed(owner)}
        expected = [id for id, each in texts.items() if not needle or any(needle in fold(text) for text in each)]
        found: list[str] = []
        cursor = None
        while True:
            page = self.run(self.stores[store].sessions(owner, query=query, cursor=cursor, limit=limit))
            found += [session.id for session in page.data]
            cursor = page.next_cursor
            if cursor is None:
                break
            assert len(page.data) == limit
        assert found == expected

    @stateful.invariant()
    def both_stores_show_the_model(self) -> None:
        """One after the other, step by step."""
        self.looks += 1
        store = self.stores[self.looks % 2]
        for owner in OWNERS:
            shown = self.run(store.sessions(owner, limit=100)).data
            assert [session.id for session in shown] == [kept.id for kept in self.listed(owner)]
            for session in shown:
                self.same(self.kept[session.id], session, store)

    def same(self, kept: Kept, session: Session, store: SessionStore) -> None:
        assert (session.title, session.revision) == (kept.title, kept.revision)
        assert abs(session.expires_at.timestamp() - kept.expires) < 0.0001
        assert session.message_count == len(kept.messages)
        stored = self.run(store.messages(kept.owner, kept.id, limit=100)).data
        assert [(each.id, each.role, each.content, each.pinned) for each in stored] == [
            (each.id, each.role, each.content, each.pinned) for each in kept.messages
        ]

    def listed(self, owner: str) -> list[Kept]:
        mine = [kept for kept in self.kept.values() if kept.owner == owner and kept.expires > self.now]
        return sorted(mine, key=lambda kept: -kept.made)

    def message(self, id: str, at: int) -> Said:
        """One of the session's, or one that is nowhere."""
        kept = self.kept.get(id)
        return kept.messages[at % len(kept.messages)] if kept and kept.messages else Said("m_none", "none", "")

    def teardown(self) -> None:
        for store in self.stores:
            self.run(store.close())
        self.runner.close()
        self.directory.cleanup()


class OnSqlite(SessionsMachine):
    kind = "sqlite"


class OnPostgresql(SessionsMachine):
    kind = "postgresql"


ROUNDS = settings(
    max_examples=drawn(3, 8), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestOnSqlite = OnSqlite.TestCase
TestOnSqlite.settings = ROUNDS
TestOnPostgresql = needs_postgresql(OnPostgresql.TestCase)
TestOnPostgresql.settings = ROUNDS
