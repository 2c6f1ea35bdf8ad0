"""The sessions of another owner are not there: every call of the store, with every id that is his."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from service.errors import Conflict, NotFound
from service.storage.sessions import (
    AnswerKind,
    Feedback,
    Fresh,
    Idempotency,
    NewMessage,
    NewReply,
    NewVote,
    SessionStore,
    StoredAnswer,
    WantedAnswers,
)
from service.storage.sessions.claims import Claim, Done
from tests.sessions import a_turn, say

Call = Callable[[SessionStore, str, str], Awaitable[Any]]

# As mallory, with ann's session and message.
REFUSED: dict[str, Call] = {
    "get": lambda store, session, message: store.get("mallory", session),
    "patch": lambda store, session, message: store.patch("mallory", session, {"title": "x"}),
    "delete": lambda store, session, message: store.delete("mallory", session),
    "erase": lambda store, session, message: store.erase("mallory", session),
    "messages": lambda store, session, message: store.messages("mallory", session),
    "messages_from": lambda store, session, message: store.messages_from("mallory", session, message, 9),
    "add_messages": lambda store, session, message: store.add_messages("mallory", session, [NewMessage("x")]),
    "history": lambda store, session, message: store.history("mallory", session),
    "edit_message": lambda store, session, message: store.edit_message("mallory", session, message, content="x"),
    "delete_message": lambda store, session, message: store.delete_message("mallory", session, message),
    "check_turn": lambda store, session, message: store.check_turn("mallory", session, [NewMessage("x")]),
    "append_turn": lambda store, session, message: store.append_turn("mallory", session, a_turn()),
    "replace_last_reply": lambda store, session, message: store.replace_last_reply("mallory", session, NewReply("x")),
    "fork": lambda store, session, message: store.fork("mallory", session, message),
    "export": lambda store, session, message: store.export("mallory", session),
}
HARMLESS: dict[str, Call] = {
    "create": lambda store, session, message: store.create("mallory"),
    "sessions": lambda store, session, message: store.sessions("mallory", query="secret"),
    "import_lines": lambda store, session, message: store.import_lines("mallory", [b'{"type":"session","format":1}']),
    "erase_owner": lambda store, session, message: store.erase_owner("mallory"),
    "sweep": lambda store, session, message: store.sweep(),
}


def public(kind: type) -> set[str]:
    return {name for name, each in vars(kind).items() if inspect.iscoroutinefunction(each) and name[0] != "_"}


def test_every_call_is_tried() -> None:
    assert public(SessionStore) == {*REFUSED, *HARMLESS, "close"}
    # below; `settle` is a part of `finish` within the transaction of the owner's own turn
    assert public(Idempotency) == {"begin", "wait", "renew", "finish", "settle", "abandon"}
    assert public(Feedback) == {"vote", "all", "summary", "pair"}  # below


@pytest.mark.parametrize("name", [*REFUSED, *HARMLESS])
async def test_a_foreign_session_is_not_there(store: SessionStore, name: str) -> None:
    session = await store.create("ann", {"title": "secret"})
    turn = await say(store, "ann", session.id, "a secret")
    before = await store.export("ann", session.id), await store.get("ann", session.id)
    if name in REFUSED:
        with pytest.raises(NotFound) as foreign:
            await REFUSED[name](store, session.id, turn.reply.id)
        with pytest.raises(NotFound) as unknown:
            await REFUSED[name](store, "s_unknown", turn.reply.id)
        assert foreign.value.message.replace(session.id, "s_unknown") == unknown.value.message
    else:
        await HARMLESS[name](store, session.id, turn.reply.id)
    assert (await store.export("ann", session.id), await store.get("ann", session.id)) == before
    assert (await store.sessions("mallory", query="secret")).data == ()


@pytest.mark.parametrize("name", ["edit_message", "delete_message", "fork"])
async def test_a_foreign_message_is_not_there(store: SessionStore, name: str) -> None:
    """In a session of one's own, with the id of a message in another's."""
    session = await store.create("ann")
    turn = await say(store, "ann", session.id, "a secret")
    own = await store.create("mallory")
    await say(store, "mallory", own.id, "mine")
    with pytest.raises(NotFound):
        await REFUSED[name](store, own.id, turn.reply.id)
    with pytest.raises(NotFound):
        await REFUSED[name](store, own.id, "m_\x00")
    assert len((await store.history("ann", session.id)).messages) == 2


async def test_answers_and_votes_are_their_owner_s(store: SessionStore) -> None:
    """Not even the same words in the refusal tell whether there is such an answer."""
    for owner in ("ann", "mallory"):
        session = await store.create(owner)
        await store.append_turn(owner, session.id, a_turn(answer_id=f"gen-{owner}", model="demo:1", version="1"))
    await store.feedback.vote("ann", NewVote("gen-ann", 1, comment="secret"))
    for new in (NewVote("gen-ann", -1), NewVote("gen-mallory", 1, "gen-ann")):
        with pytest.raises(NotFound) as foreign:
            await store.feedback.vote("mallory", new)
        assert foreign.value.message == await refusal(store, NewVote("gen-nobody", 1))
    assert (await store.feedback.all("mallory")).data == () == tuple(await store.feedback.summary("mallory"))
    await store.feedback.vote("mallory", NewVote("gen-mallory", -1))
    await store.erase_owner("mallory")
    assert [vote.comment for vote in (await store.feedback.all("ann")).data] == ["secret"]


async def refusal(store: SessionStore, new: NewVote) -> str:
    with pytest.raises(NotFound) as unknown:
        await store.feedback.vote("mallory", new)
    return unknown.value.message.replace(new.id, "gen-ann")


async def test_a_key_is_of_its_owner(store: SessionStore) -> None:
    begun = await store.idempotency.begin("ann", "key", "hash")
    assert isinstance(begun, Fresh)
    await store.idempotency.finish(Done(begun.claim, b"ann's"))
    assert isinstance(await store.idempotency.begin("mallory", "key", "other hash"), Fresh)
    assert isinstance(await store.idempotency.wait("mallory", "key 2", "other hash", 1), Fresh)
    stolen = Claim("mallory", "key", begun.claim.token)
    for call in (store.idempotency.renew(stolen), store.idempotency.finish(Done(stolen, b"x"))):
        with pytest.raises(Conflict):
            await call
    await store.idempotency.abandon(stolen)
    assert getattr(await store.idempotency.begin("ann", "key", "hash"), "response", None) == b"ann's"


async def test_a_turn_cannot_spend_a_foreign_claim(store: SessionStore) -> None:
    session = await store.create("mallory")
    begun = await store.idempotency.begin("ann", "key", "hash")
    assert isinstance(begun, Fresh)
    with pytest.raises(Conflict):
        await store.append_turn("mallory", session.id, a_turn(), done=Done(begun.claim, b"mallory's"))
    assert (await store.get("mallory", session.id)).message_count == 0
    await store.idempotency.finish(Done(begun.claim, b"ann's"))


async def test_stored_answers_are_their_owner_s(store: SessionStore) -> None:
    kind: AnswerKind = "chat.completion"
    for owner, id in (("ann", "a"), ("mallory", "b"), ("ann", "c")):
        await store.answers.add(owner, StoredAnswer(id, kind, "demo:1", {"k": "v"}, [], {}))
    for call in (store.answers.get, store.answers.delete, store.answers.thread):
        with pytest.raises(NotFound):
            await call("mallory", kind, "a")
    with pytest.raises(NotFound):
        await store.answers.change_metadata("mallory", kind, "a", {})
    with pytest.raises(NotFound):
        await store.answers.all("mallory", WantedAnswers(kind, after="a"), 5)
    assert (await store.answers.change_metadata("ann", kind, "a", {"k": "w"})).metadata == {"k": "w"}
    found, has_more = await store.answers.all("ann", WantedAnswers(kind, "demo", newest_first=True), 1)
    assert ([each.id for each in found], has_more) == (["c"], True)
    found, has_more = await store.answers.all("ann", WantedAnswers(kind, metadata={"k": "w"}), 1)
    assert ([each.id for each in found], has_more) == (["a"], False)
