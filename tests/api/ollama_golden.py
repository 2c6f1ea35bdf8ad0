"""`ollama-python-0.6.3.json` holds what Ollama's Python client sends for each call, as facts; tests replay it.

`python -m tests.api.ollama_golden` writes the file, where the client is installed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

import httpx
from pydantic import BaseModel

GOLDEN: Final = Path(__file__).parent / "ollama-python-0.6.3.json"
HEADERS: Final = ("accept", "authorization", "content-type")
ASKED: Final = [{"role": "system", "content": "You sell lunch boxes."}, {"role": "user", "content": "안녕하세요"}]
MORE: Final = [*ASKED, {"role": "assistant", "content": "네!"}, {"role": "user", "content": "😀 하나요"}]
Exchange = dict[str, Any]
Call = Callable[[Any], Awaitable[Any]]


class Order(BaseModel):
    """An answer that a client wants, as pydantic writes its schema."""

    dish: Literal["bulgogi", "kimbap"]
    count: int


SETTINGS: Final = {"num_ctx": 256, "num_predict": 4, "temperature": 0, "top_k": 5, "seed": 7, "stop": ["하나"]}
CALLS: Final[dict[str, Call]] = {
    "list": lambda client: client.list(),
    "show": lambda client: client.show("demo"),
    "ps": lambda client: client.ps(),
    "chat": lambda client: client.chat("demo", MORE),
    "chat stream": lambda client: client.chat("demo:latest", ASKED, stream=True, options=SETTINGS),
    "chat format": lambda client: client.chat("demo", ASKED, format=Order.model_json_schema()),
    "chat logprobs": lambda client: client.chat("demo", ASKED, logprobs=True, top_logprobs=2, think=False),
    "generate": lambda client: client.generate("demo:1", "도시락", system="Be brief.", keep_alive="5m"),
    "generate stream": lambda client: client.generate("demo", "도시락", stream=True, raw=True, keep_alive=-1),
    "generate json": lambda client: client.generate("demo", "JSON, please", format="json"),
    "chat load": lambda client: client.chat("demo"),
    "generate load": lambda client: client.generate("demo"),
    "generate unload": lambda client: client.generate("demo", keep_alive=0),
    "no such model": lambda client: client.chat("nope", ASKED),
    "images": lambda client: client.chat("demo", [{**ASKED[1], "images": [b"x"]}]),
    "tools": lambda client: client.chat("demo", ASKED, tools=[{"type": "function", "function": {"name": "f"}}]),
    "context": lambda client: client.generate("demo", "x", context=[1, 2]),
    "suffix": lambda client: client.generate("demo", "x", suffix="y", stream=True),
}
REFUSED: Final = {"no such model": 404, "images": 400, "tools": 400, "context": 400, "suffix": 400}
"""The status of the calls that are refused."""


def exchanges() -> list[Exchange]:
    """The recorded requests: `call`, `method`, `path`, `headers`, and the `body` as it was sent."""
    found: list[Exchange] = json.loads(GOLDEN.read_text())
    return found


async def whole(answer: Any) -> list[Any]:
    """The answer of a call, or all parts of a stream."""
    return [each async for each in answer] if isinstance(answer, AsyncIterator) else [answer]


async def recorded(client_of: Callable[..., Any]) -> list[Exchange]:
    """What a client made by `client_of` sends. Every request is refused, so it needs no server."""
    sent: list[httpx.Request] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(400, json={"error": "recorded"})

    made = []
    client = client_of(host="http://localhost", transport=httpx.MockTransport(refuse))
    for name, call in CALLS.items():
        with suppress(Exception):  # the refusal, as the client raises it
            await whole(await call(client))
        request = sent.pop()
        headers = {each: request.headers[each] for each in HEADERS if each in request.headers}
        body = json.loads(request.content) if request.content else None
        made.append(
            {"call": name, "method": request.method, "path": request.url.path, "headers": headers, "body": body}
        )
    return made


if __name__ == "__main__":
    sent = asyncio.run(recorded(import_module("ollama").AsyncClient))
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in sent)
    GOLDEN.write_text(f"[\n{lines}\n]\n")
