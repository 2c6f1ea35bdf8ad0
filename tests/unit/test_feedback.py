"""Votes on answers: what replaces what, what counts for which version, what they go with, what a trainer gets."""

from __future__ import annotations

import asyncio

import pytest

from service.errors import InvalidRequest, NotFound, QuotaExceeded
from service.storage.sessions import (
    Answered,
    Limits,
    NewMessage,
    NewReply,
    NewTurn,
    NewVote,
    Pair,
    SessionStore,
    Tally,
    Turn,
)
from tests.sessions import Clock, a_turn, new_database


async def answer(
    store: SessionStore, session: str, id: str, version: str = "1", said: str = "hi", reply: str = "네"
) -> Turn:
    answered = Answered(None, f"demo:{version}", version, f"digest{version}", None, "stop", id)
    return await store.append_turn("ann", session, NewTurn((NewMessage(said),), NewReply(reply, answered)))


async def vote(store: SessionStore, id: str, rating: int = 1, over: str | None = None, comment: str = "") -> bool:
    """Whether it replaced another vote."""
    return (await store.feedback.vote("ann", NewVote(id, rating, over, comment or None)))[1]


async def votes(store: SessionStore) -> list[tuple[str, int, str | None]]:
    return [(each.id, each.rating, each.preferred_over) for each in (await store.feedback.all("ann", limit=100)).data]


async def pairs(store: SessionStore) -> list[Pair]:
    found, cursor = list[Pair](), None
    while (next_pair := await store.feedback.pair("ann", cursor)) is not None:
        pair, cursor = next_pair
        found.append(pair)
    return found


@pytest.fixture
async def two(store: SessionStore) -> tuple[str, str]:
    """Two sessions with the same question, answered by demo:1 as `a` and by demo:2 as `b`."""
    first, second = [(await store.create("ann", {"system": "Be short."})).id for _ in range(2)]
    await answer(store, first, "a", "1", reply="yes")
    await answer(store, second, "b", "2", reply="no")
    return first, second


async def test_a_vote_says_what_made_the_answer(store: SessionStore, clock: Clock, two: tuple[str, str]) -> None:
    before = await store.get("ann", two[0])
    clock.move(1)
    stored, replaced = await store.feedback.vote("ann", NewVote("a", -1, comment="too short"))
    assert not replaced and (await store.feedback.all("ann")).data == (stored,)
    assert (stored.id, stored.model, stored.version, stored.digest) == ("a", "demo:1", "1", "digest1")
    assert (stored.rating, stored.comment, stored.session_id, stored.created) == (-1, "too short", two[0], clock.now)
    assert await store.get("ann", two[0]) == before, "no write of the session"


async def test_a_second_vote_replaces_the_first(store: SessionStore, clock: Clock, two: tuple[str, str]) -> None:
    assert not await vote(store, "a", 1, comment="first")
    clock.move(1)
    assert not await vote(store, "b", 1)
    clock.move(1)
    assert await vote(store, "a", -1)
    assert await votes(store) == [("a", -1, None), ("b", 1, None)], "newest first"
    assert (await store.feedback.all("ann")).data[0].comment is None


async def test_a_changed_mind_about_two_answers_is_one_vote(store: SessionStore, two: tuple[str, str]) -> None:
    assert not await vote(store, "a", over="b")
    assert await vote(store, "b", over="a")
    assert await votes(store) == [("b", 1, "a")]
    assert await store.feedback.summary("ann") == [Tally("demo:1", "1", 0, 1), Tally("demo:2", "2", 1, 0)]


async def test_each_vote_counts_for_its_version(store: SessionStore, two: tuple[str, str]) -> None:
    for number in range(4):
        await answer(store, two[0], f"c{number}", "10")
    await vote(store, "a", over="b")
    await vote(store, "c0", over="b")
    await vote(store, "c1", -1)
    await vote(store, "c2", over="c3")
    assert await store.feedback.summary("ann") == [
        Tally("demo:1", "1", 1, 0),
        Tally("demo:2", "2", 0, 2),
        Tally("demo:10", "10", 2, 2),
    ]
    assert await store.feedback.summary("ann", "demo", "2") == [Tally("demo:2", "2", 0, 2)]
    assert await store.feedback.summary("ann", "dem") == [] == await store.feedback.summary("ann", "demo", "3")


async def test_lists_are_of_a_model_or_a_version(store: SessionStore, clock: Clock, two: tuple[str, str]) -> None:
    foreign = Answered(model="demo2:1", version="1", answer_id="d")
    await store.append_turn("ann", two[0], NewTurn((NewMessage("x"),), NewReply("y", foreign)))
    for id in "abd":
        clock.move(1)
        await vote(store, id)

    async def found(**wanted: str) -> list[str]:
        return [each.id for each in (await store.feedback.all("ann", **wanted)).data]  # type: ignore[arg-type]

    assert await found() == ["d", "b", "a"]
    assert await found(name="demo") == ["b", "a"] and await found(name="demo", version="1") == ["a"]
    assert await found(version="1") == ["d", "a"] and await found(name="em") == [] == await found(name="de%")
    first = await store.feedback.all("ann", limit=2)
    rest = await store.feedback.all("ann", limit=2, cursor=first.next_cursor)
    assert [each.id for each in (*first.data, *rest.data)] == ["d", "b", "a"] and rest.next_cursor is None
    for wrong in ({"limit": 0}, {"limit": 101}, {"cursor": "x"}, {"version": "\x00"}):
        with pytest.raises(InvalidRequest):
            await store.feedback.all("ann", **wrong)


