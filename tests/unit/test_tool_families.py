"""Calls as families of models write them: read however the text is cut, and taken back by the family's template."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.context.prompt import Chat, build_prompt
from service.errors import InvalidRequest, UnsupportedField
from service.text.messages import ChatOptions, Message, Tool, ToolCall
from service.text.tools import CallBegun, CallReader, CallText, Content, ToolFormat, ToolUse
from service.text.tools.choosing import refuse_format
from service.text.tools.formats import (
    FINAL,
    FORMATS,
    FUNCTION_GEMMA,
    HERMES,
    LLAMA,
    PYTHONIC,
    QWEN_CODER,
    known_format,
)
from service.text.tools.harmony import ChannelReader
from service.text.tools.ids import new_id
from service.text.tools.kinds import Kinds
from tests.families import FAMILIES, REFUSED, Family
from tests.grammars import fits
from tests.tokenizers import load

TOOLS = tuple(
    Tool(name, None, json.dumps({"type": "object", "properties": {key: {"type": kind} for key, kind in given.items()}}))
    for name, given in {
        "weather": {"city": "string", "days": "integer"},
        "order": {"menu": "string", "count": "integer"},
    }.items()
)
CALLED = [("weather", {"city": '서울}"', "days": 3}), ("order", {"menu": "비빔밥", "count": 2})]
BY_NAME = {family.name: family for family in FAMILIES}
families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def form_of(family: Family) -> ToolFormat:
    form = known_format(family.template)
    assert form is not None
    return form


def reader_of(family: Family) -> CallReader:
    form = form_of(family)
    return (ChannelReader if form.has_channels else CallReader)(form, ToolUse(TOOLS).schemas)


def read(family: Family, parts: list[str]) -> tuple[str, list[tuple[str, object]]]:
    reader = reader_of(family)
    pieces = [piece for part in parts for piece in reader.push(part)] + reader.finish()
    calls = [(piece.name, "") for piece in pieces if isinstance(piece, CallBegun)]
    for piece in pieces:
        if isinstance(piece, CallText):
            calls[piece.index] = (calls[piece.index][0], calls[piece.index][1] + piece.text)
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    return content, [(name, json.loads(text)) for name, text in calls]


@families
def test_two_calls_are_read(family: Family) -> None:
    assert form_of(family).name == family.form
    assert read(family, [family.says]) == (family.content, CALLED)
    assert read(family, list(family.says)) == (family.content, CALLED)


@given(st.sampled_from(FAMILIES), st.data())
def test_calls_are_read_wherever_the_text_is_cut(family: Family, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(family.says)), max_size=12)))
    parts = [family.says[a:b] for a, b in zip([0, *cuts], [*cuts, len(family.says)], strict=True)]
    assert read(family, parts) == (family.content, CALLED)


@given(st.sampled_from(FAMILIES), st.data())
def test_a_cut_answer_is_read_the_same_in_parts(family: Family, data: st.DataObject) -> None:
    """Whatever a limit cuts off and a model mixes up: parts read as the whole does, and nothing is raised."""
    pieces = data.draw(st.lists(st.integers(0, len(family.says)), min_size=2, max_size=6))
    text = "".join(family.says[min(a, b) : max(a, b)] for a, b in pairwise(pieces))

    def pushed(parts: list[str]) -> list[tuple[str, str]]:
        reader = reader_of(family)
        joined: list[tuple[str, str]] = []
        for piece in [each for part in parts for each in reader.push(part)] + reader.finish():
            kind = type(piece).__name__
            said = piece.name if isinstance(piece, CallBegun) else piece.text
            if joined and joined[-1][0] == kind != "CallBegun":
                said = joined.pop()[1] + said
            joined.append((kind, said))
        return joined

    assert pushed([text]) == pushed(list(text))


@families
def test_two_turns_of_two_calls_are_taken_back(family: Family, tmp_path: Path) -> None:
    """With the server's ids and with a client's own."""
    plain = load(tmp_path, chat_template=family.template)
    tokenizer = plain.with_options(ChatOptions(TOOLS))
    form = tokenizer.tool_format
    assert tokenizer.probes.takes_two_calls is not family.alone
    chat = [Message("user", "hello")]
    for turn in range(2):
        ids = [new_id(form.ids), f"toolu_of_the_client_{turn}"]
        calls = [ToolCall(id, name, json.dumps(given)) for id, (name, given) in zip(ids, CALLED, strict=True)]
        for some in [calls[:1], calls[1:]] if family.alone else [calls]:
            chat.append(Message("assistant", family.content, tool_calls=tuple(some)))
            chat += [Message("tool", f"result {call.id}", tool_call_id=call.id) for call in some]
        prompt = build_prompt(tokenizer, 1 << 16, Chat(tuple(chat)), max_new_tokens=8)
        text = tokenizer.decode(list(prompt.token_ids), skip_special_tokens=False)
        body = text.partition("hello")[2]
        assert body.count("weather") == body.count("order") == turn + 1, body
        assert prompt.receipt.parts.total == len(prompt.token_ids)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_call_that_a_grammar_forces_is_read(form: ToolFormat) -> None:
    strict = tuple(replace(tool, strict=True) for tool in TOOLS)
    calls = tuple(ToolCall("", name, json.dumps(given, ensure_ascii=False)) for name, given in CALLED)
    one, two = (form.as_text(Message("assistant", "", tool_calls=calls[:count])).content for count in (1, 2))
    reader = (ChannelReader if form.has_channels else CallReader)(form, ToolUse(TOOLS).schemas)
    pieces = reader.push(two) + reader.finish()
    assert [piece.name for piece in pieces if isinstance(piece, CallBegun)] == ["weather", "order"], two
    assert not "".join(piece.text for piece in pieces if isinstance(piece, Content)).strip()
    forced = ToolUse(TOOLS, "required").grammar(form, {})
    free = ToolUse(strict).free_grammar(form, {})
    assert [fits(each, one) for each in (forced, free)] == [True, True]
    assert [fits(each, two) for each in (forced, free)] == [True, True]
    assert not fits(forced, one.replace("weather", "nobody")) and not fits(free, one.replace("weather", "nobody"))
    assert not fits(free, one.replace("3", "0.5")), "a strict tool's schema"
    assert fits(free, f"{FINAL if form.has_channels else ''}Hello.") and not fits(forced, "Hello.")


def test_forms_that_are_not_read_are_refused_by_name(tmp_path: Path) -> None:
    for name, hint in REFUSED.items():
        with pytest.raises(UnsupportedField, match="cannot act"):
            (known_format(template := Family(name, "", hint, "", "").template) is None) and refuse_format(template)


@pytest.mark.parametrize("name", ["Hermes, Qwen", "Qwen3-Coder, Nemotron 3", "gpt-oss"])
def test_reading_takes_time_in_proportion_to_the_text(name: str) -> None:
    """Half a call, blanks and brackets without an end: 50,000 tokens each."""
    says = BY_NAME[name].says
    head = says[: says.index("서울")]
    start = time.process_time()
    for text in (head + "x" * 50_000, head[:-9] + " " * 50_000, "\n" * 50_000, says[:14] + '{"a":' * 10_000):
        reader = reader_of(BY_NAME[name])
        for character in text:
            reader.push(character)
        reader.finish()
    assert time.process_time() - start < 2.5


def test_arguments_nested_too_deep_are_no_call() -> None:
    nested = f'<tool_call>{{"arguments": {"[" * 100_000 + "]" * 100_000}, "name": "order"}}</tool_call>'
    assert read(BY_NAME["Hermes, Qwen"], [nested]) == (nested, [])
    nested = f"<tool_call>\n<function=order>\n<parameter=count>{'[' * 100_000}</parameter></function>"
    [(name, given)] = read(BY_NAME["Qwen3-Coder, Nemotron 3"], [nested])[1]
    assert (name, given) == ("order", {"count": "[" * 100_000})
    assert read(BY_NAME["Llama 4"], [f"[order(count={'[' * 5000}{']' * 5000})]"])[1] == []


@pytest.mark.parametrize(
    ("form", "properties", "place"),
    [
        (QWEN_CODER, {"a": {"type": "string", "pattern": "^x"}}, "parameters.properties.a.pattern"),
        (QWEN_CODER, {"a": {"type": "string", "format": "date"}}, "parameters.properties.a.format"),
        (QWEN_CODER, {"a": {"enum": ["x", "a</parameter>"]}}, "parameters.properties.a"),
        (QWEN_CODER, {"a": {"type": "array", "items": {"$ref": "#"}}}, "parameters.properties.a"),
        (QWEN_CODER, {"a>b": {}}, "parameters.properties.a>b"),
        (PYTHONIC, {"class": {}}, "parameters.properties.class"),
        (FUNCTION_GEMMA, {"a": {"type": "array", "prefixItems": [{}]}}, "parameters.properties.a.prefixItems"),
        (FUNCTION_GEMMA, {"a": {"allOf": [{}]}}, "parameters.properties.a"),
    ],
)
def test_what_a_form_cannot_keep_is_refused_by_name(
    form: ToolFormat, properties: dict[str, object], place: str
) -> None:
    tools = (Tool("f", None, json.dumps({"type": "object", "properties": properties})),)
    with pytest.raises(UnsupportedField, match=form.name) as refused:
        ToolUse(tools, "required").grammar(form, {})
    assert refused.value.param == f"tools[0].function.{place}"
    ToolUse(tools, "required").grammar(HERMES, {})


CHAIN = {f"A{at}": {"type": "string", "anyOf": [{"$ref": f"#/$defs/A{at + 1}"}] * 3} for at in range(15)}
"""Each leads three times to the next, and the last to nothing."""


def with_argument(**defs: object) -> str:
    return json.dumps({"type": "object", "properties": {"x": {"$ref": f"#/$defs/{next(iter(defs))}"}}, "$defs": defs})


@pytest.mark.timeout(20)
@pytest.mark.parametrize("form", [QWEN_CODER, PYTHONIC, FUNCTION_GEMMA], ids=lambda form: form.name)
@pytest.mark.parametrize(
    "parameters",
    [with_argument(A={"anyOf": [{"$ref": "#/$defs/A"}] * 10}), with_argument(**CHAIN, A15={"type": "string"})],
    ids=["ring", "chain"],
)
def test_a_schema_that_leads_to_itself_many_times_is_read_at_once(form: ToolFormat, parameters: str) -> None:
    use = ToolUse((Tool("f", None, parameters),), "required")
    with suppress(UnsupportedField):
        assert len(use.grammar(form, {}).text) < 4096
    reader = CallReader(QWEN_CODER, use.schemas)
    pieces = reader.push("<tool_call>\n<function=f>\n<parameter=x>\nb\n</parameter>\n</function>\n</tool_call>")
    assert [each.text for each in (*pieces, *reader.finish()) if isinstance(each, CallText)] == ['{"x": "b"}']


@given(
    st.lists(
        st.tuples(st.sampled_from(["string", "integer", ""]), st.lists(st.integers(0, 3), max_size=2)),
        min_size=4,
        max_size=4,
    ),
    st.permutations(range(4)),
)
def test_the_kinds_of_a_schema_depend_on_none_that_was_asked_for_before(
    nodes: list[tuple[str, list[int]]], order: list[int]
) -> None:
    top = [
        ({"type": type} if type else {}) | ({"anyOf": [{"$ref": f"#/{other}"} for other in others]} if others else {})
        for type, others in nodes
    ]
    known = Kinds(top)
    assert [known.of(top[at]) for at in order] == [Kinds(top).of(top[at]) for at in order]


def test_a_constant_that_many_arguments_share_is_not_written_for_each() -> None:
    """The grammar would have a hundred megabytes before it is refused."""
    shared: dict[str, object] = {"A": {"type": ["integer", "string"], "enum": [1, "x" * 100_000]}}
    schema = {"type": "object", "properties": {f"p{at}": {"$ref": "#/$defs/A"} for at in range(900)}, "$defs": shared}
    for form in (QWEN_CODER, PYTHONIC):
        with pytest.raises(InvalidRequest, match=r"has [234]\d{5} bytes as a grammar"):
            ToolUse((Tool("f", None, json.dumps(schema)),), "required").grammar(form, {})


@pytest.mark.parametrize("form", [QWEN_CODER, FUNCTION_GEMMA], ids=lambda form: form.name)
def test_an_option_that_nothing_fits_is_refused_by_name(form: ToolFormat) -> None:
    option = {"anyOf": [False, {"type": "string"}]} | ({"type": "string"} if form is QWEN_CODER else {})
    with pytest.raises(UnsupportedField, match=form.name):
        ToolUse((Tool("f", None, json.dumps({"properties": {"x": option}})),), "required").grammar(form, {})


def test_names_of_functions_that_a_form_cannot_write_are_refused() -> None:
    with pytest.raises(UnsupportedField) as refused:
        ToolUse((Tool("get-weather"),), "required").grammar(PYTHONIC, {})
    assert refused.value.param == "tools[0].function.name"


def test_closings_inside_of_json_end_no_argument() -> None:
    given = {"items": ["a</parameter>", '</function>"']}
    schema = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}}}
    says = QWEN_CODER.as_text(Message("assistant", "", tool_calls=(ToolCall("", "order", json.dumps(given)),))).content
    pieces = CallReader(QWEN_CODER, {"order": schema}).push(says)
    assert pieces[:2] == [CallBegun(0, "order"), CallText(0, json.dumps(given))]


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (QWEN_CODER, "Soon. <function=weather>\n<parameter=days>\nmany\n</parameter>\n</function>"),
        (PYTHONIC, ' ```json\n{"name": "weather", "arguments": {"days": "many"}}'),
        (LLAMA, '[{"name": "weather", "parameters": {"days": "many"}}]'),
    ],
)
def test_a_strict_tool_binds_calls_in_every_way_that_is_read(form: ToolFormat, says: str) -> None:
    use = ToolUse(tuple(replace(tool, strict=True) for tool in TOOLS))
    assert CallBegun(0, "weather") in CallReader(form, use.schemas).push(says)
    assert not fits(use.free_grammar(form, {}), says)
