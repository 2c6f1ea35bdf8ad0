"""This table says what the fields of OpenAI's chat and text completions do."""

from __future__ import annotations

from typing import Any, Final

from service.api.openai import schemas as openai
from service.api.shared.grammar_schemas import StructuredOutputs
from tests.api.fields.cases import Case, Table, acts, notes, refuses, under
from tests.api.fields.native import (
    BEGUN,
    CONTEXT,
    DOCUMENTS,
    FORCED,
    HI,
    LONG,
    MESSAGES,
    SCHEMA,
    TOOLS,
    engine,
    holds,
)
from tests.fake_service import REPLY

CHOSEN: Final = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}
VALUED: Final = {"response_format": {"type": "json", "value": {}}}
STREAMED: Final = {"stream": True, "stream_options": {}}
PLAIN: Final = holds('"type": "object"')


def said(text: str) -> Any:
    """A rule: the first choice says so."""
    return lambda choice: text in (choice.get("text"), (choice.get("message") or {}).get("content"))


SAMPLING: Final[tuple[Case, ...]] = (
    acts("model", "demo:1", "answer.model"),
    acts("stream", True, "headers.content-type", holds("text/event-stream")),
    acts("stream_options.include_usage", True, "answer.-1.usage", bool, **STREAMED),
    acts("stream_options.continuous_usage_stats", True, "answer.0.usage", bool, **STREAMED),
    engine("temperature", 0.5, "temperature"),
    engine("top_p", 0.5, "top_p"),
    acts("n", 2, "engines"),
    engine("seed", 7, "seed"),
    acts("stop", ["하나"], "answer.choices.0", said("안녕하세요, 도시락 ")),
    engine("frequency_penalty", 0.5, "frequency_penalty"),
    engine("presence_penalty", 0.5, "presence_penalty"),
    acts("logit_bias", {"5": 1.5}, "engine.logit_bias", ((5, 1.5),)),
    acts("user", "minji", "log.user"),
    acts("safety_identifier", "minji", "log.user"),
    acts("prompt_cache_key", "k", "log.prompt_cache_key"),
    acts("cache_salt", "pepper", "engine.salt", holds("pepper")),
    acts("metadata", {"order": "7"}, "log.metadata"),
    acts("stop_token_ids", [5], "engine.stop_token_ids", lambda found: 5 in found),
    acts("ignore_eos", True, "engine.stop_token_ids", ()),
    engine("min_tokens", 2, "min_tokens"),
    engine("top_k", 7, "top_k"),
    engine("min_p", 0.2, "min_p"),
    engine("typical_p", 0.6, "typical_p"),
    engine("top_n_sigma", 1.5, "top_n_sigma"),
    engine("repetition_penalty", 1.3, "repetition_penalty"),
    acts("include_stop_str_in_output", True, "answer.choices.0", said("안녕하세요, 도시락 하나"), stop=["하나"]),
    acts("skip_special_tokens", False, "answer.choices.0", said(f"{REPLY}<|im_end|>"), include_stop_str_in_output=True),
    acts("response_format.type", "json_object", "engine.grammar", bool, response_format={"type": "text"}),
    notes("response_format.json_schema.name", "b", 5, **CHOSEN),
    notes("response_format.json_schema.description", "says so", 5, **CHOSEN),
    acts("response_format.json_schema.schema", {"type": "boolean"}, "engine.grammar", holds("boolean"), **CHOSEN),
    notes("response_format.json_schema.strict", True, "yes", **CHOSEN),
    acts("response_format.value", SCHEMA, "engine.grammar", holds("integer"), **VALUED),
    acts("structured_outputs.json", SCHEMA, "engine.grammar", holds("integer")),
    acts("structured_outputs.regex", "a+b", "engine.grammar", holds("a+b")),
    acts("structured_outputs.choice", ["left", "right"], "engine.grammar", holds("left")),
    acts("structured_outputs.grammar", 'start: "x"', "engine.grammar", holds("start")),
    acts("structured_outputs.json_object", True, "engine.grammar", bool),
    acts("guided_json", SCHEMA, "engine.grammar", holds("integer")),
    acts("guided_regex", "a+b", "engine.grammar", holds("a+b")),
    acts("guided_choice", ["left", "right"], "engine.grammar", holds("left")),
    acts("guided_grammar", 'start: "x"', "engine.grammar", holds("start")),
    engine("priority", 4, "priority"),
    acts("deadline_ms", 60_000, "engine.has_deadline", True),
    acts("request_id", "mine-1", "id"),
)  # fmt: skip
RAW: Final = tuple(
    acts("max_input_tokens", 1, "status", 400, prompt="a salmon")
    if case.field == "max_input_tokens"
    else case
    if case.field in ("reserve_output_tokens", "inspect")
    else refuses(case.field, case.value)
    for case in CONTEXT
)
"""A prompt that is no chat has no turns."""
UNUSED: Final = {
    f"structured_outputs.{name}": {"structured_outputs": {"json_object": True}} for name in StructuredOutputs.later
}
CHAT: Final = Table(
    openai.ChatBody,
    "/v1/chat/completions",
    {"messages": HI, "temperature": 0, "seed": 1, "max_tokens": 40},
    (
        *SAMPLING,
        *TOOLS,
        *under("context.", CONTEXT),
        *MESSAGES,
        *under("documents", DOCUMENTS),
        acts("store", True, "read", 200),
        acts("session_id", "<session>", "engine.prompt", holds("87,900")),
        acts("max_completion_tokens", 3, "engine.max_tokens", max_tokens=None),
        engine("max_tokens", 3, "max_tokens"),
        acts("logprobs", True, "answer.choices.0.logprobs", bool),
        acts("top_logprobs", 2, "engine.logprobs", logprobs=True),
        acts("reasoning_effort", "none", "engine.prompt", holds("<think>\n\n</think>")),
        acts("chat_template_kwargs", {"shout": True}, "engine.prompt", holds("SHOUT")),
        acts("continue_final_message", True, messages=BEGUN),
        refuses("add_generation_prompt", False),
    ),
    beside={"context.": LONG, "tool_choice": FORCED, "stream_options": STREAMED, **UNUSED},
)
METADATA: Final = Table(
    openai.MetadataBody,
    "/v1/chat/completions/<completion>",
    {"metadata": {"order": "7"}},
    (acts("metadata", {"order": "8"}, "answer.metadata"),),
)
COMPLETION: Final = Table(
    openai.CompletionBody,
    "/v1/completions",
    {"prompt": "hello", "temperature": 0, "seed": 1, "max_tokens": 40},
    (
        *SAMPLING,
        *under("context.", RAW),
        acts("prompt", "salmon", "engine.prompt", holds("salmon")),
        engine("max_tokens", 3, "max_tokens"),
        notes("add_special_tokens", False, 5),
        acts("best_of", 3, "engines"),
        acts("echo", True, "answer.choices.0.text", lambda text: str(text).startswith("hello")),
        acts("logprobs", 2, "engine.logprobs"),
    ),
    beside={"stream_options": STREAMED, **UNUSED},
)
TABLES: Final = (CHAT, METADATA, COMPLETION)
