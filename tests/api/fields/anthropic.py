"""This table says what the fields of Anthropic's messages do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from service.api.anthropic import schemas as anthropic
from tests.api.fields.cases import ANYTHING, Case, Table, acts, but, notes, refuses, under
from tests.api.fields.native import CONTEXT, DOCUMENTS, HI, LONG, SCHEMA, TOWN, engine, holds

TEXT: Final = {"type": "text", "text": "hi"}
BLOCK: Final = "messages[0].content[0]."
USED: Final = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
RESULT: Final = {"type": "tool_result", "tool_use_id": "c1", "content": [TEXT]}
CALLED: Final = {
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [USED]},
        {"role": "user", "content": [RESULT]},
    ]
}
CALL: Final = "messages[1].content[0]."
OUTCOME: Final = "messages[2].content[0]."
TOOL: Final = {"name": "look", "input_schema": SCHEMA}
FORM: Final = {"type": "json_schema", "schema": SCHEMA}
EDITED: Final = {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}
FORCED: Final[dict[str, Any]] = {
    "tools": [TOOL, {"name": "order", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "look"},
}
FREE: Final[dict[str, Any]] = {**FORCED, "tool_choice": {"type": "any"}}
THOUGHT: Final = {"messages": [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, TEXT]},
    {"role": "user", "content": "hi"},
]}  # fmt: skip


HIDDEN: Final = {"messages": [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, TEXT]},
    {"role": "user", "content": "hi"},
]}  # fmt: skip


def cached(prefix: str, **beside: Any) -> tuple[Case, ...]:
    """Blocks of every prompt are kept anyway."""
    kept = {"type": "ephemeral", "ttl": "1h"}
    return (notes(f"{prefix}cache_control", kept, {**kept, "ttl": "9h"}, **beside),)


COUNTED: Final[tuple[Case, ...]] = (
    acts("messages[0].role", "system", "engine.prompt", holds("<|im_start|>system"), messages=[*HI, *HI]),
    acts("messages[0].content", "salmon", "engine.prompt", holds("salmon")),
    refuses(f"{BLOCK}type", "image"),
    acts(f"{BLOCK}text", "salmon", "engine.prompt", holds("salmon"), messages=[{"role": "user", "content": [TEXT]}]),
    acts(f"{CALL}id", "c9", "status", 400, **CALLED),
    acts(f"{CALL}name", "order", "engine.prompt", holds("order"), **CALLED),
    acts(f"{CALL}input", {"city": "x"}, "engine.prompt", holds("city"), **CALLED),
    refuses(f"{OUTCOME}tool_use_id", "c9", **CALLED),
    acts(f"{OUTCOME}content", "sunny", "engine.prompt", holds("sunny"), **CALLED),
    refuses(f"{OUTCOME}content[0].type", "image", **CALLED),
    acts(f"{OUTCOME}content[0].text", "sunny", "engine.prompt", holds("sunny"), **CALLED),
    refuses(f"{OUTCOME}content[0].citations", {"enabled": True}, **CALLED),
    acts(f"{OUTCOME}is_error", True, "engine.prompt", holds("Error"), **CALLED),
    notes("messages[1].content[0].thinking", "hm", 5, **THOUGHT),
    notes("messages[1].content[0].signature", "s", 5, **THOUGHT),
    notes("messages[1].content[0].data", "s", 5, **HIDDEN),
    *cached(BLOCK, messages=[{"role": "user", "content": [TEXT]}]),
    *cached(f"{OUTCOME}content[0].", **CALLED),
    refuses("system[0].type", "image", system=[TEXT]),
    acts("system[0].text", "be brief", "engine.prompt", holds("be brief"), system=[TEXT]),
    *cached("system[0].", system=[TEXT]),
    acts("tools[0].name", "seek", "engine.prompt", holds("seek"), tools=[TOOL]),
    acts("tools[0].input_schema", TOWN, "engine.prompt", holds("town"), tools=[TOOL]),
    acts("tools[0].description", "of a city", "engine.prompt", holds("of a city"), tools=[TOOL]),
    notes("tools[0].type", "custom", "bash_20250124", tools=[TOOL]),
    notes("tools[0].strict", True, 5, tools=[TOOL]),
    notes("tools[0].eager_input_streaming", True, 5, tools=[TOOL]),
    *cached("tools[0].", tools=[TOOL]),
    acts("tool_choice.type", "none", "engine.grammar", "", **FREE),
    acts("tool_choice.name", "order", "engine.grammar", holds("order"), **FORCED),
    acts("tool_choice.disable_parallel_tool_use", True, **FREE),
    acts("thinking.type", "disabled", "engine.prompt", holds("<think>\n\n</think>"), thinking={"type": "adaptive"}),
    notes("thinking.budget_tokens", 30, 0, thinking={"type": "enabled"}),
    notes("thinking.display", "omitted", "loud", thinking={"type": "adaptive"}),
    refuses("output_config.effort", "low"),
    acts("output_config.format", FORM, "engine.grammar", holds("integer")),
    acts("output_format", FORM, "engine.grammar", holds("integer")),
    *cached(""),
    refuses("context_management.edits[0].type", "clear_tool_uses_20250919"),
    notes("context_management.edits[0].keep", "all", 5, **EDITED),
    *under("documents", DOCUMENTS),
    acts("chat_template_kwargs", {"shout": True}, "engine.prompt", holds("SHOUT")),
)  # fmt: skip
BESIDE: Final[dict[str, Any]] = {
    "messages[].content[].": {"messages": [{"role": "user", "content": [TEXT]}]},
    "system[].": {"system": [TEXT]},
    "tools[].": {"tools": [TOOL]},
}
MESSAGES: Final = Table(
    anthropic.MessagesBody,
    "/v1/messages",
    {"messages": HI, "max_tokens": 40, "temperature": 0, "seed": 1},
    (
        *COUNTED,
        *under("context.", CONTEXT),
        acts("model", "demo:1", "answer.model"),
        engine("max_tokens", 3, "max_tokens"),
        acts("stream", True, "headers.content-type", holds("text/event-stream")),
        acts("stop_sequences", ["하나"], "answer.stop_sequence", "하나"),
        engine("temperature", 0.5, "temperature"),
        engine("top_p", 0.5, "top_p"),
        engine("top_k", 7, "top_k"),
        acts("metadata.user_id", "minji", "log.user"),
        notes("service_tier", "standard_only", "priority"),
        engine("seed", 7, "seed"),
        acts("session_id", "<session>", "engine.prompt", holds("87,900")),
        engine("priority", 4, "priority"),
        acts("deadline_ms", 60_000, "engine.has_deadline", True),
        acts("request_id", "mine-1", "id"),
    ),
    beside={"context.": LONG, **BESIDE},
)
COUNT: Final = Table(
    anthropic.CountTokensBody,
    "/v1/messages/count_tokens",
    {"messages": HI},
    (
        *but(
            tuple(replace(case, at="", shows=ANYTHING) if case.at[:7] == "engine." else case for case in COUNTED),
            acts("tool_choice.name", "buy", "status", 400, **FORCED),
            notes("tool_choice.disable_parallel_tool_use", True, 5, **FORCED),
            notes("output_config.format", FORM, {**FORM, "type": "xml"}),
            notes("output_format", FORM, {**FORM, "type": "xml"}),
        ),
        acts("model", "demo:7", "status", 404),
    ),
    beside=BESIDE,
)
TABLES: Final[tuple[Table, ...]] = (MESSAGES, COUNT)
