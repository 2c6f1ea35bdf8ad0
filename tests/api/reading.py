"""Helpers that read the bytes of a response as a client does."""

from __future__ import annotations

import json
from typing import Any

import httpx


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of every event, by httpx's own splitting of lines."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.iter_lines() if line]
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]


def error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The native error body, checked to the letter."""
    body: dict[str, Any] = response.json()
    assert (response.status_code, body.get("code")) == (status, code), response.text
    assert body.keys() >= {"error", "code", "error_type", "request_id"}
    assert body["error_type"] in {"validation", "generation", "overloaded", "incomplete_generation"}
    assert body["request_id"] == response.headers["x-request-id"]
    assert all(isinstance(value, int | float) for key, value in body.items() if key not in _FIXED)
    assert "Traceback" not in response.text
    return body


_FIXED = {"error", "code", "error_type", "request_id"}


def openai_error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    body: dict[str, Any] = response.json()
    assert response.status_code == status, response.text
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == code, response.text
    return dict(body["error"])


def triton_error(response: httpx.Response, status: int) -> str:
    """The sentence of Triton's error body, checked to the letter."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    sentence: str = body["error"]
    return sentence
