"""Tools in stored sessions: calls and results are stored, shown, copied, and never parted by a policy."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from service.context.policies import POLICIES
from tests.api.reading import error, openai_error
from tests.fake_service import WINDOW, World, says, serving
from tests.tools import WITH_TOOLS

TOOLS = [{"type": "function", "function": {"name": "f"}}]
CHAT = "/v1/chat/completions"


def call(*cities: str) -> str:
    calls = (f'<tool_call>\n{{"name": "f", "arguments": {{"c": "{each}"}}}}\n</tool_call>' for each in cities)
    return "\n".join(calls)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(
        tmp_path,
        chat_template=WITH_TOOLS + "{{ '' if true else '</think>' }}",
        database_url=f"sqlite+aiosqlite:///{tmp_path}/sessions.db",
    ) as served:
        yield served


async def session(world: World, **fields: Any) -> str:
    return str((await world.client.post("/v1/sessions", json=fields)).json()["id"])


async def turn(world: World, id: str, messages: list[dict[str, Any]], reply: str, **more: Any) -> dict[str, Any]:
    says(world, reply)
    body = {"session_id": id, "messages": messages, "tools": TOOLS, "max_tokens": 160, **more}
    answer = await world.client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def stored(world: World, id: str) -> list[dict[str, Any]]:
    return list((await world.client.get(f"/v1/sessions/{id}/messages")).json()["data"])


def asked(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def results(answer: dict[str, Any], text: str = "clear") -> list[dict[str, Any]]:
    calls = answer["choices"][0]["message"]["tool_calls"]
    return [{"role": "tool", "tool_call_id": each["id"], "content": text} for each in calls]


async def test_a_turn_of_calls_goes_on_with_their_results(world: World) -> None:
    id = await session(world)
    first = await turn(world, id, asked("weather?"), f"<think>two</think>\n\nSoon.\n{call('A', 'B')}")
    second = await turn(world, id, results(first), "It is clear.")
    prompt = world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)
    assert prompt.count("<tool_call>") == 3 and "Soon." in prompt and "two" not in prompt
    assert prompt.count("clear<|im_end|>") == 2 and prompt.index('"B"') < prompt.index("clear")
    messages = await stored(world, id)
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert messages[1]["tool_calls"] == first["choices"][0]["message"]["tool_calls"]
    assert (messages[1]["content"], messages[1]["reasoning"]) == ("Soon.", "two")
    assert [each["tool_call_id"] for each in messages[2:4]] == [each["id"] for each in messages[1]["tool_calls"]]
    assert "tool_calls" not in messages[4] and second["choices"][0]["message"]["content"] == "It is clear."
    again = await world.client.post(f"/v1/sessions/{id}/regenerate", json={"parameters": {"max_new_tokens": 99}})
    assert again.status_code == 200, again.text
    sent = world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)
    assert sent.endswith("clear<|im_end|>\n<|im_start|>assistant\n"), "the last question is the result"
    assert len(await stored(world, id)) == 5


async def test_both_routes_store_the_same(world: World) -> None:
    id = await session(world)
    first = await turn(world, id, asked("weather?"), call("A"))
    says(world, "Clear.")
    body = {"session_id": id, "messages": results(first), "parameters": {"max_new_tokens": 99}}
    native = await world.client.post("/generate", json=body)
    assert native.status_code == 200, native.text
    assert [each["role"] for each in await stored(world, id)] == ["user", "assistant", "tool", "assistant"]


async def test_a_call_that_a_limit_cuts_stays_a_call_and_the_session_goes_on(world: World) -> None:
    """Stored as it was told: a result of it is taken, and the prompt is that of a client that sends the whole chat."""
    id = await session(world)
    text = f"{call('A')}\n{call('BBBBBBBBBBBBBBBBBBBBBBBBBBBBBB')}"
    first = await turn(world, id, asked("weather?"), text, max_tokens=108)
    message = first["choices"][0]["message"]
    assert first["choices"][0]["finish_reason"] == "length" and message["content"] is None
    kept = (await stored(world, id))[1]
    invalid = {"INVALID_JSON": message["tool_calls"][1]["function"]["arguments"]}
    assert kept["content"] == ""
    assert [json.loads(each["function"]["arguments"]) for each in kept["tool_calls"]] == [{"c": "A"}, invalid]
    await turn(world, id, results(first), "Clear.")
    sent = world.engine.requests[-1].token_ids
    says(world, "Clear.")
    body = {"messages": [*asked("weather?"), message, *results(first)], "tools": TOOLS, "max_tokens": 9}
    assert (await world.client.post("/v1/chat/completions", json=body)).status_code == 200
    assert world.engine.requests[-1].token_ids == sent
    await turn(world, id, asked("thanks"), "Bye.")


async def test_copies_have_calls_and_results(world: World) -> None:
    id = await session(world)
    first = await turn(world, id, asked("weather?"), f"<think>a</think>{call('A')}")
    await turn(world, id, results(first), "Clear.")
    messages = await stored(world, id)
    lines = (await world.client.get(f"/v1/sessions/{id}/export")).content
    imported = await world.client.post(
        "/v1/sessions/import", content=lines, headers={"Content-Type": "application/x-ndjson"}
    )
    forked = await world.client.post(f"/v1/sessions/{id}/fork", json={"at": messages[-1]["id"]})
    told = ("role", "content", "tool_calls", "tool_call_id", "reasoning")
    for copied in (imported, forked):
        found = await stored(world, copied.json()["id"])
        assert [{k: e.get(k) for k in told} for e in found] == [{k: e.get(k) for k in told} for e in messages]
        await turn(world, copied.json()["id"], asked("and now?"), "Still clear.")
    plain = await session(world)
    await turn(world, plain, asked("hello"), "Hi.")
    exported = (await world.client.get(f"/v1/sessions/{plain}/export")).text
    assert '"tool_call' not in exported and '"reasoning":' not in exported, "as before, for earlier versions"


@pytest.mark.parametrize(
    ("at", "change"),
    [
        (2, {"tool_call_id": "nobody"}),
        (2, {"tool_call_id": None}),
        (1, {"tool_call_id": "call_1"}),
        (2, {"tool_calls": [{"id": "a", "name": "b", "arguments": "{}"}]}),
        (1, {"tool_calls": [{"id": "a", "name": "b", "arguments": "[]"}]}),
        (1, {"tool_calls": []}),
    ],
)
async def test_an_import_with_parted_calls_is_refused(world: World, at: int, change: dict[str, Any]) -> None:
    id = await session(world)
    first = await turn(world, id, asked("weather?"), call("A"))
    await turn(world, id, results(first), "Clear.")
    lines = [json.loads(line) for line in (await world.client.get(f"/v1/sessions/{id}/export")).text.splitlines()]
    lines[1 + at] |= change
    body = "\n".join(map(json.dumps, lines))
    answer = await world.client.post(
        "/v1/sessions/import", content=body, headers={"Content-Type": "application/x-ndjson"}
    )
    error(answer, 422, "invalid_request")


async def test_a_call_is_deleted_with_its_results(world: World) -> None:
    id = await session(world)
    first = await turn(world, id, asked("weather?"), call("A", "B"))
    await turn(world, id, results(first), call("C"))
    messages = await stored(world, id)
    alone = await world.client.delete(f"/v1/sessions/{id}/messages/{messages[2]['id']}")
    assert alone.status_code == 409 and len(await stored(world, id)) == 5
    await world.client.delete(f"/v1/sessions/{id}/messages/{messages[1]['id']}")
    assert [each["id"] for each in await stored(world, id)] == [messages[0]["id"], messages[4]["id"]]
    await turn(world, id, results({"choices": [{"message": messages[4]}]}), "Clear.")


async def test_what_cannot_act_is_refused_by_name(world: World) -> None:
    id = await session(world)
    first = await turn(world, id, asked("weather?"), call("A"))
    [result] = results(first)
    for messages, param in (
        ([{**result, "tool_call_id": "nobody"}], "messages[0].tool_call_id"),
        ([*asked("hello"), result], "messages"),
        ([{"role": "assistant", "content": "x"}], "messages"),
    ):
        body = {"session_id": id, "messages": messages, "tools": TOOLS}
        refused = openai_error(await world.client.post(CHAT, json=body), 400, "invalid_request")
        assert refused["param"] == param, messages
    await turn(world, id, asked("never mind"), "Fine.")
    late = {"session_id": id, "messages": [result], "tools": TOOLS}
    refused = openai_error(await world.client.post(CHAT, json=late), 400, "invalid_request")
    assert refused["param"] == "messages[0].tool_call_id", "its turn is over"


@pytest.mark.parametrize("policy", [each for each in POLICIES if each != "refuse"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
async def test_no_policy_parts_a_call_from_its_result(world: World, policy: str, seed: int) -> None:
    """Random dialogues past the window: every result that is sent stands behind its call, and every call before its
    result."""
    rng, id = random.Random(seed), await session(world, policy=policy)
    dropped = 0
    for number in range(14):
        messages = asked(f"weather {number}? " + "hello world " * rng.randrange(4))
        while True:
            cities = [f"c{number}"] * (messages[0]["role"] == "user" and rng.random() < 0.7)
            answer = await turn(world, id, messages, call(*cities) or "It is clear.", max_tokens=80)
            receipt = answer["context"]
            assert (
                receipt["used"] + receipt["reserved_output"] <= WINDOW
                and sum(receipt["parts"].values()) == receipt["used"]
            )
            dropped += receipt["counts"]["dropped"] + receipt["counts"]["summarised"]
            names = {each["id"]: each for each in await stored(world, id)}
            sent = [names[each] for each in receipt["kept"] if each in names]
            called = [c["id"] for each in sent for c in each.get("tool_calls", ())]
            answered = [each["tool_call_id"] for each in sent if each["role"] == "tool"]
            assert called == answered
            if not cities:
                break
            messages = results(answer)
        if rng.random() < 0.2:
            last = (await stored(world, id))[-1]["id"]
            await world.client.patch(f"/v1/sessions/{id}/messages/{last}", json={"pinned": number == 0})
    assert dropped, "the dialogue must pass the window"


async def test_anthropics_route_calls_and_goes_on_in_a_session(world: World) -> None:
    id = await session(world, system="You sell.")

    async def message(content: Any, reply: str, **more: Any) -> Any:
        says(world, reply)
        tools = [{"name": "f", "input_schema": {"type": "object"}}]
        body = {"session_id": id, "max_tokens": 160, "tools": tools, "messages": [{"role": "user", "content": content}]}
        return await world.client.post("/v1/messages", json={**body, **more})

    first = (await message("weather?", f"<think>two</think>\n\nSoon.\n{call('A')}", system="You foretell.")).json()
    assert first["stop_reason"] == "tool_use" and first["session_id"] == id
    [called] = [block for block in first["content"] if block["type"] == "tool_use"]
    sent = world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)
    assert "You foretell." in sent and "You sell." not in sent, "the turn's own"
    result = {"type": "tool_result", "tool_use_id": called["id"], "content": "clear"}
    wrong = [{"type": "text", "text": "so"}, {**result, "tool_use_id": "toolu_none"}]
    for content, param in ((wrong[::-1], "messages[0].content[0].tool_use_id"), (wrong, "messages")):
        refused = await message(content, "never")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
    second = (await message([result, {"type": "text", "text": "so?"}], "It is clear.")).json()
    assert [block["text"] for block in second["content"]] == ["It is clear."]
    sent = world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)
    assert "You sell." in sent and sent.index("<tool_call>") < sent.index("clear<|im_end|>") < sent.index("so?")
    messages = await stored(world, id)
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "user", "assistant"]
    [kept] = messages[1]["tool_calls"]
    assert kept["id"] == messages[2]["tool_call_id"] == called["id"].replace("toolu_", "call_")
    assert (await world.client.get(f"/v1/sessions/{id}")).json()["system"] == "You sell."
    says(world, "OpenAI's.")
    chat = {"session_id": id, "messages": asked("thanks"), "tools": TOOLS}
    assert (await world.client.post(CHAT, json=chat)).status_code == 200, "each dialect goes on with the other's calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_question_is_answered_again_with_tools(world: World, stream: bool) -> None:
    id = await session(world)
    await turn(world, id, asked("weather?"), "I do not know.")
    says(world, f"Soon.\n{call('B')}")
    body = {"parameters": {"max_new_tokens": 99}, "tools": TOOLS, "stream": stream}
    again = await world.client.post(f"/v1/sessions/{id}/regenerate", json=body)
    assert again.status_code == 200, again.text
    sent = world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)
    assert '"f"' in sent, "the prompt has the tools"
    events = [json.loads(line[6:]) for line in again.text.splitlines() if line.startswith("data: ")]
    answer = events[-1] if stream else again.json()
    [kept] = (await stored(world, id))[1]["tool_calls"]
    assert answer["tool_calls"] == [kept] and answer["generated_text"] == "Soon."
    assert "".join(each["token"]["text"] for each in events) == ("Soon." if stream else "")
    forced = {**body, "tool_choice": "required", "parameters": {"ignore_eos": True}}
    refused = await world.client.post(f"/v1/sessions/{id}/regenerate", json=forced)
    assert "`parameters.ignore_eos`" in error(refused, 422, "unsupported_field")["error"]
