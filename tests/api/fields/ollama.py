"""This table says what the fields of Ollama's routes do."""

from __future__ import annotations

from typing import Any, Final

from service.api.ollama import schemas as ollama
from tests.api.fields.cases import Table, acts, notes, refuses, under
from tests.api.fields.native import ASKED, HI, SCHEMA, TOOLS, engine, holds
from tests.api.fields.stage import TALK


def said(text: str) -> Any:
    return lambda answer: text == answer.get("response", (answer.get("message") or {}).get("content"))


OPTIONS: Final = (
    acts("num_ctx", 60, "engine.max_tokens", lambda left: left < 60),
    engine("num_predict", 3, "max_tokens"),
    engine("temperature", 0.5, "temperature"),
    engine("top_k", 7, "top_k"),
    engine("top_p", 0.5, "top_p"),
    engine("min_p", 0.2, "min_p"),
    engine("typical_p", 0.6, "typical_p"),
    engine("repeat_penalty", 1.3, "repetition_penalty"),
    acts("repeat_last_n", 0, "engine.repetition_penalty", 1.0, options={"repeat_penalty": 1.3}),
    engine("presence_penalty", 0.5, "presence_penalty"),
    engine("frequency_penalty", 0.5, "frequency_penalty"),
    engine("seed", 7, "seed"),
    acts("stop", ["하나"], "answer", said("안녕하세요, 도시락 ")),
)
CALL: Final = "messages[1].tool_calls[0]."
CALLED: Final = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
    {"role": "tool", "content": "sunny"},
]
BY_ID: Final = [
    CALLED[0],
    {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": {}}}]},
    {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
]
COMMON: Final = (
    acts("model", "demo:1", "answer.model"),
    acts("stream", True, "headers.content-type", holds("ndjson")),
    acts("think", False, "engine.prompt", holds("<think>\n\n</think>")),
    acts("format", SCHEMA, "engine.grammar", holds("integer")),
    *under("options.", OPTIONS),
    acts("logprobs", True, "answer.logprobs", bool),
    acts("top_logprobs", 2, "engine.logprobs", logprobs=True),
)
BASE: Final[dict[str, Any]] = {"model": "demo", "stream": False, "options": {"temperature": 0, "seed": 1}}
LONG: Final[dict[str, Any]] = {"messages": TALK, "options": {"num_ctx": 120, "num_predict": 10}}
CHAT: Final = Table(
    ollama.OllamaChatBody,
    "/api/chat",
    {**BASE, "messages": HI},
    (
        *COMMON,
        acts("keep_alive", 0, "answer.done_reason", "unload", messages=None, model="demo:1"),
        acts("truncate", True, "status", 200, **LONG),
        acts("messages[0].role", "system", "engine.prompt", holds("<|im_start|>system")),
        acts("messages[0].content", "salmon", "engine.prompt", holds("salmon")),
        notes("messages[0].thinking", "hm", 5, messages=[{"role": "assistant", "content": "ok"}, *HI]),
        acts(f"{CALL}function.name", "seek", "engine.prompt", holds("seek"), messages=CALLED),
        acts(f"{CALL}function.arguments", {"town": "x"}, "engine.prompt", holds("town"), messages=CALLED),
        notes(f"{CALL}function.index", 1, "x", messages=CALLED),
        notes(f"{CALL}type", "function", 5, messages=CALLED),
        acts(f"{CALL}id", "c7", "status", 400, messages=BY_ID),
        acts("messages[2].tool_name", "seek", "status", 400, messages=CALLED),
        acts("messages[2].tool_call_id", "c7", "status", 400, messages=BY_ID),
        *TOOLS[:5],
    ),
    beside={"tools[].": ASKED},
)
GENERATE: Final = Table(
    ollama.OllamaGenerateBody,
    "/api/generate",
    {**BASE, "prompt": "hi"},
    (
        *COMMON,
        acts("keep_alive", 0, "answer.done_reason", "unload", prompt=None, model="demo:1"),
        refuses("truncate", True, raw=True),
        acts("prompt", "salmon", "engine.prompt", holds("salmon")),
        acts("system", "be brief", "engine.prompt", holds("be brief")),
        acts("raw", True, "engine.prompt", "hi"),
    ),
)
SHOW: Final = Table(
    ollama.OllamaShowBody,
    "/api/show",
    {"model": "demo"},
    (
        acts("model", "demo:7", "status", 404),
        acts("name", "demo:7", "status", 404, model=None),
    ),
)
TABLES: Final = (CHAT, GENERATE, SHOW)
