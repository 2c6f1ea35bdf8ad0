"""Sessions, messages and turns: what is stored is what was given, and what a write changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from service.errors import Conflict, InvalidRequest, QuotaExceeded, Stale, UnsupportedField
from service.storage.sessions import (
    Answered,
    Limits,
    NewMessage,
    NewReply,
    NewTurn,
    PromptPart,
    SessionStore,
    StoredMessage,
)
from tests.sessions import Clock, a_turn, contents, receipt, say


async def test_create_and_get(store: SessionStore, clock: Clock) -> None:
    made = await store.create(
        "ann",
        {
            "title": "점심 주문",
            "model": "demo@production",
            "system": "짧게 답하세요",
            "policy": "middle",
            "metadata": {"table": 7, "tags": ["a", {"b": None}]},
            "ttl_seconds": 60,
        },
    )
    assert await store.get("ann", made.id) == made
    assert made.title == "점심 주문" and made.metadata == {"table": 7, "tags": ["a", {"b": None}]}
    assert (made.model, made.system, made.policy) == ("demo@production", "짧게 답하세요", "middle")
    assert (made.revision, made.message_count, made.cut) == (1, 0, None)
    assert made.created_at == clock.now and (made.expires_at - clock.now).total_seconds() == 60
    assert made.id.startswith("s_") and len(made.id) >= 23


async def test_a_turn_is_stored_with_all_it_has(store: SessionStore, clock: Clock) -> None:
    session = await store.create("ann")
    clock.move(5)
    answered = Answered({"used": 12, "kept": ["m_1"]}, "demo:2", "2", "0123abcd", {"total_tokens": 20}, "stop")
    asked = NewMessage("김치찌개 하나", name="앤", pinned=True)
    turn = NewTurn((asked,), NewReply("네\n알겠습니다", answered), {"at": asked.id})
    stored = await store.append_turn("ann", session.id, turn)
    assert (stored.session.revision, stored.session.message_count) == (2, 2)
    assert stored.session.cut == {"at": asked.id}
    assert (stored.session.expires_at - clock.now).days == 30
    page = await store.messages("ann", session.id)
    assert page.data == (*stored.messages, stored.reply) and page.next_cursor is None
    user, reply = page.data
    assert (user.id, user.role, user.content, user.name, user.pinned) == (asked.id, "user", "김치찌개 하나", "앤", True)
    assert user.answered is None and user.created_at == clock.now
    assert (reply.role, reply.content, reply.answered) == ("assistant", "네\n알겠습니다", answered)


async def test_patch_changes_what_it_names(store: SessionStore) -> None:
    session = await store.create("ann", {"system": "be brief", "metadata": {"a": 1}, "model": "demo"})
    patched = await store.patch("ann", session.id, {"model": None, "ttl_seconds": 10})
    assert (patched.model, patched.system, patched.metadata) == (None, "be brief", {"a": 1})
    assert (patched.ttl_seconds, patched.revision) == (10, 2)
    assert (await store.patch("ann", session.id, {"ttl_seconds": None})).ttl_seconds == store.limits.ttl_seconds
    with pytest.raises(UnsupportedField, match="colour"):
        await store.patch("ann", session.id, {"colour": "red"})  # type: ignore[typeddict-unknown-key]


async def test_a_title_goes_with_the_text_that_it_was_made_of(store: SessionStore) -> None:
    session = await store.create("ann")
    (asked,) = (await store.append_turn("ann", session.id, a_turn("my card is 4111"))).messages
    assert (await store.get("ann", session.id)).title == "my card is 4111"
    await store.edit_message("ann", session.id, asked.id, content="(removed)")
    assert (await store.get("ann", session.id)).title == "(removed)"
    assert (await store.sessions("ann", query="4111")).data == ()
    await store.patch("ann", session.id, {"title": "lunch"})
    await store.edit_message("ann", session.id, asked.id, content="another")
    assert (await store.get("ann", session.id)).title == "lunch", "a title that somebody gave"


async def test_a_stale_writer_is_told(store: SessionStore) -> None:
    session = await store.create("ann")
    await store.append_turn("ann", session.id, a_turn("one"), expected_revision=1)
    writes: list[Any] = [
        store.append_turn("ann", session.id, a_turn("two"), expected_revision=1),
        store.patch("ann", session.id, {"title": "x"}, expected_revision=1),
        store.delete("ann", session.id, expected_revision=1),
        store.replace_last_reply("ann", session.id, NewReply("x"), expected_revision=1),
        store.check_turn("ann", session.id, [NewMessage("x")], expected_revision=1),
    ]
    for write in writes:
        with pytest.raises(Stale, match="revision 2"):
            await write
    assert await contents(store, "ann", session.id) == ["one", "네, 반갑습니다"]


async def test_writers_of_one_session_come_one_after_the_other(store: SessionStore, database_url: str) -> None:
    other = await SessionStore.open(database_url)
    session = await store.create("ann")
    stores = [store, other]
    await asyncio.gather(*(say(stores[n % 2], "ann", session.id, f"q{n}", f"a{n}") for n in range(24)))
    said = await contents(store, "ann", session.id)
    assert [reply[1:] for reply in said[1::2]] == [question[1:] for question in said[::2]]
    assert sorted(said[::2]) == sorted(f"q{n}" for n in range(24))
    assert (await other.get("ann", session.id)).revision == 25
    await other.close()


async def test_one_of_two_conditional_writers_wins(store: SessionStore, database_url: str) -> None:
    other = await SessionStore.open(database_url)
    session = await store.create("ann")
    for revision in range(1, 9):
        written = await asyncio.gather(
            *(each.append_turn("ann", session.id, a_turn(), expected_revision=revision) for each in (store, other)),
            return_exceptions=True,
        )
        assert sorted(type(each).__name__ for each in written) == ["Stale", "Turn"]
    await other.close()


async def test_a_turn_is_stored_once(store: SessionStore) -> None:
    session = await store.create("ann")
    turn = a_turn()
    await store.append_turn("ann", session.id, turn)
    with pytest.raises(Conflict, match="stored already"):
        await store.append_turn("ann", session.id, turn)
    assert (await store.get("ann", session.id)).revision == 2


async def test_a_cancelled_write_is_whole_or_absent(store: SessionStore) -> None:
    session = await store.create("ann")
    for n in range(30):
        writing = asyncio.create_task(say(store, "ann", session.id, f"q{n}", f"a{n}"))
        await asyncio.sleep(0.0004 * n)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    await say(store, "ann", session.id, "q99", "a99")
    history = await store.history("ann", session.id)
    session, said = history.session, [message.content for message in history.messages]
    assert [reply[1:] for reply in said[1::2]] == [question[1:] for question in said[::2]]
    assert "a99" in said and len(said) == session.message_count


async def test_a_call_goes_on_when_its_caller_is_gone(store: SessionStore) -> None:
    session = await store.create("ann")
    writing = asyncio.create_task(say(store, "ann", session.id, "q", "a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    async with asyncio.timeout(60):
        while await contents(store, "ann", session.id) != ["q", "a"]:
            await asyncio.sleep(0.01)


async def test_fork_shares_nothing(store: SessionStore) -> None:
    session = await store.create("ann", {"metadata": {"a": 1}, "system": "s", "ttl_seconds": 99})
    gone = await say(store, "ann", session.id, "zero", "0")
    await store.delete_message("ann", session.id, gone.messages[0].id)
    await say(store, "ann", session.id, "one", "1")
    answered = Answered(context=receipt((2, 5), 4, cut=2))
    turn = NewTurn((NewMessage("two", pinned=True),), NewReply("2", answered), {"at": 2, "policy": "window"})
    second = await store.append_turn("ann", session.id, turn)
    await say(store, "ann", session.id, "three", "3")
    fork = await store.copies.fork("ann", session.id, second.reply.id)
    copies = (await store.messages("ann", fork.id)).data
    assert [copy.content for copy in copies] == ["0", "one", "1", "two", "2"] and copies[3].pinned
    assert (fork.system, fork.metadata, fork.ttl_seconds, fork.revision) == ("s", {"a": 1}, 99, 1)
    originals = (await store.messages("ann", session.id)).data
    assert {copy.id for copy in copies}.isdisjoint(original.id for original in originals)
    assert fork.cut == {"at": 1, "policy": "window"}
    for chat in (originals, copies):
        context = context_of(chat[4])
        assert (context["kept"], context["dropped"]) == ([each.id for each in chat[1:4]], [chat[0].id])
        assert context["cut"] == {"at": chat[1].id, "stable_for_tokens": 7}
    await store.edit_message("ann", fork.id, copies[0].id, content="changed")
    await store.delete("ann", session.id)
    assert await contents(store, "ann", fork.id) == ["changed", "one", "1", "two", "2"]


async def test_a_fork_before_the_cut_is_not_cut(store: SessionStore) -> None:
    session = await store.create("ann")
    first = await say(store, "ann", session.id, "one")
    turn = a_turn("two")
    await store.append_turn("ann", session.id, NewTurn(turn.messages, turn.reply, {"at": 2, "policy": "window"}))
    assert (await store.copies.fork("ann", session.id, first.reply.id)).cut is None


async def test_import_of_an_export(store: SessionStore, clock: Clock) -> None:
    session = await store.create("ann", {"title": "제목", "metadata": {"k": "값"}, "policy": "window"})
    asked = NewMessage("질문\n둘", name="n", pinned=True)
    answered = Answered(receipt((0, 1), 1, cut=0), "demo:2", "2", "abc", {"n": 1}, "stop", "gen-1")
    cut = {"at": 0, "policy": "window", "before": {"messages": 0}}
    await store.append_turn("ann", session.id, NewTurn((asked,), NewReply("답", answered), cut))
    clock.move(100)
    lines = await store.copies.export("ann", session.id)
    assert len(lines) == 3 and "질문".encode() in lines[1] and b"\n" not in b"".join(lines)
    imported = await store.copies.import_lines("bob", [*lines, b""])
    assert (imported.owner, imported.title, imported.policy) == ("bob", "제목", "window")
    assert imported.id != session.id and imported.created_at == clock.now
    old, new = (await store.messages("ann", session.id)).data, (await store.messages("bob", imported.id)).data
    assert [(m.role, m.content, m.name, m.pinned, m.created_at) for m in new] == [
        (m.role, m.content, m.name, m.pinned, m.created_at) for m in old
    ]
    assert imported.cut == {"at": 0, "policy": "window"}, "numbers are not taken from others"
    for chat in (old, new):
        assert context_of(chat[1])["kept"] == [chat[0].id]
    assert new[1].answered is not None
    assert replace(new[1].answered, context=None) == Answered(None, "demo:2", "2", "abc", {"n": 1}, "stop", "gen-1")
    again = await store.copies.export("bob", imported.id)
    for before, after in zip(old, new, strict=True):
        again = [line.replace(after.id.encode(), before.id.encode()) for line in again]
    assert again == lines


async def test_an_export_of_before_is_imported_with_its_receipts(store: SessionStore) -> None:
    """Format 1 names messages in its receipts and in the cut."""
    lists = {"kept": ["system", "m_2"], "dropped": ["m_0", "m_1"], "summarised": list[str]()}
    context = {"policy": "window", **lists, "dropped_tokens": 9, "cut": {"at": "m_2", "stable_for_tokens": 7}}
    said: list[dict[str, object]] = [
        {"type": "message", "id": f"m_{at}", "role": role, "content": str(at), "created_at": "2026-01-01T00:00:00Z"}
        for at, role in enumerate(("user", "assistant") * 2)
    ]
    said[3]["context"] = context
    head = {"type": "session", "format": 1, "system": "s", "cut": {"at": "m_2", "policy": "window"}}
    imported = await store.copies.import_lines("ann", [json.dumps(each).encode() for each in (head, *said)])
    assert imported.cut == {"at": 2, "policy": "window"}
    new = (await store.messages("ann", imported.id)).data
    ids = {f"m_{at}": message.id for at, message in enumerate(new)} | {"system": "system"}
    named = {name: [ids[each] for each in lists[name]] for name in lists}
    cut = {"at": new[2].id, "stable_for_tokens": 7}
    counts = {"kept": 2, "dropped": 2, "summarised": 0}
    assert context_of(new[3]) == {**context, **named, "cut": cut, "counts": counts}


async def test_a_receipt_whose_cut_is_past_the_end_is_imported(store: SessionStore) -> None:
    imported = await store.copies.import_lines("ann", [HEAD.replace(b"1", b"2"), ANSWER % 2**70])
    [answer] = (await store.messages("ann", imported.id)).data
    assert context_of(answer) == {}


async def test_a_pin_that_is_no_id_pins_nothing(store: SessionStore) -> None:
    session = await store.create("ann")
    turns = [await say(store, "ann", session.id, f"turn {n}") for n in range(3)]
    pins = ("m_\x00", "m_\ud800", "핀", turns[0].messages[0].id)
    history = await store.history("ann", session.id, None, lambda _: PromptPart(4, 0, False, pins))
    assert not history.is_whole
    assert [said.content for said in history.messages] == ["turn 0", "네", "turn 2", "네"]


async def test_an_edit_returns_the_session_of_its_own_write(store: SessionStore) -> None:
    session = await store.create("ann")
    turn = await say(store, "ann", session.id, "hello")
    after, message = await store.edit_message("ann", session.id, turn.reply.id, content="changed")
    assert (after.revision, message.content) == (turn.session.revision + 1, "changed")
    assert after == await store.get("ann", session.id)


async def test_a_receipt_does_not_grow_with_its_chat(store: SessionStore) -> None:
    session = await store.create("ann")
    sizes = []
    for turn in range(40):
        answered = Answered(receipt((0, 2 * turn + 1), 2 * turn + 1))
        await store.append_turn("ann", session.id, NewTurn((NewMessage("q"),), NewReply("a", answered)))
        sizes.append(len((await store.copies.export("ann", session.id))[-1]))
    assert max(sizes) - min(sizes) <= 4, "more digits, and nothing else"
    last = (await store.messages("ann", session.id, limit=100)).data
    assert context_of(last[-1])["kept"] == [message.id for message in last[:-1]]


def context_of(message: StoredMessage) -> Mapping[str, Any]:
    assert message.answered is not None and message.answered.context is not None
    return message.answered.context


HEAD = b'{"type":"session","format":1}'
MESSAGE = b'{"type":"message","id":"m_1","role":"user","content":"hi","created_at":"2026-01-01T00:00:00Z"}'
CUT = b'"kept":[],"recalled":[],"summarised_before":0,"first":0,"counts":{"kept":0,"dropped":0,"summarised":0},"cut":%d'
ANSWER = MESSAGE.replace(b"user", b"assistant")[:-1] + b',"context":{"positions":{' + CUT + b"}}}"


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([], "first line"),
        ([MESSAGE], "first line"),
        ([HEAD, HEAD], "Line 2"),
        ([HEAD, b"{"], "Line 2"),
        ([HEAD, b"[" * 100_000], "Line 2"),
        ([HEAD, MESSAGE[:-1] + b',"colour":1}'], "colour"),
        ([HEAD, MESSAGE.replace(b"hi", b"\\u0000")], "content"),
        ([HEAD, MESSAGE.replace(b"hi", b"x" * 101)], "content"),
        ([HEAD, MESSAGE.replace(b"Z", b"")], "time zone"),
        ([HEAD, MESSAGE.replace(b"2026-01-01T00:00:00Z", b"0001-01-01T00:00:00+14:00")], "Line 2: `created_at`"),
        ([HEAD, MESSAGE.replace(b"2026-01-01T00:00:00Z", b"9999-12-31T23:59:59-14:00")], "Line 2: `created_at`"),
        ([HEAD, MESSAGE[:-1] + b',"model":"demo"}'], "receipt"),
        ([HEAD, ANSWER % -1], "Line 2: `context.positions.cut`"),
        ([HEAD, ANSWER % -(2**70)], "Line 2: `context.positions.cut`"),
        ([HEAD, MESSAGE, MESSAGE], "same `id`"),
        ([HEAD.replace(b"1", b"3")], "Line 1"),
        ([HEAD[:-1] + b',"metadata":' + b'{"a":' * 30 + b"1" + b"}" * 30 + b"}"], "metadata"),
    ],
)
async def test_what_is_no_export_is_refused_by_line(small: SessionStore, lines: list[bytes], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        await small.copies.import_lines("ann", lines)
    assert (await small.sessions("ann")).data == ()


@pytest.fixture
async def small(database_url: str) -> AsyncIterator[SessionStore]:
    limits = Limits(max_message_bytes=100, max_messages=4, max_per_owner=2, max_metadata_bytes=50)
    store = await SessionStore.open(database_url, limits)
    yield store
    await store.close()


async def test_an_answer_of_any_length_is_imported(small: SessionStore) -> None:
    session = await small.create("ann")
    await small.append_turn("ann", session.id, NewTurn((NewMessage("q"),), NewReply("x" * 101, reasoning="y" * 101)))
    lines = await small.copies.export("ann", session.id)
    assert (await small.copies.import_lines("ann", lines)).message_count == 2
    with pytest.raises(InvalidRequest, match="Line 2 is not of an export"):
        await small.copies.import_lines("ann", [lines[0], lines[1].replace(b'"user"', b'"wizard"')])


async def test_limits_are_refused_by_name(small: SessionStore) -> None:
    session = await small.create("ann")
    refused: list[tuple[Any, str]] = [
        (small.create("ann", {"title": "x" * 201}), "title"),
        (small.create("ann", {"system": "x" * 101}), "system"),
        (small.create("ann", {"metadata": {"a": "가" * 20}}), "metadata"),
        (small.create("ann", {"metadata": {"a": float("nan")}}), "metadata"),
        (small.create("ann", {"ttl_seconds": 0}), "ttl_seconds"),
        (small.create("ann", {"ttl_seconds": float("inf")}), "ttl_seconds"),
        (small.append_turn("ann", session.id, a_turn("가" * 34)), "content"),
        (small.append_turn("ann", session.id, a_turn("a\x00b")), "content"),
        (small.append_turn("ann", session.id, a_turn("\ud800")), "content"),
        (small.append_turn("ann", session.id, NewTurn((), NewReply("x"))), "messages"),
        (small.check_turn("ann", session.id, [NewMessage("x" * 101)]), "content"),
        (small.sessions("ann", limit=0), "limit"),
        (small.sessions("ann", limit=101), "limit"),
        (small.sessions("ann", query="x" * 201), "query"),
        (small.sessions("ann", cursor="nonsense"), "cursor"),
        (small.messages("ann", session.id, cursor="한글"), "cursor"),
    ]
    for call, param in refused:
        with pytest.raises(InvalidRequest) as error:
            await call
        assert error.value.param == param and param in error.value.message


async def test_room_of_a_session_and_of_an_owner(small: SessionStore) -> None:
    session = await small.create("ann")
    await say(small, "ann", session.id, "1")
    await small.check_turn("ann", session.id, [NewMessage("2")])
    last = await say(small, "ann", session.id, "2")
    for call in (
        small.check_turn("ann", session.id, [NewMessage("3")]),
        small.append_turn("ann", session.id, a_turn()),
    ):
        with pytest.raises(QuotaExceeded, match="4 messages"):
            await call
    await small.replace_last_reply("ann", session.id, NewReply("still possible"))
    await small.copies.fork("ann", session.id, last.messages[0].id)
    made: list[Any] = [
        small.create("ann"),
        small.copies.fork("ann", session.id, last.messages[0].id),
        small.copies.import_lines("ann", [HEAD]),
    ]
    for call in made:
        with pytest.raises(QuotaExceeded, match="2 sessions"):
            await call
    await small.create("bob")
    assert len((await small.sessions("ann")).data) == 2


async def test_a_reply_is_kept_whatever_it_is(small: SessionStore) -> None:
    session = await small.create("ann")
    await say(small, "ann", session.id, "hi", "x" * 200 + "\x00")
    assert (await contents(small, "ann", session.id))[1] == "x" * 200 + "\N{REPLACEMENT CHARACTER}"
