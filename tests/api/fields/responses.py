"""This table says what the fields of OpenAI's responses do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from service.api.openai.responses import conversation_schemas as conversations
from service.api.openai.responses import schemas as responses
from service.api.openai.schemas import MetadataBody
from tests.api.fields.cases import ANYTHING, Case, Table, acts, but, notes, refuses, under
from tests.api.fields.native import CONTEXT, DOCUMENTS, SCHEMA, TOWN, engine, holds
from tests.api.fields.stage import TALK

SAID: Final[dict[str, Any]] = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}
TOOL: Final = {"type": "function", "name": "look", "parameters": SCHEMA}
ORDER: Final = {"type": "function", "name": "order"}
ASKED: Final[dict[str, Any]] = {"tools": [TOOL]}
FORCED: Final[dict[str, Any]] = {"tools": [TOOL, ORDER], "tool_choice": {"type": "function", "name": "look"}}
REQUIRED: Final[dict[str, Any]] = {**FORCED, "tool_choice": "required"}
FORM: Final = {"type": "json_schema", "name": "a", "schema": SCHEMA}
LOGPROBS: Final = ["message.output_text.logprobs"]
LONG: Final[dict[str, Any]] = {"input": TALK, "context": {"policy": "window", "max_input_tokens": 120}}
CUT: Final[dict[str, Any]] = {"input": TALK, "context": {"max_input_tokens": 120}}
READ: Final[tuple[Case, ...]] = (
    acts("model", "demo:1", "answer.model"),
    acts("input", "salmon", "engine.prompt", holds("salmon")),
    acts("previous_response_id", "<response>", "engine.prompt", holds("salmon")),
    acts("conversation.id", "<conversation>", "engine.prompt", holds("salmon")),
    acts("instructions", "be brief", "engine.prompt", holds("be brief")),
    acts("reasoning.effort", "none", "engine.prompt", holds("<think>\n\n</think>")),
    acts("text.format.type", "json_object", "engine.grammar", bool, text={"format": {"type": "text"}}),
    acts("text.format.schema", {"type": "boolean"}, "engine.grammar", holds("boolean"), text={"format": FORM}),
    notes("text.format.name", "b", "b c", text={"format": FORM}),
    notes("text.format.description", "says so", 5, text={"format": FORM}),
    notes("text.format.strict", True, "yes", text={"format": FORM}),
    refuses("tools[0].type", "web_search", **ASKED),
    acts("tools[0].name", "seek", "engine.prompt", holds("seek"), **ASKED),
    acts("tools[0].description", "of a city", "engine.prompt", holds("of a city"), **ASKED),
    acts("tools[0].parameters", TOWN, "engine.prompt", holds("town"), **ASKED),
    notes("tools[0].strict", True, "yes", **ASKED),
    refuses("tool_choice.type", "custom", **FORCED),
    acts("tool_choice.name", "order", "engine.grammar", holds("order"), **FORCED),
    acts("parallel_tool_calls", False, **REQUIRED),
    acts("truncation", "auto", "status", 200, **CUT),
    *under("context.", CONTEXT),
    *under("documents", DOCUMENTS),
    acts("chat_template_kwargs", {"shout": True}, "engine.prompt", holds("SHOUT")),
)
CALLED: Final[dict[str, Any]] = {
    "input": [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "sun"}]},
    ]
}
ANSWERED: Final = {"role": "assistant", "content": "hello"}
THOUGHT: Final[dict[str, Any]] = {"input": [{"type": "reasoning", "summary": []}, ANSWERED, *SAID["input"]]}
PART: Final = "input[0].content[0]."
RESULT: Final = "input[2].output[0]."
ITEMS: Final[tuple[Case, ...]] = (
    refuses("input[0].type", "web_search_call", **SAID),
    refuses("input[0].type", {}, **SAID),
    acts("input[0].role", "developer", "engine.prompt", holds("<|im_start|>system"), **SAID),
    refuses(f"{PART}type", "input_image", **SAID),
    acts(f"{PART}text", "salmon", "engine.prompt", holds("salmon"), **SAID),
    notes(f"{PART}logprobs", [], 5, **SAID),
    notes("input[0].id", "msg_1", 5, **SAID),
    notes("input[0].status", "completed", "odd", **SAID),
    refuses("input[1].call_id", 5, **CALLED),
    acts("input[1].name", "order", "engine.prompt", holds("order"), **CALLED),
    acts("input[1].arguments", '{"city": "x"}', "engine.prompt", holds("city"), **CALLED),
    *(refuses(f"input[1].{name}", True, **CALLED) for name in ("async", "async_", "caller", "namespace")),
    refuses(f"{RESULT}type", "input_image", **CALLED),
    acts(f"{RESULT}text", "sunny", "engine.prompt", holds("sunny"), **CALLED),
    notes(f"{RESULT}logprobs", [], 5, **CALLED),
    refuses(f"{RESULT}annotations", [1], **CALLED),
    refuses(f"{RESULT}prompt_cache_breakpoint", True, **CALLED),
    notes("input[0].summary", [], 5, **THOUGHT),
    refuses("input[0].encrypted_content", "x", **THOUGHT),
)
RESPONSE: Final = Table(
    responses.ResponseBody,
    "/v1/responses",
    {"input": "hi", "temperature": 0, "seed": 1, "max_output_tokens": 40},
    (
        *READ,
        *ITEMS,
        acts("store", False, "answer.store"),
        acts("stream", True, "headers.content-type", holds("text/event-stream")),
        engine("max_output_tokens", 3, "max_tokens"),
        engine("temperature", 0.5, "temperature"),
        engine("top_p", 0.5, "top_p"),
        acts("include", LOGPROBS, "engine.logprobs", 0),
        acts("top_logprobs", 2, "engine.logprobs", include=LOGPROBS),
        acts("metadata", {"order": "7"}, "answer.metadata"),
        acts("user", "minji", "log.user"),
        acts("safety_identifier", "minji", "log.user"),
        acts("prompt_cache_key", "k", "log.prompt_cache_key"),
        acts("cache_salt", "pepper", "engine.salt", holds("pepper")),
        engine("seed", 7, "seed"),
        engine("priority", 4, "priority"),
        acts("deadline_ms", 60_000, "engine.has_deadline", True),
        acts("request_id", "mine-1", "id"),
    ),
    beside={"context.": LONG, "tool_choice": FORCED, "stream_options": {"stream": True}, "tools[].": ASKED,
            "input[].": SAID},
)  # fmt: skip
COUNTED: Final = Table(
    responses.InputTokensBody,
    "/v1/responses/input_tokens",
    {"input": "hi"},
    but(
        tuple(replace(case, at="", shows=ANYTHING) if case.at[:7] == "engine." else case for case in (*READ, *ITEMS)),
        acts("model", "demo:7", "status", 404),
        notes("text.format.type", "json_object", "xml", text={"format": {"type": "text"}}),
        notes("text.format.schema", SCHEMA, 5, text={"format": FORM}),
        acts("tool_choice.name", "buy", "status", 400, **FORCED),
        notes("parallel_tool_calls", False, 5, **ASKED),
        notes("truncation", "auto", "some"),
        notes("context.max_input_tokens", 99, 0),
        notes("context.reserve_output_tokens", 77, -1),
        notes("context.inspect", True, 5),
    ),
    beside={"context.": LONG, "tool_choice": FORCED, "tools[].": ASKED, "input[].": SAID},
)
ADDED: Final = tuple(
    replace(case, field=case.field.replace("input[", "items[", 1), at="", shows=ANYTHING, beside={"items": given})
    for case in ITEMS
    if (given := case.beside["input"])
)
"""Items of a conversation: they show in it, and no engine is asked."""
NEW: Final = Table(
    conversations.ConversationBody,
    "/v1/conversations",
    {},
    (
        *(replace(case, wrong=5) if case.at == "" and not case.is_refused and case.wrong is ANYTHING else case
          for case in ADDED),
        acts("metadata", {"order": "7"}, "answer.metadata"),
    ),
    beside={"items[].": {"items": SAID["input"]}},
)  # fmt: skip
"""The new conversation shows no items; those of the next table do."""
MORE: Final = Table(
    conversations.ConversationItemsBody,
    "/v1/conversations/<conversation>/items",
    {"items": SAID["input"]},
    ADDED,
)
CHANGED: Final = Table(
    MetadataBody,
    "/v1/conversations/<conversation>",
    {"metadata": {}},
    (acts("metadata", {"order": "7"}, "answer.metadata"),),
)
TABLES: Final = (RESPONSE, COUNTED, NEW, MORE, CHANGED)