async def test_pairs_are_what_a_trainer_reads(store: SessionStore, clock: Clock, two: tuple[str, str]) -> None:
    await answer(store, two[0], "c", "1", said="and now?", reply="later")
    await vote(store, "a", over="b")
    clock.move(1)
    await vote(store, "c", over="b")
    await answer(store, two[1], "d", "2")
    clock.move(1)
    await vote(store, "d", 1)  # no pair
    newest, oldest = await pairs(store)
    prompt = (("system", "Be short."), ("user", "hi"))
    made = ("demo:1", "digest1", "demo:2", "digest2")
    assert (oldest.prompt, oldest.chosen, oldest.rejected, oldest.same_prompt) == (prompt, "yes", "no", True)
    assert (oldest.chosen_model, oldest.chosen_digest, oldest.rejected_model, oldest.rejected_digest) == made
    assert newest.prompt == (*prompt, ("assistant", "yes"), ("user", "and now?")) and not newest.same_prompt
    assert newest.created == clock.now.replace(second=clock.now.second - 1)


async def test_two_answers_of_one_session_never_had_the_same_prompt(store: SessionStore, two: tuple[str, str]) -> None:
    await answer(store, two[0], "c", said="hi")
    await vote(store, "c", over="a")
    assert [pair.same_prompt for pair in await pairs(store)] == [False]


@pytest.mark.parametrize("gone", ["message", "other message", "session", "other session", "expired", "owner"])
async def test_a_vote_goes_with_its_answers(store: SessionStore, clock: Clock, two: tuple[str, str], gone: str) -> None:
    await vote(store, "a", over="b")
    await vote(store, "b", -1)
    number = int(gone.startswith("other"))
    message = (await store.messages("ann", two[number])).data[1].id
    if "message" in gone:
        await store.delete_message("ann", two[number], message)
    elif "session" in gone:
        await store.delete("ann", two[number])
    elif gone == "expired":
        await store.patch("ann", two[1], {"ttl_seconds": 1e6})
        await store.patch("ann", two[0], {"ttl_seconds": 5})
        clock.move(6)
    else:
        await store.erase_owner("ann")
    left = [] if number or gone == "owner" else [("b", -1, None)]
    assert await votes(store) == left and await pairs(store) == []
    assert await store.feedback.summary("ann") == ([Tally("demo:2", "2", 0, 1)] if left else [])
    with pytest.raises(NotFound):
        await vote(store, "b" if number or gone == "owner" else "a")
    await store.sweep()
    assert await rows(store) == len(left)


async def rows(store: SessionStore) -> int:
    async with store._database.reading() as connection:
        found: int = (await connection.exec_driver_sql("SELECT count(*) FROM feedback")).scalar_one()
        return found


async def test_a_message_goes_where_its_vote_s_other_session_has_expired(
    store: SessionStore, clock: Clock, two: tuple[str, str]
) -> None:
    """The vote is not to be seen any more, and still holds the message."""
    await vote(store, "a", over="b")
    await store.patch("ann", two[1], {"ttl_seconds": 5})
    clock.move(6)
    assert await votes(store) == []
    message = (await store.messages("ann", two[0])).data[1].id
    await store.delete_message("ann", two[0], message)
    assert await rows(store) == 0


@pytest.mark.parametrize("change", ["replaced", "edited"])
async def test_an_answer_whose_text_is_another_keeps_its_vote(
    store: SessionStore, two: tuple[str, str], change: str
) -> None:
    """It counts for the version. There is no text for a pair, and no second vote."""
    await vote(store, "a", over="b")
    await vote(store, "b", -1)
    messages = (await store.messages("ann", two[0])).data
    if change == "replaced":
        new = NewReply("maybe", Answered(model="demo:2", version="2", answer_id="c"))
        await store.replace_last_reply("ann", two[0], new)
    else:
        edited = await store.edit_message("ann", two[0], messages[1].id, content="maybe")
        assert edited.answered is not None and (edited.answered.answer_id, edited.answered.model) == (None, "demo:1")
    assert await votes(store) == [("b", -1, None), ("a", 1, "b")]
    assert await store.feedback.summary("ann") == [Tally("demo:1", "1", 1, 0), Tally("demo:2", "2", 0, 2)]
    assert await pairs(store) == []
    with pytest.raises(NotFound, match="None of your sessions has the answer 'a'"):
        await vote(store, "a")
    if change == "replaced":
        assert not await vote(store, "c", over="b")
        assert [(pair.chosen, pair.rejected) for pair in await pairs(store)] == [("maybe", "no")]
    await store.delete("ann", two[0])
    assert await votes(store) == [("b", -1, None)]


