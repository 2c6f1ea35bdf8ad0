"""Conversations, by OpenAI's own client: each is a session, its items are the session's messages, and responses go on
in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.conversations import Conversation, ConversationItemList
from openai.types.responses import Response
from pydantic import TypeAdapter

from tests.fake_service import World, over_http, says, serving
from tests.tools import WITH_TOOLS

WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
RESULT: dict[str, Any] = {"type": "function_call_output", "call_id": "c1", "output": "맑음"}
CALLED = 'Soon.\n<tool_call>\n{"name": "weather", "arguments": {"city": "서울"}}\n</tool_call>'
THOUGHT = f"<think>two</think>\n\n{CALLED}"


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("tests.fake_service.WINDOW", 1024)
    async with serving(
        tmp_path,
        chat_template=WITH_TOOLS + "{{ '' if true else '</think>' }}",
        database_url=f"sqlite+aiosqlite:///{tmp_path}/sessions.db",
    ) as served:
        yield served


@pytest.fixture
async def client(world: World) -> AsyncIterator[Any]:
    async with over_http(world) as url:
        yield AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def prompt(world: World) -> str:
    return world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)


def in_order(text: str, *parts: str) -> bool:
    places = [text.find(part) for part in parts]
    return -1 not in places and places == sorted(places)


def said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


async def items(client: Any, conversation: str, **wanted: Any) -> list[Any]:
    return [item async for item in client.conversations.items.list(conversation, order="asc", **wanted)]


async def session(world: World, conversation: str) -> list[dict[str, Any]]:
    answer = await world.client.get(f"/v1/sessions/{conversation.replace('conv_', 's_')}/messages?limit=100")
    return list(answer.json()["data"])


async def test_a_conversation_is_made_read_changed_and_deleted(world: World, client: Any) -> None:
    made = await client.conversations.create(
        metadata={"order": "7"}, items=[said("user", "안녕"), said("assistant", "네")]
    )
    assert type(made) is Conversation and made.id.startswith("conv_") and made.object == "conversation"
    assert await client.conversations.retrieve(made.id) == made
    changed = await client.conversations.update(made.id, metadata={"order": "8"})
    assert (changed.id, changed.created_at, changed.metadata) == (made.id, made.created_at, {"order": "8"})
    assert (await client.conversations.update(made.id, metadata=None)).metadata == {}
    assert [each["content"] for each in await session(world, made.id)] == ["안녕", "네"]
    by_session = await client.conversations.retrieve(made.id.replace("conv_", "s_"))
    assert by_session.id == made.id
    gone = await client.conversations.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "conversation.deleted")
    with pytest.raises(openai.NotFoundError) as caught:
        await client.conversations.retrieve(made.id)
    assert caught.value.param == "conversation_id" and made.id in caught.value.message


async def test_items_are_added_listed_read_and_deleted(world: World, client: Any) -> None:
    conversation = (await client.conversations.create()).id
    added = await client.conversations.items.create(
        conversation,
        items=[
            said("developer", "Be short."),
            said("user", "날씨?"),
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            said("assistant", "Soon."),
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": '{"city": "서울"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "맑음"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "비"}]},
        ],
    )
    TypeAdapter(ConversationItemList).validate_python(added.model_dump(exclude_unset=True))
    kinds = ["message", "message", "reasoning", "message", *["function_call"] * 2, *["function_call_output"] * 2]
    assert [item.type for item in added.data] == kinds
    assert [item.role for item in added.data if item.type == "message"] == ["system", "user", "assistant"]
    assert [each["role"] for each in await session(world, conversation)] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    listed = await items(client, conversation)
    assert listed == added.data, "the same ids and items"
    for limit in (1, 2, 3):
        assert await items(client, conversation, limit=limit) == listed
        backwards = [item async for item in client.conversations.items.list(conversation, limit=limit)]
        assert backwards == listed[::-1]
    for item in listed:
        assert await client.conversations.items.retrieve(item.id, conversation_id=conversation) == item
    for part in listed[2:7]:
        with pytest.raises(openai.ConflictError):
            await client.conversations.items.delete(part.id, conversation_id=conversation)
    left = await client.conversations.items.delete(listed[0].id, conversation_id=conversation)
    assert type(left) is Conversation and left.id == conversation
    assert await items(client, conversation) == listed[1:]
    for id in (listed[0].id, "msg_none", "none", f"{listed[5].id}0"):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.conversations.items.retrieve(id, conversation_id=conversation)
        assert caught.value.param == "item_id"


async def test_a_deleted_call_takes_its_result_along(client: Any) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
    made = await client.conversations.create(items=[said("user", "날씨?"), call, RESULT, said("assistant", "맑아요")])
    _, called, _, _ = await items(client, made.id)
    await client.conversations.items.delete(called.id, conversation_id=made.id)
    assert [item.type for item in await items(client, made.id)] == ["message", "message"]


async def test_a_stale_client_changes_no_conversation(world: World, client: Any) -> None:
    made = await world.client.post("/v1/conversations", json={"items": [said("user", "안녕")]})
    path, known = f"/v1/conversations/{made.json()['id']}", made.headers["etag"]
    [item] = (await world.client.get(f"{path}/items")).json()["data"]
    changed = await world.client.post(path, json={"metadata": {"order": "7"}}, headers={"If-Match": known})
    assert changed.status_code == 200 and changed.headers["etag"] != known
    more = {"items": [said("user", "more")]}
    for method, place, body in (
        ("POST", "", {"metadata": None}),
        ("POST", "/items", more),
        ("DELETE", f"/items/{item['id']}", None),
        ("DELETE", "", None),
    ):
        stale = await world.client.request(method, path + place, json=body, headers={"If-Match": known})
        assert (stale.status_code, stale.json()["error"]["code"]) == (412, "stale"), place
        wrong = await world.client.request(method, path + place, json=body, headers={"If-Match": "7"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "If-Match"), place
    left = await world.client.get(path)
    assert left.json()["metadata"] == {"order": "7"} and left.headers["etag"] == changed.headers["etag"]
    assert (await world.client.get(f"{path}/items")).json()["data"] == [item]
    now = {"If-Match": left.headers["etag"]}
    assert (await world.client.post(f"{path}/items", json=more, headers=now)).status_code == 200
    now = {"If-Match": (await world.client.get(path)).headers["etag"]}
    assert (await world.client.delete(f"{path}/items/{item['id']}", headers=now)).status_code == 200
    now = {"If-Match": (await world.client.get(path)).headers["etag"]}
    assert (await world.client.delete(path, headers=now)).json()["deleted"]


async def test_responses_go_on_in_their_conversation(world: World, client: Any) -> None:
    conversation = (await client.conversations.create(items=[said("user", "old"), said("assistant", "older")])).id
    says(world, THOUGHT)
    ask = {"model": "demo", "tools": [WEATHER]}
    first = await client.responses.create(conversation=conversation, input="날씨?", instructions="짧게.", **ask)
    assert in_order(prompt(world), "짧게.", "old", "older", "날씨?")
    assert first.conversation.id == conversation
    listed = await items(client, conversation)
    assert [(each.type, each.id) for each in listed[-3:]] == [(each.type, each.id) for each in first.output]
    assert (listed[-1].call_id, listed[-1].arguments) == (first.output[-1].call_id, first.output[-1].arguments)
    [asked] = (await client.responses.input_items.list(first.id)).data
    assert (asked.id, asked.content[0].text) == (listed[2].id, "날씨?")
    says(world, "맑아요.")
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "21도"}
    events = [
        event
        async for event in await client.responses.create(
            conversation={"id": conversation}, input=[result], stream=True, **ask
        )
    ]
    last = events[-1].response
    assert events[-1].type == "response.completed" and last.conversation.id == conversation
    assert await client.responses.retrieve(last.id) == last
    assert in_order(prompt(world), "날씨?", "Soon.", "서울", "21도") and "짧게." not in prompt(world)
    assert "two" not in prompt(world)
    listed = await items(client, conversation)
    assert listed[-1].id == last.output[0].id and listed[-1].content[0].text == "맑아요."
    messages = await session(world, conversation)
    assert [each["role"] for each in messages] == ["user", "assistant", "user", "assistant", "tool", "assistant"]
    assert messages[3]["reasoning"] == "two" and messages[5]["answer_id"] == last.id
    assert messages[5]["context"]["policy"] == "window" and last.truncation == "auto"


async def test_a_response_that_is_not_stored_is_still_in_its_conversation(world: World, client: Any) -> None:
    conversation = (await client.conversations.create()).id
    answer = await client.responses.create(model="demo", conversation=conversation, input="안녕", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)
    assert [item.role for item in await items(client, conversation)] == ["user", "assistant"]
    await client.conversations.delete(conversation)
    kept = await client.responses.create(model="demo", input="안녕")
    assert kept.conversation is None


async def test_the_window_trims_and_the_receipt_says_what(world: World, client: Any) -> None:
    conversation = (await client.conversations.create()).id
    for number in range(6):
        await client.responses.create(model="demo", conversation=conversation, input=f"q{number} " + "밥 " * 60)
    raw = await client.responses.with_raw_response.create(
        model="demo", conversation=conversation, input="q6 " + "밥 " * 60, max_output_tokens=32
    )
    receipt = raw.http_response.json()["context"]
    assert receipt["truncated"] and receipt["dropped"] and "q0" not in prompt(world) and "q6" in prompt(world)
    assert receipt["cut"]["at"] in {each["id"] for each in await session(world, conversation)}
    assert len(await items(client, conversation)) == 14, "the conversation keeps what the model did not see"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(
            model="demo", conversation=conversation, input="밥 " * 60, truncation="disabled", max_output_tokens=32
        )
    assert caught.value.code == "context_length_exceeded"
    assert len(await items(client, conversation)) == 14, "what is refused is not added"


async def test_instructions_of_some_turns_leave_the_numbers_before_a_cut_true(world: World, client: Any) -> None:
    """A count with an inspection reads the whole session, a turn from its cut on: both send the same."""
    conversation = (await client.conversations.create()).id
    cut = 0
    for number in range(12):
        asked = {"model": "demo", "conversation": conversation, "input": f"q{number} " + "밥 " * 60}
        if number % 3:
            asked["instructions"] = "Be short. " * number
        whole = {"context": {"inspect": True, "reserve_output_tokens": 32}}
        counted = await client.responses.input_tokens.count(**asked, extra_body=whole)
        raw = await client.responses.with_raw_response.create(**asked, max_output_tokens=32)
        answer = raw.http_response.json()
        receipt = answer["context"]
        assert receipt["used"] == sum(receipt["parts"].values()) == answer["usage"]["input_tokens"]
        assert counted.input_tokens == answer["usage"]["input_tokens"], number
        assert (receipt["parts"]["system"] > 0) == bool(number % 3)
        assert receipt["counts"]["kept"] + receipt["counts"]["dropped"] == 2 * number + 1 + bool(number % 3)
        cut += receipt["truncated"]
    assert cut > 4


async def test_a_system_message_behind_the_first_message_moves_no_cut(world: World) -> None:
    """Only a part of a long chat is read: the system message at its end belongs to a turn that is not."""
    post = world.client.post
    greeting = {"items": [{"type": "message", "role": "assistant", "content": "Hello, I am Bob"}]}
    conversation = (await post("/v1/conversations", json=greeting)).json()["id"]
    dropped = [0]
    for number in range(9):
        asked = [
            {"type": "message", "role": "system", "content": f"note {number}"},
            {"type": "message", "role": "user", "content": f"q{number} {'x ' * 15}"},
        ]
        body = {"conversation": conversation, "instructions": "Be kind.", "input": asked, "max_output_tokens": 8}
        more = {"context": {"policy": "window", "max_input_tokens": 300}}
        receipt = (await post("/v1/responses", json={**body, **more})).json()["context"]
        counts = receipt["counts"]
        assert counts["kept"] + counts["dropped"] == 2 + 3 * number + 2, "of the chat, with the instructions"
        dropped.append(counts["dropped"])
    assert dropped == sorted(dropped) and dropped[-1] > 0, "a cut only moves on"
    assert len(set(dropped[4:])) < 4, "and then stays for some turns"


async def test_the_tokens_of_a_turn_are_counted(world: World, client: Any) -> None:
    conversation = (await client.conversations.create(items=[said("user", "old"), said("assistant", "older")])).id
    counted = await client.responses.input_tokens.count(model="demo", conversation=conversation, input="new")
    answer = await client.responses.create(model="demo", conversation=conversation, input="new")
    assert counted.input_tokens == answer.usage.input_tokens
    assert len(await items(client, conversation)) == 4, "counting adds nothing"


async def test_a_cut_answer_is_incomplete(world: World, client: Any) -> None:
    conversation = (await client.conversations.create()).id
    says(world, "one two three four five")
    answer = await client.responses.create(model="demo", conversation=conversation, input="go", max_output_tokens=3)
    assert answer.status == "incomplete"
    assert [item.status for item in await items(client, conversation)] == ["completed", "incomplete"]


async def test_a_response_of_a_conversation_has_no_follower_by_its_id(world: World, client: Any) -> None:
    conversation = (await client.conversations.create()).id
    answer = await client.responses.create(model="demo", conversation=conversation, input="안녕")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="demo", previous_response_id=answer.id, input="x")
    assert caught.value.param == "previous_response_id" and "conversation" in caught.value.message


async def test_nothing_is_seen_of_another_conversation(world: World, client: Any) -> None:
    one, two = [(await client.conversations.create(items=[said("user", name)])).id for name in ("a", "b")]
    [item] = await items(client, one)
    for path in (f"/v1/conversations/{two}/items/{item.id}", f"/v1/conversations/{two}/items?after={item.id}"):
        answer = await world.client.get(path)
        assert answer.status_code == 404 and answer.json()["error"]["param"] in ("item_id", "after")
    refused = await world.client.get(f"/v1/conversations/{one}/items?include=message.output_text.logprobs")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "include"


async def test_the_types_of_the_client_hold_every_answer(client: Any) -> None:
    made = await client.conversations.create(items=[said("user", "안녕"), said("assistant", "네")])
    answer = await client.responses.create(model="demo", conversation=made.id, input="x")
    TypeAdapter(Response).validate_python(answer.model_dump(exclude_unset=True))
    page = await client.conversations.items.with_raw_response.list(made.id)
    TypeAdapter(ConversationItemList).validate_json(page.text)
