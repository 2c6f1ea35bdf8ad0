"""Lists go on where they stopped whatever comes and goes meanwhile, and a query finds what is there."""

from __future__ import annotations

import random

import pytest

from service.errors import InvalidRequest
from service.storage.sessions import Page, Session, SessionStore
from service.storage.sessions.search import words_of
from service.text.grams import fold
from tests.sessions import Clock, say

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
