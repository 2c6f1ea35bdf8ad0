"""This table says what the fields of `/generate` and its relatives do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from service.api.tgi import schemas as native
from tests.api.fields.cases import ANYTHING, UNREAD, Case, Table, acts, but, notes, refuses, under
from tests.api.fields.stage import TALK

SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOWN: Final = {"type": "object", "properties": {"town": {}}}
PATTERN: Final = {"parameters": {"grammar": {"type": "regex", "value": 'start: "x"'}}}
ANY_JSON: Final = {"parameters": {"grammar": {"type": "json", "value": {}}}}
TOOL: Final = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
ORDER: Final = {"type": "function", "function": {"name": "order"}}
ASKED: Final = {"tools": [TOOL]}
FORCED: Final = {"tools": [TOOL, ORDER], "tool_choice": {"type": "function", "function": {"name": "look"}}}
REQUIRED: Final[dict[str, Any]] = {**FORCED, "tool_choice": "required"}
HI: Final = [{"role": "user", "content": "hi"}]
BEGUN: Final = [*HI, {"role": "assistant", "content": "ok"}]
CALLED: Final = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]


def holds(text: str) -> Any:
    return lambda found: text in str(found)


def engine(field: str, value: Any, name: str, **beside: Any) -> Case:
    return acts(field, value, f"engine.{name}", **beside)


PARAMETERS: Final = (
    engine("max_new_tokens", 3, "max_tokens"),
    engine("max_tokens", 3, "max_tokens", parameters={"max_new_tokens": None}),
    engine("min_new_tokens", 2, "min_tokens"),
    engine("temperature", 0.5, "temperature"),
    engine("top_p", 0.5, "top_p"),
    engine("top_k", 7, "top_k"),
    engine("min_p", 0.2, "min_p"),
    engine("typical_p", 0.6, "typical_p"),
    engine("top_n_sigma", 1.5, "top_n_sigma"),
    engine("repetition_penalty", 1.3, "repetition_penalty"),
    engine("frequency_penalty", 0.5, "frequency_penalty"),
    engine("presence_penalty", 0.5, "presence_penalty"),
    acts("logit_bias", {"5": 1.5}, "engine.logit_bias", ((5, 1.5),)),
    acts("stop", ["하나"], "answer.generated_text", "안녕하세요, 도시락 "),
    acts("include_stop", True, "answer.generated_text", "안녕하세요, 도시락 하나", parameters={"stop": ["하나"]}),
    engine("seed", 7, "seed"),
    acts("do_sample", True, "engine.temperature", 1.0),
    acts("n", 2, "engines"),
    acts("best_of", 3, "engines"),
    acts("details", True, "answer.details", bool),
    acts("decoder_input_details", True, "answer.details.prefill", bool),
    acts("top_n_tokens", 2, "answer.details.top_tokens", bool),
    acts("return_full_text", True, "answer.generated_text", lambda text: str(text).startswith("hello")),
    acts("truncate", 2, "answer.usage.prompt_tokens", inputs="a salmon, please"),
    acts("grammar.type", "lark", "engine.grammar", lambda text: "PATTERN" not in text, **PATTERN),
    acts("grammar.value", SCHEMA, "engine.grammar", holds("integer"), **ANY_JSON),
    acts("ignore_eos", True, "engine.stop_token_ids", ()),
    acts("adapter_id", "demo:1", "answer.model"),
)  # fmt: skip
CONTEXT: Final = (
    acts("policy", "middle"),
    acts("max_input_tokens", 99),
    acts("reserve_output_tokens", 77),
    acts("documents_budget", 1, documents=[{"text": "twice " * 9}]),
    acts("recall_budget", 100, context={"policy": "retrieve"}),
    acts("summary_budget", 0, context={"policy": "summarise", "low_water": 0.9}),
    acts("knowledge", True, "engine.prompt", holds("cellar"), context={"max_input_tokens": 400}),
    acts("low_water", 0.95),
    acts("pin", ["m_0"]),
    acts("inspect", True),
)
LONG: Final = {"messages": TALK, "context": {"policy": "window", "max_input_tokens": 120}}
"""A chat that does not fit."""
DOCUMENTS: Final = (
    acts("[0].text", "a salmon", "engine.prompt", holds("a salmon")),
    acts("[0].title", "Fish", "engine.prompt", holds("Fish"), documents=[{"text": "a"}]),
    acts("[0].id", "doc-7", documents=[{"text": "a"}]),
)
CALL: Final = "messages[1].tool_calls[0]."
MESSAGES: Final = (
    acts("messages[0].role", "system", "engine.prompt", holds("<|im_start|>system")),
    acts("messages[0].content", "salmon", "engine.prompt", holds("salmon")),
    acts("messages[0].name", "minji", "engine.prompt", holds("userminji")),
    notes("messages[0].reasoning_content", "hm", 5, messages=[{"role": "assistant", "content": "ok"}, *HI]),
    notes("messages[0].reasoning", "hm", 5, messages=[{"role": "assistant", "content": "ok"}, *HI]),
    acts(f"{CALL}id", "c9", "engine.prompt", holds("c9"), messages=[*CALLED[:2], *HI]),
    refuses(f"{CALL}type", "custom", messages=CALLED),
    refuses(f"{CALL}function.description", "of a city", messages=CALLED),
    notes(f"{CALL}index", 0, -1, messages=CALLED),
    notes(f"{CALL}function.parsed_arguments", {}, UNREAD, messages=CALLED),
    notes("messages[0].parsed", {}, UNREAD, messages=[{"role": "assistant", "content": "ok"}, *HI]),
    acts(f"{CALL}function.name", "order", "engine.prompt", holds("order"), messages=CALLED),
    acts(f"{CALL}function.arguments", '{"city": "x"}', "engine.prompt", holds("city"), messages=CALLED),
    refuses("messages[2].tool_call_id", "c7", messages=CALLED),
)
COMMON: Final = (
    acts("stream", True, "headers.content-type", holds("text/event-stream")),
    engine("priority", 4, "priority"),
    acts("deadline_ms", 60_000, "engine.has_deadline", True),
)
AT_ONCE: Final = {"parameters": {"max_new_tokens": 40}}
GENERATE: Final = Table(
    native.GenerateBody,
    "/generate",
    {"inputs": "hello", **AT_ONCE},
    (
        *under("parameters.", PARAMETERS),
        *under("context.", CONTEXT),
        *MESSAGES,
        *under("documents", DOCUMENTS),
        *COMMON,
        acts("session_id", "<session>", "engine.prompt", holds("87,900"), inputs=None, messages=HI),
        acts("continue_final_message", True, inputs=None, messages=BEGUN),
        acts("inputs", "salmon", "engine.prompt", holds("salmon")),
        acts("choices", ["tea", "rice"], "answer.choices", bool, parameters=None),
        acts("input_ids", [5, 6], "engine.ids", (5, 6), inputs=None),
        acts("text_input", "salmon", "answer.text_output", bool, inputs=None),
        acts("model", "demo:1", "answer.model"),
        acts("request_id", "mine-1", "id"),
        acts("user", "minji", "log.user"),
    ),
    beside={"context.": {**LONG, "inputs": None}, "messages": {"inputs": None, "messages": HI},
            "documents": {"inputs": None, "messages": HI}},
)  # fmt: skip
NAMED: Final = but(MESSAGES, acts("messages[2].tool_call_id", "c7", "engine.prompt", holds("c7"), messages=CALLED))
"""What only counts tokens does not look for the call of a result."""
TOOLS: Final = (
    refuses("tools[0].type", "custom", **ASKED),
    acts("tools[0].function.name", "seek", "engine.prompt", holds("seek"), **ASKED),
    acts("tools[0].function.description", "of a city", "engine.prompt", holds("of a city"), **ASKED),
    acts("tools[0].function.parameters", TOWN, "engine.prompt", holds("town"), **ASKED),
    notes("tools[0].function.strict", True, "yes", **ASKED),
    refuses("tool_choice.type", "custom", **FORCED),
    acts("tool_choice.function.name", "order", "engine.grammar", holds("order"), **FORCED),
    acts("parallel_tool_calls", False, **REQUIRED),
)  # fmt: skip
REGENERATE: Final = Table(
    native.RegenerateBody,
    "/v1/sessions/<session>/regenerate",
    AT_ONCE,
    (
        *but(
            under("parameters.", PARAMETERS),
            refuses("parameters.n", 2),
            refuses("parameters.best_of", 2),
            refuses("parameters.return_full_text", True),
            acts("parameters.truncate", 2, "status", 422),
            refuses("parameters.adapter_id", "demo:1"),
        ),
        *but(
            under("context.", CONTEXT),
            acts("context.pin", ["<message>"]),
            acts("context.documents_budget", 0, context={"knowledge": True, "max_input_tokens": 400}),
        ),
        *COMMON,
        *TOOLS,
    ),
    beside={"context.": {"context": LONG["context"]}, "tool_choice": FORCED, "tools[].": ASKED},
)
TOKENIZE: Final = Table(
    native.TokenizeBody,
    "/tokenize",
    {"prompt": "hello"},
    (
        acts("inputs", "a salmon", "answer.0.text", "a", prompt=None),
        acts("prompt", "a salmon", "answer.count", 8),
        *(replace(case, at="", shows=ANYTHING) for case in NAMED),
        acts("model", "demo:7", "status", 404),
        acts("add_special_tokens", False, "status", 422, prompt=None, messages=HI),
        acts("add_generation_prompt", False, "answer.count", lambda count: count < 15, prompt=None, messages=HI),
        refuses("add_generation_prompt", False),
        acts("continue_final_message", True, "answer.count", lambda count: count < 24, prompt=None, messages=BEGUN),
        *(TOOLS[0], TOOLS[4]),
        *(replace(case, at="", shows=ANYTHING) for case in TOOLS[1:4]),
    ),
    beside={each: {"prompt": None, "messages": HI} for each in ("messages", "tools")},
)
DETOKENIZE: Final = Table(
    native.DetokenizeBody,
    "/detokenize",
    {"tokens": [0, 40]},
    (
        acts("tokens", [41], "answer.prompt", lambda text: len(text) == 1),
        acts("model", "demo:7", "status", 404),
        acts("skip_special_tokens", True, "answer.prompt", lambda text: "<s>" not in text),
    ),
)
CHAT_TOKENIZE: Final = Table(
    native.ChatTokenizeBody,
    "/chat_tokenize",
    {"messages": HI},
    (
        *(replace(case, at=case.at and "answer.templated_text") for case in (*NAMED, *under("documents", DOCUMENTS))),
        acts("model", "demo:7", "status", 404),
    ),
)
TABLES: Final = (GENERATE, REGENERATE, TOKENIZE, DETOKENIZE, CHAT_TOKENIZE)
