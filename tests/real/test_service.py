"""The whole service with a model that others trained: schemas are kept, a chat outgrows its budget and has a summary,
and a stream whose engine is killed goes on with the same tokens."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.answer_schemas import SCHEMAS
from tests.e2e.server import Server, stream, text_of
from tests.e2e.test_structured_output import check_all

pytestmark = pytest.mark.nightly
SUMMARISING = {"policy": "summarise", "max_input_tokens": 400, "reserve_output_tokens": 40}
FACTS = (
    "My name is Ines and I live in Lisbon.",
    "I have two dogs, a brown one and a white one.",
    "My brother works as a baker and gets up at three in the morning.",
    "Next week I want to travel to Porto by train.",
)


def test_schemas_are_kept(served: Server) -> None:
    """At temperature 1, streamed or not; an answer may be cut by its length, and then does not count."""
    found = check_all(served, [(name, seed) for seed, name in enumerate(list(SCHEMAS)[::3])])
    assert found["stop"] >= len(SCHEMAS) / 3 - 4


def test_a_long_chat_has_a_summary(served: Server) -> None:
    chat: list[dict[str, str]] = []
    receipts: list[dict[str, Any]] = []
    with served.client(timeout=120) as client:
        for turn in range(24):
            chat.append({"role": "user", "content": f"{FACTS[turn % len(FACTS)]} Tell me something about it."})
            body = {"messages": chat, "context": SUMMARISING, "parameters": {"max_new_tokens": 40}}
            answer = client.post("/generate", json=body)
            assert answer.status_code == 200, answer.text
            chat.append({"role": "assistant", "content": answer.json()["generated_text"]})
            receipts.append(answer.json()["context"])
            if receipts[-1]["summarised"]:
                break
            time.sleep(3)  # a summary is written behind the answers
    last = receipts[-1]
    assert last["summarised"][:1] == ["m_0"] and last["parts"]["summary"] > 0
    assert last["used"] == sum(last["parts"].values()) <= 400
    assert chat[-1]["content"].strip()


def test_a_stream_outlives_its_engine(served: Server) -> None:
    body: dict[str, Any] = {
        "inputs": "The history of bread begins",
        "parameters": {"max_new_tokens": 60, "ignore_eos": True},
    }
    with served.client(timeout=120) as client:
        wanted = text_of(stream(client, body))
        assert len(wanted.split()) > 20
        for place in (1, 15, 40):
            assert killed_at(place, served, body) == wanted


def killed_at(place: int, server: Server, body: dict[str, Any]) -> str:
    """Returns the answer's text, where the engine is killed once `place` events have come."""
    events: list[dict[str, object]] = []
    with server.client(timeout=120) as client, client.stream("POST", "/generate_stream", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data:"):
                events.append(json.loads(line[5:]))
                if len(events) == place:
                    server.engine().kill()
    assert len(events) > place
    return text_of(events)
