"""Requests to Ollama's routes, and their answers as its clients read them."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.fake_service import World

CHAT = [{"role": "user", "content": "hi"}]
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/api/chat", {"model": "demo", "messages": CHAT}),
    ("/api/generate", {"model": "demo", "prompt": "hi"}),
]


def text_of(shown: dict[str, Any]) -> str:
    text: str = shown["message"]["content"] if "message" in shown else shown["response"]
    return text


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    """The lines of a stream, as httpx splits them."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.iter_lines()]


def refused(response: httpx.Response, status: int = 400) -> str:
    """The sentence of an error, which is all that its body has."""
    assert response.status_code == status, response.text
    assert response.json().keys() == {"error"} and response.headers["x-request-id"]
    return str(response.json()["error"])


async def ask(world: World, path: str = "/api/chat", **fields: Any) -> dict[str, Any]:
    body = {**dict(ROUTES)[path], "stream": False, **fields}
    response = await world.client.post(path, json=body)
    assert response.status_code == 200, response.text
    shown: dict[str, Any] = response.json()
    return shown
