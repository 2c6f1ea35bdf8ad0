"""Structured output and calls of a real engine at temperature 1: every answer that ends fits its schema, streamed or
not.

An answer that `max_tokens` cuts has `finish_reason` length, is no whole value, and does not count.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import pytest
from openai import OpenAI

from loadtest.bench.running import free_port
from models.imports.importing import import_source
from models.imports.starter import WEIGHTS
from models.repository.repository import Repository
from tests.answer_schemas import SCHEMAS, many
from tests.e2e.server import Server, python, running
from tests.schema_values import fits_schema
from tests.tools import DEMO_WITH_TOOLS

AT_ONCE = 16
MOST_TOKENS = 400
Answer = tuple[str, str]
"""The text, and why it ended."""
NOTES: Final = {
    "type": "object",
    "properties": {"notes": many({"type": "string", "minLength": 30, "maxLength": 60}, 6, 6)},
    "required": ["notes"],
    "additionalProperties": False,
}
LONG: Final = {"type": "json_schema", "json_schema": {"name": "notes", "schema": NOTES}}
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


def whole(client: httpx.Client, body: dict[str, Any]) -> Answer:
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    return choice["message"]["content"], choice["finish_reason"]


def streamed(client: httpx.Client, body: dict[str, Any]) -> Answer:
    text, reason = "", ""
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
                    reason = choice["finish_reason"] or reason
    return text, reason


def body_of(name: str, seed: int) -> dict[str, Any]:
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMAS[name]}}
    return {
        "messages": [{"role": "user", "content": f"{name}: 도시락 {seed}개 주세요. Two boxes, please."}],
        "response_format": schema,
        "temperature": 1,
        "seed": seed,
        "max_tokens": MOST_TOKENS,
    }


def check(server: Server, name: str, seed: int) -> str:
    """Asks as a whole or as a stream, by the seed; some in both ways. Returns why the answer ended."""
    with server.client(timeout=300) as client:
        body = body_of(name, seed)
        text, reason = streamed(client, body) if seed % 2 else whole(client, body)
        if seed % 10 == 1:
            assert whole(client, body) == (text, reason), name
    if reason == "stop":
        assert fits_schema(SCHEMAS[name], json.loads(text)), (name, text)
    else:
        assert reason == "length", (name, reason)
    return reason


def check_all(server: Server, asked: list[tuple[str, int]]) -> Counter[str]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        reasons = list(pool.map(lambda one: check(server, *one), asked))
    print("cut:", sorted(name for (name, _), reason in zip(asked, reasons, strict=True) if reason == "length"))
    return Counter(reasons)


def test_an_answer_with_a_grammar_outlives_its_engine(served: Server) -> None:
    """The engine is killed at several places of a stream; the stream is that of an engine that lives."""
    body = {**body_of("long text", 3), "response_format": LONG, "stream": True}
    with served.client(timeout=300) as client:
        wanted = streamed(client, body)
        assert wanted[1] == "stop" and len(json.loads(wanted[0])["notes"]) == 6
        for place in (1, 20, 60):
            assert killed_at(place, served, client, body) == wanted


def killed_at(place: int, server: Server, client: httpx.Client, body: dict[str, Any]) -> Answer:
    """The answer's text and end, where the engine is killed once `place` events have come."""
    text, reason, count = "", "", 0
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                count += 1
                if count == place:
                    server.engine().kill()
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
                    reason = choice["finish_reason"] or reason
    assert count > place
    return text, reason


@pytest.mark.nightly
def test_a_thousand_answers_fit(served: Server) -> None:
    """Twenty of each schema, and more where some are cut, until a thousand have ended."""
    asked = [(name, seed) for seed in range(20) for name in SCHEMAS]
    found = check_all(served, asked)
    print(dict(found))
    assert found["length"] <= 20  # free names may be longer than MOST_TOKENS
    more = [(name, seed) for seed in range(20, 22) for name in SCHEMAS]
    found += check_all(served, more[: 2 * found["length"]])
    assert found["stop"] >= 1000


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


def streamed_calls(client: OpenAI, **asked: Any) -> tuple[str, list[tuple[str, str]], str | None]:
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
            assert streamed_calls(client, **asked) == (answer.message.content or "", calls, answer.finish_reason)
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
