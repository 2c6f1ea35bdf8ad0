"""Every kind of call that users of Ollama's and of Anthropic's Python clients make, by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Literal

from pydantic import BaseModel

from tests.api import anthropic
from tests.api.anthropic import CALLED, KEPT, SYSTEM

ASKED: Final = [{"role": "system", "content": "You sell lunch boxes."}, {"role": "user", "content": "안녕하세요"}]
MORE: Final = [*ASKED, {"role": "assistant", "content": "네!"}, {"role": "user", "content": "😀 하나요"}]
Call = Callable[[Any], Awaitable[Any]]


class Order(BaseModel):
    """An answer that a client wants, as pydantic writes its schema."""

    dish: Literal["bulgogi", "kimbap"]
    count: int


SETTINGS: Final = {"num_ctx": 256, "num_predict": 4, "temperature": 0, "top_k": 5, "seed": 7, "stop": ["하나"]}
OLLAMA: Final[dict[str, Call]] = {
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
OLLAMA_REFUSED: Final = {"no such model": 404, "images": 400, "context": 400, "suffix": 400}
"""The status of the calls that are refused."""


ASK: Final = [{"role": "user", "content": "안녕하세요"}]
WEATHER: Final = {**anthropic.WEATHER, "description": "of a city", "cache_control": KEPT}
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


ANTHROPIC: Final[dict[str, Call]] = {
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


async def whole(answer: Any) -> list[Any]:
    """The answer of a call, or all parts of a stream."""
    return [each async for each in answer] if isinstance(answer, AsyncIterator) else [answer]
