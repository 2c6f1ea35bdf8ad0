"""Stored chats over HTTP: turns, receipts, revisions, owners, trimming, what is kept when something fails."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from service.generation import conversations
from service.storage.sessions import History, SessionStore
from service.text.messages import Message
from tests.api.conftest import KEY, Serve
from tests.api.reading import error, events
from tests.fake_service import REPLY, WINDOW, World, over_http
from tests.waiting import until

SESSIONS = "/v1/sessions"
SHORT = {"max_new_tokens": 16}


@pytest.fixture
async def world(serve: Serve, tmp_path: Path) -> AsyncIterator[World]:
    async with serve(database_url=f"sqlite+aiosqlite:///{tmp_path}/sessions.db") as served:
        yield served


async def made(world: World, **fields: Any) -> str:
    response = await world.client.post(SESSIONS, json=fields)
    assert response.status_code == 201, response.text
    assert response.headers["etag"] == '"1"'
    return str(response.json()["id"])


async def say(world: World, session: str, text: str = "hello", status: int = 200, **more: Any) -> dict[str, Any]:
    headers = more.pop("headers", {})
    body = {"session_id": session, "messages": [{"role": "user", "content": text}], "parameters": SHORT, **more}
    response = await world.client.post("/generate", json=body, headers=headers)
    assert response.status_code == status, response.text
    return dict(response.json())


async def messages(world: World, session: str, since: int = 0) -> list[dict[str, Any]]:
    """All of them, or those from place `since` on."""
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        params = {"limit": "100", **({"cursor": cursor} if cursor else {})}
        response = await world.client.get(f"{SESSIONS}/{session}/messages", params=params)
        assert response.status_code == 200, response.text
        found += response.json()["data"]
        cursor = response.json()["next_cursor"]
    return found[max(0, since) :]


async def test_a_turn_is_stored_with_its_receipt_before_it_is_told(world: World) -> None:
    session = await made(world, system="You sell lunch.", metadata={"shop": 1})
    answer = await say(world, session, "안녕하세요")
    assert answer["session_id"] == session
    stored = await messages(world, session)
    assert [each["role"] for each in stored] == ["user", "assistant"]
    assert [each["content"] for each in stored] == ["안녕하세요", answer["generated_text"]]
    assert stored[1]["context"] == answer["context"] and stored[1]["digest"] == answer["digest"]
    assert stored[1]["usage"] == answer["usage"] and stored[1]["finish_reason"] == answer["finish_reason"]
    assert answer["context"]["policy"] == "window"
    assert answer["context"]["kept"] == ["system", stored[0]["id"]]
    again = await say(world, session, "again")
    assert again["context"]["kept"][:3] == ["system", stored[0]["id"], stored[1]["id"]]
    assert again["context"]["parts"]["history"] > 0
    shown = (await world.client.get(f"{SESSIONS}/{session}")).json()
    assert (shown["message_count"], shown["title"], shown["metadata"]) == (4, "안녕하세요", {"shop": 1})
    assert "owner" not in shown


async def test_streams_and_openai_store_turns_too(world: World) -> None:
    session = await made(world)
    body = {"session_id": session, "messages": [{"role": "user", "content": "hi"}], "parameters": SHORT}
    async with world.client.stream("POST", "/generate_stream", json=body) as response:
        await response.aread()
    last = events(response)[-1]
    assert last["session_id"] == session
    chat = {"model": "demo", "session_id": session, "messages": body["messages"], "max_tokens": 8}
    told = (await world.client.post("/v1/chat/completions", json=chat)).json()
    stored = await messages(world, session)
    assert [each["content"] for each in stored if each["role"] == "assistant"] == [
        last["generated_text"],
        told["choices"][0]["message"]["content"],
    ]


async def test_a_long_session_is_cut_by_turns_and_the_cut_stays(world: World) -> None:
    session = await made(world)
    cuts = []
    for turn in range(30):
        answer = await say(world, session, f"hello {turn}, hello world")
        receipt = answer["context"]
        stored = await messages(world, session)
        assert [*receipt["dropped"], *receipt["kept"]] == [each["id"] for each in stored[:-1]]
        assert receipt["used"] + 16 <= WINDOW
        cuts.append((receipt["cut"] or {"at": None})["at"])
    assert 2 < len(set(cuts)) < 12
    assert cuts == sorted(cuts, key=lambda cut: [None, *[each["id"] for each in stored]].index(cut))


async def test_pinned_messages_stay_and_a_preview_stores_nothing(world: World) -> None:
    session = await made(world)
    await say(world, session, "my name is kim")
    first = (await messages(world, session))[0]["id"]
    response = await world.client.patch(f"{SESSIONS}/{session}/messages/{first}", json={"pinned": True})
    assert response.json()["pinned"] is True
    for turn in range(20):
        await say(world, session, f"hello {turn}, hello world")
    body = {"session_id": session, "messages": [{"role": "user", "content": "who am I?"}], "parameters": SHORT}
    before = len(await messages(world, session))
    preview = (await world.client.post("/v1/context/preview", json=body)).json()
    assert first in preview["context"]["kept"] and preview["context"]["dropped"]
    assert len(await messages(world, session)) == before
    answer = await say(world, session, "who am I?")
    assert answer["context"]["kept"][:-1] == preview["context"]["kept"][:-1], "but for the new message's own id"
    assert answer["context"]["parts"] == preview["context"]["parts"]


async def test_the_session_s_policy_holds_where_a_turn_names_none(world: World) -> None:
    session = await made(world, policy="middle")
    assert (await say(world, session, context={"max_input_tokens": 300}))["context"]["policy"] == "middle"
    assert (await say(world, session, context={"policy": "refuse"}))["context"]["policy"] == "refuse"


async def test_turns_sent_at_once_are_served_one_after_the_other(serve: Serve, tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with serve(engine={"step_seconds": 0.002}, database_url=url) as world:
        session = await made(world)
        answers = await asyncio.gather(*(say(world, session, f"turn {at}") for at in range(6)))
        stored = await messages(world, session)
        assert [each["role"] for each in stored] == ["user", "assistant"] * 6
        assert {each["content"] for each in stored if each["role"] == "user"} == {f"turn {at}" for at in range(6)}
        assert sorted(len(each["context"]["kept"]) for each in answers) == [1, 3, 5, 7, 9, 11]
        assert not (await world.app.state.service.answers.conversations.store())._turns._lines


async def test_a_stale_writer_is_told(world: World) -> None:
    session = await made(world)
    await say(world, session, headers={"If-Match": '"1"'})
    refused = await say(world, session, status=412, headers={"If-Match": '"1"'})
    assert refused["code"] == "stale"
    assert len(await messages(world, session)) == 2
    error(
        await world.client.patch(f"{SESSIONS}/{session}", json={"title": "x"}, headers={"If-Match": '"1"'}),
        412,
        "stale",
    )
    response = await world.client.patch(f"{SESSIONS}/{session}", json={"title": "x"}, headers={"If-Match": '"2"'})
    assert response.json()["title"] == "x" and response.headers["etag"] == '"3"'
    error(await world.client.patch(f"{SESSIONS}/{session}", json={}, headers={"If-Match": "2"}), 422, "invalid_request")


async def test_a_session_that_has_changed_is_not_forked(world: World) -> None:
    session = await made(world)
    await say(world, session)
    fork = partial(
        world.client.post, f"{SESSIONS}/{session}/fork", json={"at": (await messages(world, session))[0]["id"]}
    )
    error(await fork(headers={"If-Match": '"1"'}), 412, "stale")
    assert len((await world.client.get(SESSIONS)).json()["data"]) == 1
    assert (await fork(headers={"If-Match": '"2"'})).headers["etag"] == '"1"'


async def test_null_takes_each_field_away(world: World) -> None:
    session = await made(world, title="x", metadata={"a": 1}, system="s")
    nothing = {"title": None, "metadata": None, "system": None, "policy": None, "ttl_seconds": None, "model": None}
    shown = (await world.client.patch(f"{SESSIONS}/{session}", json=nothing)).json()
    assert (shown["title"], shown["metadata"], shown["system"], shown["policy"]) == (None, {}, None, None)


async def test_an_edit_s_tag_is_of_its_own_write(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another write comes right after it."""
    session = await made(world)
    await say(world, session)
    store = await world.app.state.service.answers.conversations.store()
    edit = store.edit_message

    async def then_another(*given: Any, **more: Any) -> Any:
        edited = await edit(*given, **more)
        await store.patch(given[0], session, {"title": "another"})
        return edited

    monkeypatch.setattr(store, "edit_message", then_another)
    message = (await messages(world, session))[0]["id"]
    response = await world.client.patch(f"{SESSIONS}/{session}/messages/{message}", json={"pinned": True})
    assert (response.status_code, response.headers["etag"]) == (200, '"3"')


