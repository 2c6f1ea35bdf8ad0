"""Structured output of a real engine at temperature 1: every answer that ends fits its schema, streamed or not.

An answer that `max_tokens` cuts has `finish_reason` length, is no whole value, and does not count.
"""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import pytest

from tests.answer_schemas import SCHEMAS, many
from tests.e2e.server import Server
from tests.schema_values import fits_schema

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