async def test_an_edit_that_changes_no_text_changes_no_vote(store: SessionStore, two: tuple[str, str]) -> None:
    await vote(store, "a", over="b")
    message = (await store.messages("ann", two[0])).data[1]
    for content in (None, message.content):
        await store.edit_message("ann", two[0], message.id, pinned=True, content=content)
    assert len(await pairs(store)) == 1 and await vote(store, "a")


async def test_copies_have_the_id_and_the_first_has_the_vote(store: SessionStore, two: tuple[str, str]) -> None:
    reply = (await store.messages("ann", two[0])).data[1]
    forked = await store.fork("ann", two[0], reply.id)
    imported = await store.import_lines("ann", await store.export("ann", two[0]))
    for session in (forked.id, imported.id):
        copy = (await store.messages("ann", session)).data[1]
        assert copy.answered == reply.answered and copy.id != reply.id
    assert (await store.feedback.vote("ann", NewVote("a", 1)))[0].session_id == two[0]
    await store.delete("ann", two[0])
    assert await votes(store) == []
    assert (await store.feedback.vote("ann", NewVote("a", 1)))[0].session_id == forked.id


@pytest.mark.parametrize("id", ["é", "x" * 101, "\ud800"])
async def test_an_import_refuses_what_is_no_id(store: SessionStore, two: tuple[str, str], id: str) -> None:
    lines = await store.export("ann", two[0])
    escaped = id.encode("ascii", "backslashreplace").replace(b"\\xe9", b"\\u00e9")
    with pytest.raises(InvalidRequest):
        await store.import_lines(
            "ann", [line.replace(b'"answer_id":"a"', b'"answer_id":"' + escaped + b'"') for line in lines]
        )


async def test_what_cannot_be_stored_is_named(store: SessionStore, two: tuple[str, str]) -> None:
    for comment in ("\x00", "x" * 2001, "\ud800"):
        with pytest.raises(InvalidRequest, match="`comment`"):
            await vote(store, "a", comment=comment)
    for id in ("", "A", "ä", "\x00", "a ", "%"):
        with pytest.raises(NotFound) as unknown:
            await vote(store, id)
        assert unknown.value.param == "id" and "Answers without a session are not kept" in unknown.value.message
        with pytest.raises(NotFound) as unknown:
            await vote(store, "a", over=id)
        assert unknown.value.param == "preferred_over"
    assert await votes(store) == []


async def test_a_session_has_so_many_votes(database_url: str) -> None:
    """Those on replaced answers are counted as well, so that a session does not grow without end."""
    store = await SessionStore.open(database_url, Limits(max_messages=3))
    session = (await store.create("ann")).id
    await answer(store, session, "0")
    for number in range(3):
        await vote(store, str(number), comment="x" * 2000)
        await store.replace_last_reply("ann", session, NewReply("y", Answered(answer_id=str(number + 1))))
    with pytest.raises(QuotaExceeded, match="at most 3 votes"):
        await vote(store, "3")
    assert len(await votes(store)) == 3
    await store.close()


async def test_votes_are_there_after_a_restart(database_url: str) -> None:
    store = await SessionStore.open(database_url)
    session = (await store.create("ann")).id
    await store.append_turn("ann", session, a_turn(answer_id="a", model="demo:1", version="1"))
    stored, _ = await store.feedback.vote("ann", NewVote("a", -1, comment="어제"))
    await store.close()
    again = await SessionStore.open(database_url)
    assert (await again.feedback.all("ann")).data == (stored,)
    assert (await again.feedback.vote("ann", NewVote("a", 1)))[1]
    await again.close()


async def test_votes_and_deletions_at_once(store: SessionStore) -> None:
    """Two votes that name the same sessions in either order, and deletions of what they name: nothing hangs, no vote
    outlives its answer."""
    for number in range(6):
        first, second = [(await store.create("ann")).id for _ in range(2)]
        told = await answer(store, first, f"a{number}")
        await answer(store, second, f"b{number}")
        done = await asyncio.gather(
            vote(store, f"a{number}", over=f"b{number}"),
            vote(store, f"b{number}", over=f"a{number}"),
            vote(store, f"a{number}", -1),
            store.delete_message("ann", first, told.reply.id) if number % 2 else store.delete("ann", first),
            vote(store, f"b{number}", -1),
            return_exceptions=True,
        )
        assert all(not isinstance(each, Exception) or isinstance(each, NotFound) for each in done), done
    assert {(id[0], over) for id, _, over in await votes(store)} <= {("b", None)}
    assert await pairs(store) == []


async def test_a_file_of_votes_has_an_index_for_each_question(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = await SessionStore.open(new_database("sqlite", tmp_path_factory.mktemp("plan")))
    async with store._database.reading() as connection:
        for statement, index in (
            ("SELECT * FROM messages WHERE owner = 'x' AND answer_id = 'y'", "messages_answer"),
            ("SELECT * FROM feedback WHERE owner = 'x' ORDER BY created_at DESC, id DESC", "feedback_newest"),
            ("DELETE FROM feedback WHERE other_message = 1", "feedback_other_message_number"),
        ):
            plan = (await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}")).all()
            assert index in str(plan), plan
    await store.close()
