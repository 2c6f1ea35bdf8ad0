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
    Turn,
)
from tests.sessions import Clock, new_database


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


@pytest.mark.parametrize("id", ["é", "x" * 101, "\ud800"])
async def test_an_import_refuses_what_is_no_id(store: SessionStore, two: tuple[str, str], id: str) -> None:
    lines = await store.copies.export("ann", two[0])
    escaped = id.encode("ascii", "backslashreplace").replace(b"\\xe9", b"\\u00e9")
    with pytest.raises(InvalidRequest):
        await store.copies.import_lines(
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
