"""Votes on answers over HTTP: which ids can be voted on, owners, lists, counts, and the export for a trainer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from models.repository.repository import Repository
from service.errors import Unavailable
from service.storage.sessions import Feedback
from tests.api.conftest import KEY, Serve
from tests.api.reading import error, events
from tests.fake_service import World, publish, serving

SESSIONS = "/v1/sessions"
FEEDBACK = "/v1/feedback"
SHORT = {"max_new_tokens": 16}
Json = dict[str, Any]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Two versions of demo."""
    repository = Repository(tmp_path)
    first = publish(repository)
    publish(repository, parent=first)
    async with serving(tmp_path) as served:
        yield served


async def session(world: World, **fields: Any) -> str:
    return str((await world.client.post(SESSIONS, json=fields)).json()["id"])


async def say(world: World, session: str, text: str = "hello", version: str = "1", **sampled: Any) -> Json:
    said = {"session_id": session, "messages": [{"role": "user", "content": text}], "model": f"demo:{version}"}
    response = await world.client.post("/generate", json={**said, "parameters": {**SHORT, **sampled}})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def vote(world: World, id: str, rating: int = 1, status: int = 201, **more: Any) -> Json:
    response = await world.client.post(FEEDBACK, json={"id": id, "rating": rating, **more})
    assert response.status_code == status, response.text
    return dict(response.json())


async def listed(world: World, **params: str) -> list[Json]:
    return list((await world.client.get(FEEDBACK, params=params)).json()["data"])


async def tallies(world: World, **params: str) -> dict[str, tuple[int, int, int]]:
    data = (await world.client.get(f"{FEEDBACK}/summary", params=params)).json()["data"]
    return {each["model"]: (each["preferred"], each["not_preferred"], each["votes"]) for each in data}


async def exported(world: World) -> list[Json]:
    response = await world.client.get(f"{FEEDBACK}/export")
    assert response.status_code == 200 and response.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in response.content.splitlines()]


async def test_every_answer_of_a_session_can_be_voted_on(world: World) -> None:
    """By the id that its own dialect gave it, streamed or not; its message names the same id."""
    made = await session(world)
    native = (await say(world, made))["id"]
    body = {"session_id": made, "messages": [{"role": "user", "content": "hi"}]}
    streamed = events(await world.client.post("/generate_stream", json={**body, "parameters": SHORT}))[-1]["id"]
    chat = (await world.client.post("/v1/chat/completions", json={**body, "max_tokens": 8})).json()["id"]
    chunks = await world.client.post("/v1/chat/completions", json={**body, "max_tokens": 8, "stream": True})
    ids = [native, streamed, chat, events(chunks)[0]["id"]]
    messages = (await world.client.get(f"{SESSIONS}/{made}/messages")).json()["data"]
    assert [each.get("answer_id") for each in messages if each["role"] == "assistant"] == ids
    assert all("answer_id" not in each for each in messages if each["role"] == "user")
    regenerated = (await world.client.post(f"{SESSIONS}/{made}/regenerate", json={"parameters": SHORT})).json()["id"]
    for id in [*ids[:3], regenerated]:
        assert (await vote(world, id))["session_id"] == made
    gone = await world.client.post(FEEDBACK, json={"id": ids[3], "rating": 1})
    error(gone, 404, "not_found")
    assert [each["id"] for each in await listed(world)] == [regenerated, *ids[2::-1]]


