"""Requests to Anthropic's routes, and their answers as its clients read them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pydantic_core

from tests.fake_service import World

ASK: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 200,
    "temperature": 0,
    "messages": [{"role": "user", "content": "hello"}],
}
WEATHER = {
    "name": "weather",
    "description": "of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
KEPT = {"type": "ephemeral"}
SYSTEM: list[dict[str, Any]] = [
    {"type": "text", "text": "You sell lunch boxes."},
    {"type": "text", "text": "Answer in one sentence.", "cache_control": {**KEPT, "ttl": "1h"}},
]
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "hello, weather?", "cache_control": KEPT}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Two cities.", "signature": "c2ln"},
            {"type": "text", "text": "Soon."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "서울"}},
            {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "부산"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "clear"},
            {
                "type": "tool_result",
                "tool_use_id": "toolu_2",
                "content": [{"type": "text", "text": "no such city"}],
                "is_error": True,
            },
            {"type": "text", "text": "hello again", "cache_control": KEPT},
        ],
    },
]
"""As a coding agent sends it."""
FIELDS = {"text": {"text"}, "thinking": {"thinking", "signature"}, "tool_use": set[str]()}
ORDER = {"name": "order", "input_schema": {"type": "object"}}


async def ask(world: World, **fields: Any) -> dict[str, Any]:
    response = await world.client.post("/v1/messages", json={**ASK, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def count(world: World, **fields: Any) -> int:
    body = {name: value for name, value in {**ASK, **fields}.items() if name not in ("max_tokens", "temperature")}
    response = await world.client.post("/v1/messages/count_tokens", json=body)
    assert response.status_code == 200, response.text
    return int(response.json()["input_tokens"])


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of every event, each under its own name."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for name, data in (each.split("\n") for each in response.text.strip().split("\n\n")):
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def streamed(world: World, **fields: Any) -> list[dict[str, Any]]:
    return events(await world.client.post("/v1/messages", json={**ASK, **fields, "stream": True}))


def gathered(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events of a stream make, after a look at their order."""
    first, *blocks, delta, last = [each for each in found if each["type"] != "ping"]
    assert (first["type"], delta["type"], last) == ("message_start", "message_delta", {"type": "message_stop"})
    content: list[dict[str, Any]] = []
    inputs: list[str] = []
    is_open = False
    for each in blocks:
        match each["type"]:
            case "content_block_start":
                assert not is_open and each["index"] == len(content)
                content.append(dict(each["content_block"]))
                inputs.append("")
            case "content_block_delta":
                assert is_open and each["index"] == len(content) - 1
                for field in ("text", "thinking", "signature"):
                    content[-1][field] = content[-1].get(field, "") + each["delta"].get(field, "")
                inputs[-1] += each["delta"].get("partial_json", "")
            case kind:
                assert kind == "content_block_stop" and is_open and each["index"] == len(content) - 1
        is_open = each["type"] != "content_block_stop"
    assert not is_open
    for block, given in zip(content, inputs, strict=True):
        for field in {"text", "thinking", "signature"} - FIELDS[block["type"]]:
            assert not block.pop(field, "")
        if block["type"] == "tool_use":
            block["input"] = pydantic_core.from_json(given or "{}", allow_partial=True)
    more = {name: value for name, value in delta.items() if name not in ("type", "delta")}
    return {**first["message"], "content": content, **delta["delta"], **more}


def refused(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The `error` of an error's body, checked to the letter."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"type", "error", "request_id"} and body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert body["error"].keys() == {"type", "message", "param", "code"} and body["error"]["type"] == kind
    return dict(body["error"])
