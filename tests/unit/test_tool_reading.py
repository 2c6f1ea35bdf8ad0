"""Calls in the text of an answer: the same however the text arrives, and nothing lost that is no call."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import partial

import pytest

from service.errors import UnsupportedField
from service.text.messages import Tool
from service.text.tools import CallBegun, CallReader, CallText, Content, ToolFormat, ToolUse
from service.text.tools.bodies import value_of
from service.text.tools.formats import HARMONY, HERMES, JSON, KIMI, LLAMA, MISTRAL, PYTHONIC, known_format
from service.text.tools.harmony import ChannelReader
from tests.grammars import encode, vocabulary

ARGUMENTS = '{"city": "서울}\\"", "days": 3}'
HERMES_CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
HERMES_ORDER = '<tool_call>\n{"name": "order", "arguments": {}}\n</tool_call>'
NONSENSE = "<tool_call>nonsense</tool_call>"
TURNED = '<tool_call>\n{"arguments": {"a": 1}, "name": "order"}\n</tool_call>'
LLAMA_CALL = f'{{"name": "weather", "parameters": {ARGUMENTS}}}'
WEATHER, ORDER = ("weather", ARGUMENTS), ("order", "{}")
NO_CALLS = [
    (HERMES, r'<tool_call>{"arguments": "{\"city\": \"\ud83d\"}", "name": "order"}</tool_call>'),
    (HERMES, r'<tool_call>{"function": {"name": "order", "arguments": {"city": "\ud83d"}}}</tool_call>'),
    (PYTHONIC, r'[order(city="\ud83d")]'),
    (PYTHONIC, "[order(x={[1]: 2})]"),
    (PYTHONIC, "[order(x={{}})]"),
    (PYTHONIC, f"[order(x=1{'0' * 400}+1j)]"),
    (PYTHONIC, f"[order(x={'-' * 20_000}1)]"),
    (PYTHONIC, f"[order(x={'(' * 150}1{')' * 150}+'a')]"),
    (PYTHONIC, '[order(**{"x": 1})]'),
    (PYTHONIC, "[order(x=f'{y}')]"),
    (PYTHONIC, "[order(x=b'a')]"),
]
CASES: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    (HERMES, HERMES_CALL, "", [WEATHER]),
    (HERMES, f"It rains. \n{HERMES_CALL}\n{HERMES_ORDER}\n", "It rains.", [WEATHER, ORDER]),
    (HERMES, f"a < b <tool> {NONSENSE} more", f"a < b <tool> {NONSENSE} more", []),
    (HERMES, HERMES_ORDER.replace("order", "unknown"), HERMES_ORDER.replace("order", "unknown"), []),
    (HERMES, f"{HERMES_ORDER}\n\n{NONSENSE}\n{NONSENSE}", f"\n\n{NONSENSE}\n{NONSENSE}", [ORDER]),
    (HERMES, f"{TURNED} bye ", " bye", [("order", '{"a": 1}')]),
    (HERMES, '<tool_call>\n{"a": 1}\n</tool_call>', '<tool_call>\n{"a": 1}\n</tool_call>', []),
    (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "서', "", [("weather", '{"city": "서')]),
    (HERMES, '<tool_call>\n{"name": "weat', '<tool_call>\n{"name": "weat', []),
    (HERMES, '<tool_call>{"type": "function", "name": "order", "arguments": {}}</tool_call>', "", [ORDER]),
    (HERMES, "plain text only <tool", "plain text only <tool", []),
    (HERMES, "ends in blanks  \n", "ends in blanks  \n", []),
    (HERMES, "", "", []),
    (LLAMA, LLAMA_CALL, "", [WEATHER]),
    (LLAMA, f'<|python_tag|>{LLAMA_CALL}; {{"name": "order", "parameters": {{}}}}', "", [WEATHER, ORDER]),
    (LLAMA, '{"a": 1} is JSON', '{"a": 1} is JSON', []),
    (LLAMA, f"Hello {LLAMA_CALL}", f"Hello {LLAMA_CALL}", []),
    (LLAMA, f"{LLAMA_CALL} and more", "and more", [WEATHER]),
    (LLAMA, "<|python", "<|python", []),
    (
        MISTRAL,
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {ARGUMENTS}}}, {{"name": "order", "arguments": {{}}}}]',
        "",
        [WEATHER, ORDER],
    ),
    (MISTRAL, "hi [TOOL", "hi [TOOL", []),
    (MISTRAL, "[TOOL_CALLS] nothing", "[TOOL_CALLS] nothing", []),
    (JSON, '{"name": "order", "arguments": {}}', "", [ORDER]),
    *((form, text, text, []) for form, text in NO_CALLS),
]


def read(form: ToolFormat, text: str, size: Callable[[], int]) -> tuple[str, list[tuple[str, str]]]:
    reader = CallReader(form, {"weather": {}, "order": {}})
    pieces = []
    while text:
        count = size()
        pieces += reader.push(text[:count])
        text = text[count:]
    pieces += reader.finish()
    calls: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, CallBegun):
            assert piece.index == len(calls)
            calls.append([piece.name, ""])
        elif isinstance(piece, CallText):
            assert piece.index == len(calls) - 1 and piece.text
            calls[-1][1] += piece.text
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    return content, [(name, arguments) for name, arguments in calls]


def test_calls_apart_from_content() -> None:
    for form, text, content, calls in CASES:
        assert read(form, text, partial(len, text)) == (content, calls)
        assert read(form, text, lambda: 1) == (content, calls)
        for seed in range(50):
            rng = random.Random(seed)
            assert read(form, text, partial(rng.randint, 1, 9)) == (content, calls)


def test_a_value_is_the_whole_text() -> None:
    for text in ('"Hello", "b": "c"', '1, "": 2', '1, "x": {"y": 2}', "1}", r'{"a": "\ud83d"}'):
        assert value_of(text) == text
    for text, value in (('{"a": 1}', {"a": 1}), ("None", None), (" 1 ", 1), ('"1, 2"', "1, 2")):
        assert value_of(text) == value


def test_a_name_may_have_colons() -> None:
    begins = CallBegun(0, "ns:1:get")
    harmony = ChannelReader(HARMONY, {"ns:1:get": {}})
    assert begins in harmony.push("<|channel|>commentary to=functions.ns:1:get <|constrain|>json<|message|>{}")
    for number in ("", ":0", ":12"):
        kimi = CallReader(KIMI, {"ns:1:get": {}})
        assert begins in kimi.push(f"{KIMI.opening}functions.ns:1:get{number}<|tool_call_argument_begin|>{{}}")


def test_arguments_go_out_as_they_come() -> None:
    reader = CallReader(HERMES, {"weather": {}})
    assert reader.push('<tool_call>\n{"name": "weather", "arguments": ') == []
    assert reader.push('{"ci') == [CallBegun(0, "weather"), CallText(0, '{"ci')]
    assert reader.push('ty": "x"}') == [CallText(0, 'ty": "x"}')]


FORMATS = [
    ("<tool_call>\n{{ x }}</tool_call>", HERMES),
    ("[AVAILABLE_TOOLS] [TOOL_CALLS]", MISTRAL),
    ('{"name": function name, "parameters": dictionary of argument name and its value}', LLAMA),
    ("<|python_tag|>", LLAMA),
    ('Call a function as {"name": name, "arguments": object}', JSON),
]


def test_the_format_is_what_the_template_writes() -> None:
    for template, form in FORMATS:
        assert known_format(template) is form


def test_formats_that_cannot_be_read_are_not_known() -> None:
    for mark in ["<｜DSML｜function_calls>", "<|observation|>", ">>>all", "Call a function as you like"]:
        assert known_format(f"a {mark}") is None


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = (Tool("weather", "of a city", json.dumps(SCHEMA)), Tool("order"))


def fits(text: str, grammar: str) -> bool:
    matcher, ids = vocabulary().compile(grammar), encode(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


@pytest.mark.parametrize("form", [HERMES, LLAMA, MISTRAL, JSON], ids=lambda form: form.name)
def test_a_forced_call_is_one_that_the_reader_reads(form: ToolFormat) -> None:
    one = {HERMES: HERMES_CALL, LLAMA: LLAMA_CALL}.get(form, LLAMA_CALL.replace("parameters", "arguments"))
    other = HERMES_ORDER if form is HERMES else one.replace("weather", "order").replace(ARGUMENTS, "{}")
    two = one + form.separator + other
    if form is MISTRAL:
        one, two = (f"[TOOL_CALLS][{each}]" for each in (one, two))
    required = ToolUse(TOOLS, "required").grammar(form, {}).text
    alone = ToolUse(TOOLS, "required", is_parallel=False).grammar(form, {}).text
    named = ToolUse(TOOLS, "weather", is_named=True).grammar(form, {}).text
    assert [fits(one, each) for each in (required, alone, named)] == [True, True, True]
    assert [fits(two, each) for each in (required, alone, named)] == [True, False, False]
    assert not fits(one.replace("3", "0"), required)
    assert not fits(one.replace("weather", "order"), required)
    assert not fits("hello", required)
    assert read(form, two, lambda: 3) == ("", [WEATHER, ORDER])


STRICT = (Tool("weather", "of a city", json.dumps(SCHEMA), strict=True), Tool("order", None, json.dumps(SCHEMA)))


@pytest.mark.parametrize("form", [HERMES, LLAMA, MISTRAL, JSON], ids=lambda form: form.name)
@pytest.mark.parametrize("is_special", [False, True])
def test_calls_that_the_model_begins_keep_a_strict_schema(form: ToolFormat, is_special: bool) -> None:
    one = {HERMES: HERMES_CALL, LLAMA: LLAMA_CALL}.get(form, LLAMA_CALL.replace("parameters", "arguments"))
    loose = (HERMES_ORDER if form is HERMES else one.replace("weather", "order").replace(ARGUMENTS, "{}")).replace(
        "{}", '{"anything": 0}'
    )
    other = one + form.separator + loose
    if form is MISTRAL:
        one, loose, other = (f"[TOOL_CALLS][{each}]" for each in (one, loose, other))
    marks = {form.opening: 0, form.closing: 1} if is_special and form.closing else {}
    grammar = ToolUse(STRICT).free_grammar(form, marks)
    assert fits("", grammar.text) and fits("Hello {there.", grammar.text)
    if marks:
        written = {text: (0, 1)[at] for at, text in enumerate((form.opening, form.closing))}
        ids = [id for part in re.split("(</?tool_call>)", f"Soon. {one}") for id in _ids(part, written)]
        matcher = vocabulary().compile(grammar.text)
        assert matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        return
    assert fits(one, grammar.text) and fits(loose, grammar.text) and fits(other, grammar.text)
    assert fits(other, ToolUse(STRICT, is_parallel=False).free_grammar(form, {}).text) is False
    assert not fits(one.replace("3", "0"), grammar.text)
    assert not fits(one.replace("weather", "nobody"), grammar.text)
    if form.opening:
        assert fits(f"Soon. {one}", grammar.text) and not fits(f"Soon. {one[:-2]}", grammar.text)
    assert read(form, other, lambda: 3) == ("", [WEATHER, ("order", '{"anything": 0}')])


def _ids(part: str, marks: dict[str, int]) -> list[int]:
    return [marks[part]] if part in marks else encode(part.encode())


def test_parameters_that_no_grammar_keeps_are_refused_where_calls_are_forced() -> None:
    tools = (Tool("f", None, json.dumps({"type": "object", "properties": {"a": {"not": {}}}})),)
    with pytest.raises(UnsupportedField) as refused:
        ToolUse(tools, "required").grammar(HERMES, {})
    assert refused.value.param == "tools[0].function.parameters.properties.a.not"