async def test_a_repeated_request_has_the_one_answer_s_id(world: World) -> None:
    body = {"session_id": await session(world), "messages": [{"role": "user", "content": "hi"}], "parameters": SHORT}
    told = [await world.client.post("/generate", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert told[0].content == told[1].content
    await vote(world, told[1].json()["id"])


async def test_an_answer_without_a_session_is_not_kept(world: World) -> None:
    told = (await world.client.post("/generate", json={"inputs": "hi", "parameters": SHORT})).json()
    refused = error(await world.client.post(FEEDBACK, json={"id": told["id"], "rating": 1}), 404, "not_found")
    assert told["id"] in refused["error"] and "send the request with `session_id`" in refused["error"]


async def test_a_vote_and_its_replacement(world: World) -> None:
    told = await say(world, await session(world))
    stored = await vote(world, told["id"], comment="좋아요 ☺")
    assert stored == {
        "id": told["id"],
        "model": "demo:1",
        "version": "1",
        "digest": told["digest"],
        "rating": 1,
        "preferred_over": None,
        "comment": "좋아요 ☺",
        "session_id": told["session_id"],
        "created": stored["created"],
    }
    again = await vote(world, told["id"], -1, status=200)
    assert (again["rating"], again["comment"]) == (-1, None) and again["created"] > stored["created"]
    assert await listed(world) == [again]


async def test_wrong_questions_are_named(world: World) -> None:
    for path, told in (
        ("?model=demo@production", "an alias moves"),
        ("/summary?model=demo@production", "an alias moves"),
        ("?model=demo:1&version=2", "`version` is another one than demo:1's"),
    ):
        assert told in error(await world.client.get(f"{FEEDBACK}{path}"), 422, "invalid_request")["error"]


async def test_pairs_are_exported_for_a_trainer(world: World) -> None:
    """Two answers to one question: the session is forked before it, and both are asked."""
    assert await exported(world) == []
    made = await session(world, system="Be short.")
    await say(world, made, "hello")
    before = (await world.client.get(f"{SESSIONS}/{made}/messages")).json()["data"]
    forked = (await world.client.post(f"{SESSIONS}/{made}/fork", json={"at": before[-1]["id"]})).json()["id"]
    good = await say(world, made, "김밥 있어요?", "1")
    bad = await say(world, forked, "김밥 있어요?", "2", temperature=1.0, seed=3)
    assert good["generated_text"] != bad["generated_text"]
    stored = await vote(world, good["id"], preferred_over=bad["id"])
    [pair] = await exported(world)
    assert pair == {
        "prompt": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": before[-1]["content"]},
            {"role": "user", "content": "김밥 있어요?"},
        ],
        "chosen": [{"role": "assistant", "content": good["generated_text"]}],
        "rejected": [{"role": "assistant", "content": bad["generated_text"]}],
        "chosen_model": "demo:1",
        "chosen_digest": good["digest"],
        "rejected_model": "demo:2",
        "rejected_digest": bad["digest"],
        "created": stored["created"],
        "same_prompt": True,
    }
    third = await say(world, made, "and now?")
    await vote(world, third["id"], preferred_over=bad["id"])
    assert [each["same_prompt"] for each in await exported(world)] == [False, True]


async def test_the_export_reads_a_pair_when_it_is_its_turn(world: World) -> None:
    """So that it never holds more than one; a failure cuts the response, and is a status where nothing was sent."""
    made = await session(world)
    ids = [(await say(world, made, f"turn {number}"))["id"] for number in range(6)]
    for better, worse in zip(ids[1:], ids, strict=False):
        await vote(world, better, preferred_over=worse)
    pair, asked = Feedback.pair, list[str | None]()

    async def failing(self: Feedback, owner: str, cursor: str | None = None) -> Any:
        asked.append(cursor)
        if len(asked) > allowed:
            raise Unavailable("The session database is busy: try again", retry_after=1)
        return await pair(self, owner, cursor)

    with mock.patch.object(Feedback, "pair", failing):
        allowed = 99
        assert len(await exported(world)) == 5 and len(asked) == 6
        asked.clear()
        allowed = 0
        error(await world.client.get(f"{FEEDBACK}/export"), 503, "unavailable")
        asked.clear()
        allowed = 3
        ended = mock.AsyncMock()
        scope: Json = {"type": "http", "method": "GET", "path": f"{FEEDBACK}/export", "query_string": b""}
        scope |= {"client": ("127.0.0.1", 1), "asgi": {"spec_version": "2.4"}, "root_path": ""}
        await world.app({**scope, "headers": [(b"host", b"localhost")]}, mock.AsyncMock(), ended)
    sent = [call.args[0] for call in ended.await_args_list]
    assert [message.get("more_body") for message in sent] == [None, True, True, True], "cut: no last message"


@pytest.mark.parametrize("way", ["erase", "delete", "message"])
async def test_votes_go_with_their_session(world: World, tmp_path: Path, way: str) -> None:
    made = await session(world)
    told = await say(world, made)
    await vote(world, told["id"], comment="canary-7713")
    if way == "message":
        reply = (await world.client.get(f"{SESSIONS}/{made}/messages")).json()["data"][1]["id"]
        await world.client.delete(f"{SESSIONS}/{made}/messages/{reply}")
    else:
        await world.client.delete(f"{SESSIONS}/{made}", params={"erase": way == "erase"})
    assert await listed(world) == [] and await tallies(world) == {}
    await vote(world, told["id"], status=404)
    held = b"".join(path.read_bytes() for path in tmp_path.glob("sessions.db*"))  # noqa: ASYNC240 - a few pages
    assert way != "erase" or b"canary-7713" not in held


async def test_votes_are_their_owner_s_and_outlive_the_server(serve: Serve, tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with serve(database_url=url) as world:
        told = await say(world, await session(world))
        stored = await vote(world, told["id"])
    async with serve(database_url=url, admin_key=KEY) as world:
        client: httpx.AsyncClient = world.client
        error(await client.get(FEEDBACK), 401, "unauthorized")
        client.headers["authorization"] = f"Bearer {KEY}"
        await vote(world, told["id"], status=404)
        own = await say(world, await session(world))
        await vote(world, own["id"], preferred_over=told["id"], status=404)
        assert await listed(world) == [] == await exported(world) and await tallies(world) == {}
    async with serve(database_url=url) as world:
        assert await listed(world) == [stored] and await tallies(world) == {"demo:1": (1, 0, 1)}


async def test_an_imported_answer_can_be_voted_on(world: World) -> None:
    made = await session(world)
    told = await say(world, made)
    exported = await world.client.get(f"{SESSIONS}/{made}/export")
    await world.client.delete(f"{SESSIONS}/{made}")
    await vote(world, told["id"], status=404)
    headers = {"content-type": "application/x-ndjson"}
    copy = (await world.client.post(f"{SESSIONS}/import", content=exported.content, headers=headers)).json()
    stored = await vote(world, told["id"])
    assert (stored["session_id"], stored["model"], stored["digest"]) == (copy["id"], "demo:1", told["digest"])
