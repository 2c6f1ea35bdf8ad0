"""The golden file `anthropic-python-2.13.0.json` says what Anthropic's Python client sends for each call; tests replay
it.

`python -m tests.api.anthropic_golden` writes the file.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel

GOLDEN: Final = Path(__file__).parent / "anthropic-python-2.13.0.json"
HEADERS: Final = ("accept", "anthropic-beta", "anthropic-version", "authorization", "content-type", "x-api-key")
Exchange = dict[str, Any]
Call = Callable[[Any], Awaitable[Any]]


class Order(BaseModel):
    """An answer that a client wants, as pydantic writes its schema."""

    dish: Literal["bulgogi", "kimbap"]
    count: int


KEPT: Final = {"type": "ephemeral"}
SYSTEM: Final[list[dict[str, Any]]] = [
    {"type": "text", "text": "You sell lunch boxes."},
    {"type": "text", "text": "Answer in one sentence.", "cache_control": {**KEPT, "ttl": "1h"}},
]
ASK: Final = [{"role": "user", "content": "안녕하세요"}]
WEATHER: Final = {
    "name": "weather",
    "description": "of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "cache_control": KEPT,
}
CALLED: Final[list[dict[str, Any]]] = [
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
IMAGE: Final = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
DOCUMENT: Final = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}}
BASE: Final[dict[str, Any]] = {"model": "demo", "max_tokens": 12, "messages": ASK}
AGENT: Final[dict[str, Any]] = {
    **BASE,
    "max_tokens": 32_000,
    "messages": CALLED,
    "system": SYSTEM,
    "tools": [WEATHER],
    "metadata": {"user_id": "user_1_account__session_2"},
    "betas": ["interleaved-thinking-2025-05-14", "fine-grained-tool-streaming-2025-05-14"],
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}
"""As a coding agent sends it."""
SAMPLING: Final = {"temperature": 0, "top_p": 0.9, "top_k": 5}
"""The client has no parameters for these any more; people send them so."""


def _create(**more: Any) -> Call:
    return lambda client: client.messages.create(**{**BASE, **more})


def _with_block(block: dict[str, Any]) -> Call:
    return _create(messages=[{"role": "user", "content": [block, {"type": "text", "text": "what is this?"}]}])


CALLS: Final[dict[str, Call]] = {
    "create": _create(),
    "settings": _create(system="You sell lunch boxes.", stop_sequences=["하나"], service_tier="auto"),
    "sampling": _create(extra_body=SAMPLING),
    "stream": _create(system=SYSTEM, stream=True),
    "tools": _create(messages=CALLED, tools=[WEATHER]),
    "forced": _create(tools=[WEATHER], tool_choice={"type": "any", "disable_parallel_tool_use": True}),
    "named": _create(tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"}, stream=True),
    "no tools": _create(tools=[WEATHER], tool_choice={"type": "none"}),
    "no thinking": _create(thinking={"type": "disabled"}),
    "adaptive thinking": _create(thinking={"type": "adaptive"}, output_config={"effort": "high"}),
    "thinking": _create(max_tokens=2048, thinking={"type": "enabled", "budget_tokens": 1024}),
    "effort": _create(output_config={"effort": "low"}),
    "parse": lambda client: client.messages.parse(**BASE, output_format=Order),
    "agent": lambda client: client.beta.messages.create(**AGENT, stream=True),
    "count": lambda client: client.messages.count_tokens(model="demo", messages=CALLED, system=SYSTEM, tools=[WEATHER]),
    "models": lambda client: client.models.list(limit=1),
    "model": lambda client: client.models.retrieve("demo"),
    "no such model": _create(model="nope"),
    "image": _with_block(IMAGE),
    "document": _with_block(DOCUMENT),
    "server tool": _create(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    "prefill": _create(messages=[*ASK, {"role": "assistant", "content": "안녕"}]),
    "batches": lambda client: client.messages.batches.list(),
}
REFUSED: Final = {
    "no such model": (404, "not_found_error", "model"),
    "image": (400, "invalid_request_error", "messages[0].content[0].type"),
    "document": (400, "invalid_request_error", "messages[0].content[0].type"),
    "server tool": (400, "invalid_request_error", "tools[0].type"),
    "thinking": (400, "invalid_request_error", "thinking"),
    "effort": (400, "invalid_request_error", "output_config.effort"),
    "prefill": (400, "invalid_request_error", "messages"),
    "batches": (404, "not_found_error", None),
}
"""Status, type and `param` of the calls that are refused, by a version that does not reason."""


def exchanges() -> list[Exchange]:
    """The recorded requests: `call`, `method`, `path`, `headers`, and the `body` as it was sent."""
    found: list[Exchange] = json.loads(GOLDEN.read_text())
    return found


async def whole(answer: Any) -> list[Any]:
    """The answer of a call, or all parts of a stream."""
    return [each async for each in answer] if isinstance(answer, AsyncIterator) else [answer]


async def recorded() -> list[Exchange]:
    """What the client sends. Every request is refused, so it needs no server."""
    anthropic, http = import_module("anthropic"), import_module("httpx2")
    sent: list[Any] = []

    def refuse(request: Any) -> Any:
        sent.append(request)
        return http.Response(400, json={"type": "error", "error": {"type": "x", "message": "recorded"}})

    transport = http.AsyncClient(transport=http.MockTransport(refuse))
    client = anthropic.AsyncAnthropic(api_key="k", base_url="http://localhost", http_client=transport, max_retries=0)
    made = []
    for name, call in CALLS.items():
        with suppress(anthropic.APIStatusError):  # the refusal, as the client raises it
            await whole(await call(client))
        request = sent.pop()
        headers = {each: request.headers[each] for each in HEADERS if each in request.headers}
        body = json.loads(request.content) if request.content else None
        path = request.url.raw_path.decode()
        made.append({"call": name, "method": request.method, "path": path, "headers": headers, "body": body})
    return made


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in asyncio.run(recorded()))
    GOLDEN.write_text(f"[\n{lines}\n]\n")
