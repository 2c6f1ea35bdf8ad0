"""Tools at a real engine: dialogues of forced calls, their results and free answers, through OpenAI's client."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from models.imports.importing import import_source
from models.imports.starter import WEIGHTS
from models.repository.repository import Repository
from tests.e2e.server import free_port, python, running
from tests.tools import DEMO_WITH_TOOLS

MENUS = ["불고기 도시락", "비빔밥", "김치찌개"]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "price",
            "description": "The price of a menu",
            "parameters": {
                "type": "object",
                "properties": {"menu": {"enum": MENUS}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
                "required": ["menu", "count"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "note",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string", "maxLength": 12}},
                "required": ["text"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "close"}},
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    root = tmp_path_factory.mktemp("tools")
    checkpoint = shutil.copytree(WEIGHTS, root / "checkpoint")
    (checkpoint / "chat_template.jinja").write_text(DEMO_WITH_TOOLS)
    (root / "data").mkdir()
    import_source(Repository(root / "data"), str(checkpoint), "tools")
    command = python("-m", "service.cli", "serve")
    with running(command, root / "data", root / "log", free_port(), DOSIRAK_DEFAULT_MODEL="tools") as server:
        yield OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def is_right(name: str, arguments: str) -> bool:
    value = json.loads(arguments)
    if name == "price":
        return value.keys() == {"menu", "count"} and value["menu"] in MENUS and 1 <= value["count"] <= 9
    return value == {} if name == "close" else len(value["text"]) <= 12


def streamed(client: OpenAI, **asked: Any) -> tuple[str, list[tuple[str, str]], str | None]:
    content, calls, reason = "", dict[int, list[str]](), None
    for chunk in client.chat.completions.create(stream=True, **asked):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or []:
                known = calls.setdefault(call.index, ["", ""])
                assert call.function is not None
                known[0] += call.function.name or ""
                known[1] += call.function.arguments or ""
    assert list(calls) == list(range(len(calls)))
    return content, [(name, arguments) for name, arguments in calls.values()], reason


def require_order(client: OpenAI, messages: list[Any]) -> None:
    """The model receives the chat's questions, calls and results in their order."""
    url = str(client.base_url).removesuffix("/v1/")
    told = httpx.post(f"{url}/tokenize", json={"messages": messages})
    assert told.status_code == 200, told.text
    prompt = httpx.post(f"{url}/detokenize", json={"tokens": told.json()["tokens"]}).json()["prompt"]
    place = prompt.index(messages[0]["content"])
    for message in messages:
        wanted = [message.get("content") or ""]
        wanted += [f'"name": "{call["function"]["name"]}"' for call in message.get("tool_calls", [])]
        for text in wanted:
            assert text in prompt[place:], (text, prompt)
            place = prompt.index(text, place) + len(text)


def dialogue(client: OpenAI, seed: int) -> int | None:
    """Three turns; each answer is asked for as a whole and as a stream. Returns the number of its calls; None where
    `max_tokens` cut one, which cannot be sent back."""
    rng, num_calls = random.Random(seed), 0
    messages: list[Any] = []
    for turn in range(3):
        messages.append(
            {"role": "user", "content": rng.choice(["비빔밥 얼마예요?", "Two boxes, please.", "안녕하세요"])}
        )
        for choice in (rng.choice(["required", {"type": "function", "function": {"name": "price"}}]), "auto"):
            asked: dict[str, Any] = {
                "model": "tools",
                "messages": messages,
                "tools": TOOLS,
                "tool_choice": choice,
                "temperature": 1,
                "seed": seed + turn,
                "max_tokens": 300 if choice != "auto" else 24,
                "parallel_tool_calls": choice == "required" and rng.random() < 0.5,
            }
            [answer] = client.chat.completions.create(**asked).choices
            calls = [(each.function.name, each.function.arguments) for each in answer.message.tool_calls or []]
            assert streamed(client, **asked) == (answer.message.content or "", calls, answer.finish_reason)
            if answer.finish_reason == "length" and (calls or choice != "auto"):
                return None
            if choice != "auto":
                assert answer.finish_reason == "tool_calls" and calls and not answer.message.content
                assert all(is_right(name, arguments) for name, arguments in calls)
                assert choice == "required" or [name for name, _ in calls] == ["price"]
                assert asked["parallel_tool_calls"] or len(calls) == 1
            messages.append(answer.message.model_dump(exclude_none=True))
            messages += [
                {"role": "tool", "tool_call_id": each.id, "content": f"{turn}.{number}: 8,900원"}
                for number, each in enumerate(answer.message.tool_calls or [])
            ]
            num_calls += len(calls)
    ids = [each["tool_call_id"] for each in messages if each["role"] == "tool"]
    assert len(set(ids)) == len(ids) == num_calls >= 3
    require_order(client, messages)
    return num_calls


@pytest.mark.nightly
def test_dialogues(client: OpenAI) -> None:
    assert sum(dialogue(client, seed) is not None for seed in range(5)) >= 4


@pytest.mark.nightly
def test_two_hundred_dialogues(client: OpenAI) -> None:
    """Whole ones; the next seed takes the place of one that was cut."""
    found = [dialogue(client, 1000 + seed) for seed in range(230)]
    whole = [each for each in found if each is not None]
    print(f"{len(whole)} whole dialogues of {len(found)}, {sum(whole)} calls")
    assert len(whole) >= 200
