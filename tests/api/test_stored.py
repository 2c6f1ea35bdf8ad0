"""Stored chat completions, also by OpenAI's own client: filters, owners, keys, expiry, other kinds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from service.errors import NotFound
from service.storage.sessions.store import utc_now
from tests.api.conftest import KEY, Serve
from tests.fake_service import REPLY, World, over_http, serving
from tests.tools import WITH_TOOLS

URL = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "store": True}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path, chat_template=WITH_TOOLS) as served:
        yield served


async def ask(world: World, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    answer = await world.client.post(URL, json={**ASK, **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        return dict(answer.json())
    return dict(json.loads(next(line for line in answer.text.splitlines() if line.startswith("data: {"))[6:]))


async def get(world: World, path: str, status: int = 200) -> dict[str, Any]:
    answer = await world.client.get(path)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def ids(world: World, query: str) -> list[str]:
    return [each["id"] for each in (await get(world, f"{URL}?{query}"))["data"]]


@pytest.mark.parametrize("n", [1, 2])
async def test_what_is_read_again_is_what_was_answered(world: World, n: int) -> None:
    likeliest: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    whole = await ask(world, n=n, metadata={"k": "v"}, **likeliest)
    assert whole["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert await get(world, f"{URL}/{whole['id']}") == {**whole, "metadata": {"k": "v"}}
    streamed = await ask(world, n=n, stream=True, **likeliest)
    kept = await get(world, f"{URL}/{streamed['id']}")
    assert (kept["object"], kept["metadata"]) == ("chat.completion", {})
    assert kept["choices"] == whole["choices"] and len(kept["choices"]) == n
    assert kept["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_an_inspection_is_not_stored(world: World) -> None:
    whole = await ask(world, context={"inspect": True})
    assert whole["context"].pop("rendered") and whole["context"].pop("messages")
    assert whole["context"].pop("unlisted") == 0
    assert (await get(world, f"{URL}/{whole['id']}"))["context"] == whole["context"]


async def test_only_what_asks_for_it_is_stored(world: World) -> None:
    for store in (False, None):
        await get(world, f"{URL}/{(await ask(world, store=store))['id']}", 404)
    assert await ids(world, "") == []
    session = (await world.client.post("/v1/sessions", json={})).json()["id"]
    refused = await world.client.post(URL, json={**ASK, "session_id": session})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "store")


async def test_lists_are_filtered_and_paged(world: World) -> None:
    a, b, c = [(await ask(world, metadata=metadata))["id"] for metadata in ({"k": "1"}, {"k": "2", "m": "1"}, {})]
    for query, found in {
        "": [a, b, c],
        "metadata[k]=2": [b],
        "metadata[k]=2&metadata[m]=1": [b],
        "metadata[k]=1&metadata[m]=1": [],
        "model=demo": [a, b, c],
        "model=demo:1": [a, b, c],
        "model=dem": [],
        "order=desc&limit=2": [c, b],
        f"order=desc&after={b}": [a],
        f"after={a}&limit=1": [b],
    }.items():
        assert await ids(world, query) == found, query
    page = await get(world, f"{URL}?limit=2")
    assert (page["first_id"], page["last_id"], page["has_more"]) == (a, b, True)
    assert not (await get(world, f"{URL}?limit=3"))["has_more"]
    assert (await get(world, f"{URL}?after=chatcmpl-0", 404))["error"]["param"] == "after"
    for wrong in ("metadata=k", "metadata[k]=1&metadata[k]=2", "metadata[k][0]=1", "metadata[k][m]=1"):
        assert (await get(world, f"{URL}?{wrong}", 400))["error"]["param"] == "metadata"


async def test_a_list_looks_further_than_one_statement(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.storage.sessions.answers._SOME", 2)
    made = [(await ask(world, metadata={"odd": str(number % 2)}))["id"] for number in range(5)]
    assert await ids(world, "metadata[odd]=0") == made[::2]
    assert await ids(world, "metadata[odd]=1&order=desc") == [made[3], made[1]]


async def test_messages_are_those_of_the_request(world: World) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hello"}], "name": "minji"},
        {"role": "assistant", "tool_calls": [{**call, "index": 0}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]
    id = (await ask(world, messages=messages))["id"]
    page = await get(world, f"{URL}/{id}/messages?limit=2")
    assert page["data"] == [
        {"id": f"{id}-0", "role": "user", "content": "hello", "name": "minji"},
        {"id": f"{id}-1", "role": "assistant", "content": None, "tool_calls": [call]},
    ]
    rest = await get(world, f"{URL}/{id}/messages?after={page['last_id']}")
    assert [each["content"] for each in rest["data"]] == ["sun"] and not rest["has_more"]
    backwards = await get(world, f"{URL}/{id}/messages?order=desc")
    assert [each["role"] for each in backwards["data"]] == ["tool", "assistant", "user"]


async def test_an_id_of_another_kind_is_not_there(world: World) -> None:
    completion = (await ask(world))["id"]
    response = (await world.client.post("/v1/responses", json={"input": "x"})).json()["id"]
    for path in (f"/v1/responses/{completion}", f"{URL}/{response}", f"{URL}/{response}/messages"):
        await get(world, path, 404)
    for url, id in (("/v1/responses", completion), (URL, response)):
        assert (await world.client.delete(f"{url}/{id}")).status_code == 404
    assert (await world.client.post(f"{URL}/{response}", json={"metadata": {}})).status_code == 404
    on = await world.client.post("/v1/responses", json={"input": "x", "previous_response_id": completion})
    assert (on.status_code, on.json()["error"]["param"]) == (404, "previous_response_id")
    assert await ids(world, "") == [completion]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_stores_one_completion(world: World, stream: bool) -> None:
    first, second = [await ask(world, {"Idempotency-Key": "k"}, stream=stream) for _ in range(2)]
    assert first == second and len(world.engine.requests) == 1
    assert await ids(world, "") == [first["id"]]


async def test_another_owners_completion_is_not_there(serve: Serve) -> None:
    async with serve(admin_key=KEY) as world:
        made = await ask(world, {"Authorization": f"Bearer {KEY}"})
        stored = (await world.app.state.service.answers.conversations.store()).answers
        for call in (stored.get, stored.delete):
            with pytest.raises(NotFound, match=r"no stored chat\.completion"):
                await call("another", "chat.completion", made["id"])
        with pytest.raises(NotFound):
            await stored.change_metadata("another", "chat.completion", made["id"], {"k": "v"})


async def test_each_kind_has_its_own_room_and_all_expire(serve: Serve, tmp_path: Path) -> None:
    database = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with serve(database_url=database, sessions_max_per_owner=2, sessions_ttl_seconds=60) as world:
        made = [(await ask(world))["id"] for _ in range(3)]
        for _ in range(3):
            await world.client.post("/v1/responses", json={"input": "x"})
        assert await ids(world, "") == made[1:]
        store = await world.app.state.service.answers.conversations.store()
        store._clock = lambda: utc_now() + timedelta(seconds=61)
        assert await ids(world, "") == []


async def test_openais_client_lists_changes_and_deletes(world: World) -> None:
    async with over_http(world) as url:
        chats: Any = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0).chat.completions
        for value in ("1", "2"):
            await chats.create(model="demo", metadata={"n": value}, **ASK)
        found = [each.id async for each in chats.list(limit=1)]
        assert len(found) == 2
        [one] = [each async for each in chats.list(metadata={"n": "2"})]
        assert (one.id, one.choices[0].message.content) == (found[1], REPLY)
        assert [each.content async for each in chats.messages.list(one.id)] == ["hello"]
        assert (await chats.update(one.id, metadata={"n": "3"})).metadata == {"n": "3"}
        assert (await chats.retrieve(one.id)).metadata == {"n": "3"}
        assert (await chats.update(one.id, metadata=None)).metadata == {}
        assert (await chats.delete(one.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await chats.retrieve(one.id)
