"""Lists of sessions go on where they stopped whatever comes and goes meanwhile, a query finds what is there, and
what is another owner's is not there."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from service.errors import Conflict, InvalidRequest, NotFound
from service.storage.sessions import (
    AnswerKind,
    Feedback,
    Fresh,
    Idempotency,
    NewMessage,
    NewReply,
    NewVote,
    Page,
    Session,
    SessionStore,
    StoredAnswer,
    WantedAnswers,
    search,
)
from service.storage.sessions.claims import Claim, Done
from service.storage.sessions.copies import Copies
from service.storage.sessions.search import words_of
from service.text.grams import fold
from tests.sessions import Clock, a_turn, say

OWNER = "ann"


async def pages(store: SessionStore, limit: int, query: str | None = None) -> list[Page[Session]]:
    found = [await store.sessions(OWNER, limit=limit, query=query)]
    while (cursor := found[-1].next_cursor) is not None:
        found.append(await store.sessions(OWNER, limit=limit, query=query, cursor=cursor))
        assert len(found) < 100, "the list does not end"
    return found


async def titles(store: SessionStore, query: str) -> list[str | None]:
    return [session.title for page in await pages(store, 3, query) for session in page.data]


async def test_a_list_is_stable_under_inserts_and_deletions(store: SessionStore, clock: Clock) -> None:
    made = []
    for _ in range(6):
        clock.move(1)
        made.append((await store.create(OWNER)).id)
    first = await store.sessions(OWNER, limit=2)
    clock.move(1)
    await store.create(OWNER)
    await store.delete(OWNER, made[4])  # the one that the cursor stands on
    await say(store, OWNER, made[0], "written to")
    rest = await store.sessions(OWNER, limit=20, cursor=first.next_cursor)
    assert [session.id for session in rest.data] == made[3::-1]


async def test_messages_oldest_first_in_pages(store: SessionStore) -> None:
    session = await store.create(OWNER)
    for n in range(4):
        await say(store, OWNER, session.id, f"q{n}", f"a{n}")
    first = await store.messages(OWNER, session.id, limit=3)
    assert [message.content for message in first.data] == ["q0", "a0", "q1"]
    await store.delete_message(OWNER, session.id, first.data[2].id)
    last = (await store.messages(OWNER, session.id, limit=100)).data[-1]
    await store.delete_message(OWNER, session.id, last.id)
    await say(store, OWNER, session.id, "q4", "a4")
    await say(store, OWNER, session.id, "q5", "a5")
    second = await store.messages(OWNER, session.id, limit=100, cursor=first.next_cursor)
    assert [message.content for message in second.data] == ["a1", "q2", "a2", "q3", "q4", "a4", "q5", "a5"]
    at_the_end = await store.messages(OWNER, session.id, limit=3, cursor=first.next_cursor)
    assert at_the_end.next_cursor is not None


async def test_a_cursor_is_of_its_list(store: SessionStore) -> None:
    session = await store.create(OWNER)
    await say(store, OWNER, session.id, "q")
    cursor = (await store.messages(OWNER, session.id, limit=1)).next_cursor
    assert cursor is not None and cursor.isascii() and not set(cursor) & set("+/=&?")
    for wrong in (cursor, cursor[:-2], "", "Wzld", "e30", "x" * 5000):
        with pytest.raises(InvalidRequest):
            await store.sessions(OWNER, cursor=wrong)


async def test_a_query_looks_in_title_metadata_and_messages(store: SessionStore, clock: Clock) -> None:
    session = await store.create(OWNER, {"title": "by title: 도시락"})
    clock.move(1)
    await store.create(
        OWNER, {"title": "by metadata", "metadata": {"place": ["서울", {"shop": "Lunch 도시락"}], "n": 42}}
    )
    clock.move(1)
    spoken = await store.create(OWNER, {"title": "by message"})
    await say(store, OWNER, spoken.id, "오늘의\n  도시락은 뭐예요?", "KIMCHI 찌개")
    clock.move(1)
    await store.create(OWNER, {"title": "none: 도시의 시락"})
    assert await titles(store, "도시락") == ["by message", "by metadata", "by title: 도시락"]
    assert await titles(store, "도시") == ["none: 도시의 시락", "by message", "by metadata", "by title: 도시락"]
    for query, expected in {
        "찌개": "by message",
        "kimchi": "by message",
        "의 도시락은": "by message",
        "뭐": "by message",
        "예요?": "by message",
        "42": "by metadata",
        "SHOP": "by metadata",
        "lunch  도": "by metadata",
        "TITLE: 도": "by title: 도시락",
        "도시락".encode().decode(): "by message",
        "\u1103\u1169\u1109\u1175\u1105\u1161\u11a8": "by message",  # decomposed, as some keyboards send it
    }.items():
        assert (await titles(store, query))[0] == expected, query
    for query in ("락도", "도 시락", "title: none", "%", "_", '"', "' OR 1=1", "NOT", "*", "김치"):
        assert await titles(store, query) == [], query
    assert len(await titles(store, "  ")) == 4
    await store.patch(OWNER, session.id, {"title": "renamed 반찬"})
    assert "renamed 반찬" not in await titles(store, "도시락") and await titles(store, "반찬") == ["renamed 반찬"]


HEAD = b'{"type":"session","format":2}'
MESSAGE = b'{"type":"message","id":"m_%d","role":"user","content":"%s","created_at":"2026-01-01T00:00:00Z"}'


async def test_grams_of_long_texts_are_made_beside_the_event_loop(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of short ones on it; at most 256 Ki characters at once, or one message."""
    asked, real = list[tuple[int, bool]](), search.grams_of
    loop = threading.get_ident()

    def grams_of(owner: str, text: str) -> set[int]:
        asked.append((len(text), threading.get_ident() == loop))
        return real(owner, text)

    monkeypatch.setattr(search, "grams_of", grams_of)
    added, add = list[list[int]](), search.add

    async def recorded(connection: Any, name: Any, owner: str, texts: Mapping[int, str]) -> None:
        added.append([len(text) for text in texts.values()])
        await add(connection, name, owner, texts)

    monkeypatch.setattr(search, "add", recorded)
    sizes = [100_000, 100_000, 100_000, 262_000, 262_000, 5]
    lines = [MESSAGE % (n, b"ab " * (size // 3)) for n, size in enumerate(sizes)]
    session = await store.copies.import_lines("ann", [HEAD, *lines])
    found = (await store.messages("ann", session.id)).data
    assert [len(each) for each in added[:4]] == [2, 1, 1, 2]
    await store.edit_message("ann", session.id, found[0].id, content="short")
    await store.delete_message("ann", session.id, found[1].id)
    await store.delete("ann", session.id)
    assert {is_on_loop for size, is_on_loop in asked if size > 10_000} == {False}
    assert (5, True) in asked


async def test_a_query_finds_what_a_plain_search_finds(store: SessionStore, clock: Clock) -> None:
    """Random texts over few characters, some outside the basic plane and some that collide with them in the index."""
    draw = random.Random(0)
    letters = "가나다aA \n\U0001f600\U00010000\uf600"
    texts: dict[str, list[str]] = {}
    for n in range(40):
        clock.move(1)
        session = await store.create(OWNER, {"title": str(n), "metadata": {"k": "".join(draw.choices(letters, k=5))}})
        said = ["".join(draw.choices(letters, k=draw.randrange(1, 30))) for _ in range(4)]
        await say(store, OWNER, session.id, said[0], said[1])
        await say(store, OWNER, session.id, said[2], said[3])
        texts[session.id] = [*words_of(session.title, session.metadata), *said]
    for _ in range(60):
        query = "".join(draw.choices(letters, k=draw.randrange(1, 5)))
        plain = [id for id, all_ in reversed(texts.items()) if any(fold(query) in fold(text) for text in all_)]
        listed = [session.id for page in await pages(store, 7, query) for session in page.data]
        assert listed == plain, repr(query)


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
    "fork": lambda store, session, message: store.copies.fork("mallory", session, message),
    "export": lambda store, session, message: store.copies.export("mallory", session),
}
HARMLESS: dict[str, Call] = {
    "create": lambda store, session, message: store.create("mallory"),
    "sessions": lambda store, session, message: store.sessions("mallory", query="secret"),
    "import_lines": lambda store, session, message: store.copies.import_lines(
        "mallory", [b'{"type":"session","format":1}']
    ),
    "erase_owner": lambda store, session, message: store.erase_owner("mallory"),
    "sweep": lambda store, session, message: store.sweep(),
    "require_writing": lambda store, session, message: store.require_writing(),
}


def public(kind: type) -> set[str]:
    return {name for name, each in vars(kind).items() if inspect.iscoroutinefunction(each) and name[0] != "_"}


def test_every_call_is_tried() -> None:
    assert public(SessionStore) | public(Copies) == {*REFUSED, *HARMLESS, "close"}
    # below; `settle` is a part of `finish` within the transaction of the owner's own turn
    assert public(Idempotency) == {"begin", "wait", "renew", "finish", "settle", "abandon"}
    assert public(Feedback) == {"vote", "all", "summary", "pair"}  # below


@pytest.mark.parametrize("name", [*REFUSED, *HARMLESS])
async def test_a_foreign_session_is_not_there(store: SessionStore, name: str) -> None:
    session = await store.create("ann", {"title": "secret"})
    turn = await say(store, "ann", session.id, "a secret")
    before = await store.copies.export("ann", session.id), await store.get("ann", session.id)
    if name in REFUSED:
        with pytest.raises(NotFound) as foreign:
            await REFUSED[name](store, session.id, turn.reply.id)
        with pytest.raises(NotFound) as unknown:
            await REFUSED[name](store, "s_unknown", turn.reply.id)
        assert foreign.value.message.replace(session.id, "s_unknown") == unknown.value.message
    else:
        await HARMLESS[name](store, session.id, turn.reply.id)
    assert (await store.copies.export("ann", session.id), await store.get("ann", session.id)) == before
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


async def test_a_claim_whose_client_has_left_is_given_up(store: SessionStore) -> None:
    """Else the client's next try would wait for the lease."""
    leaving = asyncio.create_task(store.idempotency.begin("ann", "key", "hash"))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await store._database._calls.ended()
    assert isinstance(await store.idempotency.begin("ann", "key", "hash"), Fresh)


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


async def test_a_thread_is_read_without_the_texts_of_its_branches(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its JSON is decoded beside the event loop."""

    def answer(id: str, previous: str | None) -> StoredAnswer:
        return StoredAnswer(id, "response", "demo:1", {}, [{"id": id}], {"of": id}, previous)

    for id, previous in (("a", None), ("b", "a"), ("c", "b"), *((f"branch {number}", "a") for number in range(20))):
        await store.answers.add("ann", answer(id, previous))
    decoded, real, loop = list[bool](), json.loads, threading.get_ident()

    def loads(text: str) -> Any:
        decoded.append(threading.get_ident() == loop)
        return real(text)

    monkeypatch.setattr(json, "loads", loads)
    thread = await store.answers.thread("ann", "response", "c")
    assert thread == [answer("a", None), answer("b", "a"), answer("c", "b")]
    assert decoded == [False] * 9
    await store.answers.delete("ann", "response", "b")
    with pytest.raises(NotFound, match="'b'"):
        await store.answers.thread("ann", "response", "c")