async def test_an_answer_that_fails_or_is_left_stores_nothing(serve: Serve, tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with serve(engine={"fail_after": 2, "failure": RuntimeError("planted")}, database_url=url) as world:
        session = await made(world)
        await say(world, session, status=500)
        assert await messages(world, session) == []
    async with serve(engine={"step_seconds": 0.05}, database_url=url) as world:
        body = {"session_id": session, "messages": [{"role": "user", "content": "hi"}], "parameters": SHORT}
        async with over_http(world) as url, httpx.AsyncClient(base_url=url) as client:
            async with client.stream("POST", "/generate_stream", json=body) as response:
                async for _ in response.aiter_lines():
                    break
            await until(lambda: world.engine.aborted)
        assert await messages(world, session) == []
        await say(world, session)
        assert len(await messages(world, session)) == 2


async def test_regenerate_fork_edit_export_and_import(world: World) -> None:
    session = await made(world, system="Be short.")
    await say(world, session, "one")
    await say(world, session, "two")
    before = await messages(world, session)
    sampled = {"parameters": {**SHORT, "temperature": 1.0, "seed": 3}}
    response = await world.client.post(f"{SESSIONS}/{session}/regenerate", json=sampled)
    assert response.status_code == 200, response.text
    after = await messages(world, session)
    assert [each["id"] for each in after[:3]] == [each["id"] for each in before[:3]]
    assert after[3]["content"] == response.json()["generated_text"] != before[3]["content"]
    forked = (await world.client.post(f"{SESSIONS}/{session}/fork", json={"at": after[1]["id"]})).json()
    assert (forked["message_count"], forked["system"]) == (2, "Be short.") and forked["id"] != session
    edited = await world.client.patch(f"{SESSIONS}/{session}/messages/{after[0]['id']}", json={"content": "uno"})
    assert edited.json()["content"] == "uno"
    exported = await world.client.get(f"{SESSIONS}/{session}/export")
    assert exported.headers["content-type"].startswith("application/x-ndjson")
    headers = {"content-type": "application/x-ndjson"}
    copy = (await world.client.post(f"{SESSIONS}/import", content=exported.content, headers=headers)).json()
    assert [each["content"] for each in await messages(world, copy["id"])] == [
        "uno",
        *(each["content"] for each in after[1:]),
    ]
    gone = await world.client.delete(f"{SESSIONS}/{session}/messages/{after[3]['id']}")
    assert gone.json()["message_count"] == 3
    error(await world.client.post(f"{SESSIONS}/{session}/regenerate", json={}), 409, "conflict")


async def test_lists_have_cursors_and_search(world: World) -> None:
    ids = [await made(world, title=f"chat {at}") for at in range(5)]
    await say(world, ids[2], "김밥 두 줄 주세요")
    first = (await world.client.get(SESSIONS, params={"limit": 3})).json()
    rest = (await world.client.get(SESSIONS, params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert [each["id"] for each in (*first["data"], *rest["data"])] == ids[::-1] and rest["next_cursor"] is None
    found = (await world.client.get(SESSIONS, params={"query": "김밥"})).json()
    assert [each["id"] for each in found["data"]] == [ids[2]]


@pytest.mark.parametrize("erase", [False, True])
async def test_a_deleted_session_is_gone(world: World, tmp_path: Path, erase: bool) -> None:
    session = await made(world)
    await say(world, session, "canary-5531")
    response = await world.client.delete(f"{SESSIONS}/{session}", params={"erase": erase})
    assert response.status_code == 204
    error(await world.client.get(f"{SESSIONS}/{session}"), 404, "not_found")
    await say(world, session, status=404)
    held = b"".join(path.read_bytes() for path in tmp_path.glob("sessions.db*"))  # noqa: ASYNC240 - a few pages
    assert not erase or b"canary-5531" not in held


async def test_a_session_is_its_owners(serve: Serve, tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with serve(database_url=url) as world:
        session = await made(world)
        await say(world, session)
        message = (await messages(world, session))[0]["id"]
    async with serve(database_url=url, admin_key=KEY) as world:
        client: httpx.AsyncClient = world.client
        client.headers["authorization"] = f"Bearer {KEY}"
        assert (await client.get(SESSIONS)).json()["data"] == []
        await say(world, session, status=404)
        for method, path, body in (
            ("GET", "", None),
            ("PATCH", "", {"title": "mine"}),
            ("DELETE", "", None),
            ("GET", "/messages", None),
            ("PATCH", f"/messages/{message}", {"pinned": True}),
            ("DELETE", f"/messages/{message}", None),
            ("POST", "/fork", {"at": message}),
            ("POST", "/regenerate", {}),
            ("GET", "/export", None),
        ):
            error(await client.request(method, f"{SESSIONS}/{session}{path}", json=body), 404, "not_found")


async def test_stateless_calls_go_on_without_the_database(serve: Serve, tmp_path: Path) -> None:
    """Whoever comes while the database cannot be had is told soon, and served again once it is there."""
    place = tmp_path / "not a folder"
    place.write_text("in the way")
    async with serve(database_url=f"sqlite+aiosqlite:///{place}/sessions.db") as world:
        assert (await world.client.post("/generate", json={"inputs": "hi"})).json()["generated_text"] == REPLY
        responses = await asyncio.gather(*(world.client.get(SESSIONS) for _ in range(20)))
        for response in responses:
            error(response, 503, "unavailable")
            assert int(response.headers["retry-after"]) <= 2
        place.unlink()
        await asyncio.sleep(1.1)
        await made(world)


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["window", "middle"])
async def test_what_is_read_of_a_long_session_is_enough(
    world: World, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns, pins, edits and deletions in any order: the part that is read gives the receipt that all messages give."""
    draw = random.Random(policy)
    session = await made(world, policy=policy, system="You sell lunch.")
    read, less = watched(monkeypatch), 0
    for turn in range(40):
        answer = await say(world, session, f"hello {turn}, " + "hello world " * draw.randrange(4))
        stored = await messages(world, session, since=turn * 2 - 60)
        assert stored[-1]["context"] == answer["context"]
        chosen = draw.choice(stored)["id"]
        change = draw.choice(["none", "none", "pin", "unpin", "edit", "delete"])
        path = f"{SESSIONS}/{session}/messages/{chosen}"
        if change == "delete" and stored[-1]["id"] != chosen and turn > 9:
            assert (await world.client.delete(path)).status_code == 200
        elif change == "edit":
            await world.client.patch(path, json={"content": "edited"})
        elif change in ("pin", "unpin"):
            await world.client.patch(path, json={"pinned": change == "pin" and turn % 3 == 0})
        await say(world, session, "hello")
        read.clear()
        body = {"session_id": session, "messages": [{"role": "user", "content": "?"}], "parameters": SHORT}
        part = (await world.client.post("/v1/context/preview", json=body)).json()
        count = read.pop()
        with monkeypatch.context() as patched:
            patched.setattr(conversations, "numbers_before", lambda session, policy: None)
            whole = (await world.client.post("/v1/context/preview", json=body)).json()
        less += count < read.pop()
        for context in (part["context"], whole["context"]):
            context["kept"].pop()  # the new message's own id
        assert part == whole
    assert part["context"]["dropped"] and less > 20


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages are read of a session, each time."""
    read: list[int] = []
    history = SessionStore.history

    async def watching(*arguments: Any, **options: Any) -> History:
        found = await history(*arguments, **options)
        read.append(len(found.messages))
        return found

    monkeypatch.setattr(SessionStore, "history", watching)
    return read


async def test_the_whole_of_a_cut_session_is_counted_as_the_template_writes_it(world: World) -> None:
    session = await made(world, system="You sell lunch.")
    said = [Message("system", "You sell lunch.")]
    for turn in range(30):
        said.append(Message("user", f"hello {turn}, hello world"))
        answer = await say(world, session, said[-1].content)
        whole = len(world.tokenizer.render_chat(said))
        assert answer["usage"]["prompt_tokens_before_truncation"] == whole
        counts = {"kept": len(answer["context"]["kept"]), "dropped": len(answer["context"]["dropped"]), "summarised": 0}
        assert answer["context"]["counts"] == counts
        said.append(Message("assistant", answer["generated_text"]))
    assert answer["context"]["truncated"]
    texts = [world.tokenizer.text_tokens(each.content) for each in said[1 : 1 + len(answer["context"]["dropped"])]]
    assert answer["context"]["dropped_tokens"] == sum(texts)


async def test_numbers_of_another_version_are_counted_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await made(world)
    for turn in range(16):
        await say(world, session, f"hello {turn}, hello world")
    read = watched(monkeypatch)
    body = {"session_id": session, "messages": [{"role": "user", "content": "?"}], "parameters": SHORT}
    part = (await world.client.post("/v1/context/preview", json=body)).json()
    counted_by = conversations.Conversations.counted_by
    monkeypatch.setattr(
        conversations.Conversations, "counted_by", lambda self, ask, _, limit: counted_by(self, ask, "another", limit)
    )
    whole = (await world.client.post("/v1/context/preview", json=body)).json()
    assert len(read) == 3 and read[-1] == 32
    for context in (part["context"], whole["context"]):
        context["kept"].pop()
    assert part == whole


async def test_lists_of_a_very_long_session_are_bounded_and_counted(world: World) -> None:
    said = [
        {"type": "message", "id": f"m_{at}", "role": role, "content": "hello", "created_at": "2026-01-01T00:00:00Z"}
        for at, role in enumerate(("user", "assistant") * 700)
    ]
    lines = b"\n".join(json.dumps(each).encode() for each in ({"type": "session", "format": 2}, *said))
    headers = {"Content-Type": "application/x-ndjson"}
    made_ = await world.client.post(f"{SESSIONS}/import", content=lines, headers=headers)
    session = made_.json()["id"]
    stored = await messages(world, session, since=0)
    for _ in range(2):
        receipt = (await say(world, session, "hello"))["context"]
        assert len(receipt["kept"]) + len(receipt["dropped"]) == 512
        stored = await messages(world, session, since=0)
        assert sum(receipt["counts"].values()) == len(stored) - 1
        place = [each["id"] for each in stored].index(receipt["cut"]["at"])
        assert receipt["counts"]["dropped"] == place
        assert [*receipt["dropped"], *receipt["kept"]] == [each["id"] for each in stored[-513:-1]]
        assert stored[-1]["context"] == receipt


async def test_turns_in_line_take_no_places_and_do_not_wait_for_ever(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = asyncio.Event()
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with serve(engine={"hold": held}, database_url=url, max_in_progress=3) as world:
        session, admission = await made(world), world.app.state.service.answers.admission
        first = asyncio.create_task(say(world, session, "first"))
        await until(lambda: world.engine.alive)
        line = [asyncio.create_task(say(world, session, f"in line {at}")) for at in range(3)]
        await until(lambda: waiting(world) == 3)
        assert admission.in_progress == 1
        assert "dosirak_session_turns_waiting 3.0" in (await world.client.get("/metrics")).text
        others = [asyncio.create_task(say(world, await made(world), "other")) for _ in range(2)]
        await until(lambda: len(world.engine.alive) == 3)
        refused = await say(world, session, "no place", status=503)
        assert refused["code"] == "overloaded"
        held.set()
        await asyncio.gather(first, *line, *others)
        assert len(await messages(world, session)) == 8 and admission.in_progress == 0
        assert "dosirak_session_turns_waiting 0.0" in (await world.client.get("/metrics")).text
        held.clear()
        first = asyncio.create_task(say(world, session, "first"))
        await until(lambda: world.engine.alive)
        monkeypatch.setattr("service.generation.admission.LONGEST_WAIT_SECONDS", 0.05)
        late = await say(world, session, "late", status=503)
        assert late["code"] == "unavailable" and "send this one again" in late["error"]
        held.set()
        await first
        assert admission.in_progress == 0


def waiting(world: World) -> int:
    """Turns behind the one that runs, in the only session that has any."""
    store = world.app.state.service.answers.conversations._store
    return max((line.members - 1 for line in store._turns._lines.values()), default=0)


async def test_the_line_of_a_session_has_an_end(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.storage.sessions.turn_locks.MOST_IN_LINE", 2)
    held = asyncio.Event()
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with serve(engine={"hold": held}, database_url=url, max_in_progress=9) as world:
        session = await made(world)
        turns = [asyncio.create_task(say(world, session, "first"))]
        await until(lambda: world.engine.alive)
        turns += [asyncio.create_task(say(world, session, f"in line {at}")) for at in range(2)]
        await until(lambda: waiting(world) == 2)
        assert (await say(world, session, "one more", status=503))["code"] == "overloaded"
        another = await made(world)
        turns.append(asyncio.create_task(say(world, another, "another session's goes on")))
        await until(lambda: len(world.engine.alive) == 2)
        monkeypatch.setattr("service.storage.sessions.turn_locks.MOST_WAITING", 2)
        assert "2 turns of all" in (await say(world, another, "in all lines", status=503))["error"]
        held.set()
        await asyncio.gather(*turns)


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("newer", "run the newer version"),
        ("driver", "pip install"),
        ("package", "aiosqlite"),
        ("defect", "its log says why"),
    ],
)
async def test_a_database_that_cannot_be_used_is_told_and_lowers_readiness(
    serve: Serve, tmp_path: Path, trouble: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    store = await SessionStore.open(url)
    async with store._database.writing() as connection:
        if trouble == "newer":
            await connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    await store.close()
    troubles: dict[str, Exception] = {
        "package": ImportError("No module named 'aiosqlite'", name="aiosqlite"),
        "defect": RuntimeError("planted"),
    }
    async with serve(database_url=url) as world:
        with monkeypatch.context() as patched:
            if trouble == "driver":
                patched.setattr(
                    "service.storage.database.database._parsed",
                    mock.Mock(side_effect=ValueError("pip install 'dosirak[postgres]'")),
                )
            elif trouble != "newer":
                patched.setattr(SessionStore, "open", mock.AsyncMock(side_effect=troubles[trouble]))
            world.app.state.service.answers.conversations.start()
            await until(lambda: not world.app.state.service.is_ready)
            for path in (SESSIONS, "/v1/knowledge", f"{SESSIONS}/s_1", "/health", "/readyz"):
                refused = error(await world.client.get(path), 503, "unavailable")
                assert told in refused["error"] and "planted" not in refused["error"]
            assert (await say(world, "s_1", status=503))["code"] == "unavailable"
            body = {"inputs": "hi", "parameters": SHORT}
            assert (await world.client.post("/generate", json=body)).status_code == 200, "what needs no session goes on"
        if trouble != "newer":
            await until(lambda: world.app.state.service.is_ready)  # the operator has acted
            assert (await world.client.get(SESSIONS)).status_code == 200


async def test_every_answer_but_a_stream_tells_the_revision(world: World) -> None:
    session = await made(world)
    turn = {"session_id": session, "messages": [{"role": "user", "content": "hi"}]}
    conversation = session.replace("s_", "conv_")
    for path, body in (
        ("/generate", {**turn, "parameters": SHORT}),
        ("/v1/chat/completions", {**turn, "max_tokens": 8}),
        ("/v1/messages", {**turn, "model": "demo", "max_tokens": 8}),
        ("/v1/responses", {"conversation": conversation, "input": "hi", "max_output_tokens": 8}),
        (f"{SESSIONS}/{session}/regenerate", {"parameters": SHORT}),
    ):
        answer = await world.client.post(path, json=body, headers={"Idempotency-Key": path})
        told = (await world.client.get(f"{SESSIONS}/{session}")).headers["etag"]
        assert answer.status_code == 200 and answer.headers["etag"] == told, path
        again = await world.client.post(path, json=body, headers={"Idempotency-Key": path})
        assert (again.headers["etag"], again.headers["idempotent-replayed"]) == (told, "true")
    for path in (f"{SESSIONS}/{session}/messages", f"{SESSIONS}/{session}/export", f"/v1/conversations/{conversation}"):
        assert (await world.client.get(path)).headers["etag"] == told, path
    stream = await world.client.post("/generate", json={**turn, "stream": True, "parameters": SHORT})
    assert stream.status_code == 200 and "etag" not in stream.headers
    changed = await world.client.post(f"/v1/conversations/{conversation}", json={"metadata": {"shop": "1"}})
    assert changed.headers["etag"] == (await world.client.get(f"{SESSIONS}/{session}")).headers["etag"] != told


async def test_a_turn_has_an_answer(world: World) -> None:
    session = await made(world)
    turn = {"session_id": session, "model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    for path, body, param in (
        ("/v1/messages", {"max_tokens": 0}, "max_tokens"),
        ("/v1/chat/completions", {"max_tokens": 0}, "max_tokens"),
        ("/generate", {"parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
    ):
        refused = await world.client.post(path, json={**turn, **body})
        assert refused.status_code in (400, 422) and f"`{param}` must be at least 1" in refused.text, path
    assert (await world.client.get(f"{SESSIONS}/{session}")).json()["message_count"] == 0
    alone = {key: value for key, value in turn.items() if key != "session_id"}
    assert (await world.client.post("/v1/messages", json={**alone, "max_tokens": 0})).status_code == 200
