"""Calls that a grammar makes are read back as arguments that their schema allows, in every form that is no JSON object,
wherever the text is cut."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from service.errors import InvalidRequest
from service.text.grammars.matching import VocabularyGrammars
from service.text.messages import Tool
from service.text.tools import CallBegun, CallReader, CallText, Content, ToolFormat, ToolUse
from service.text.tools.formats import FORMATS
from tests.effort import IS_THOROUGH, drawn
from tests.schema_values import HUGE, fits_schema

WRITTEN = [form for form in FORMATS if form.writing is not None]
TEXTS = st.sampled_from(["", "a", "null", "3", "true", '"q"', "도시락", "a\nb", "</a>", "{", "None"])
LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.just({}),
    st.just({"type": "string"}),
    st.just({"type": ["string", "null"]}),
    st.builds(
        lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more}, *[st.integers(0, 3)] * 2
    ),
    st.just({"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]}),
    st.just({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 10}]}),
    st.builds(lambda values: {"enum": values}, st.lists(TEXTS, min_size=1, max_size=3, unique=True)),
    st.just({"enum": ["a", None]}),
    st.just({"enum": ["1", 2, True]}),
    st.just({"const": "3"}),
    st.just({"type": "integer", "minimum": 3, "maximum": 40}),
    st.just({"type": "number"}),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}),
    st.just({"type": "object", "additionalProperties": {"type": "boolean"}}),
    st.just({"type": "object"}),
    st.just({"$ref": "#/$defs/menu"}),
    st.just({"$ref": "#/$defs/tree"}),
)
DEFINITIONS = {
    "menu": {"enum": ["rice", "</b>"]},
    "tree": {"type": "object", "properties": {"value": {"type": "string"}, "next": {"$ref": "#/$defs/tree"}}},
}


def _object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def built(named: dict[str, Any], required: list[str], more: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": named,
            "required": [name for name in named if name in required],
            "additionalProperties": more,
        }

    names = st.sampled_from(["city", "days", "is_sure", "x"])
    return st.builds(
        built,
        st.dictionaries(names, inner, max_size=3),
        st.lists(names),
        st.sampled_from([True, False, {"type": "integer"}]),
    )


SCHEMAS = _object(st.one_of(LEAVES, _object(LEAVES))).map(lambda schema: {**schema, "$defs": DEFINITIONS})


def read(form: ToolFormat, schemas: dict[str, Any], text: str, size: int) -> tuple[str, list[tuple[str, str]]]:
    reader, content, calls = CallReader(form, schemas), "", list[tuple[str, str]]()
    pieces = [piece for at in range(0, len(text), size) for piece in reader.push(text[at : at + size])]
    for piece in pieces + reader.finish():
        match piece:
            case Content(more):
                content += more
            case CallBegun(_, name):
                calls.append((name, ""))
            case CallText(index, more):
                calls[index] = (calls[index][0], calls[index][1] + more)
    return content, calls


def walk(matcher: LLMatcher, tokens: Sequence[bytes], rng: Random, most: int = 120) -> str | None:
    """A text that the grammar allows, each token drawn from those that may come, the form's own marks first. None if it
    has not ended after `most` tokens."""
    text, marks = b"", range(256, len(tokens))
    for _ in range(most):
        if matcher.is_stopped():
            return text.decode()
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [id for id in range(len(tokens)) if bits >> id & 1]
        if bits >> len(tokens) & 1 and (not allowed or rng.random() < 0.5):
            return text.decode()
        some = [id for id in allowed if id in marks]
        id = rng.choice(some if some and rng.random() < 0.6 else allowed)
        text += tokens[id]
        assert matcher.consume_token(id)
    return None


def tokens_of(form: ToolFormat) -> list[bytes]:
    """Bytes, and what may be written around a text: tokens that cross the end of a text too."""
    assert form.writing is not None
    writing, words = form.writing, ("도", "도시락", "null", "3", '", "', '"]', "\n")
    marks = {
        *form.marks,
        writing.end,
        writing.value_closing,
        writing.quote,
        *writing.key_tags,
        *form.enclosing[0],
        *words,
    }
    pieces = sorted({*marks, *(f"a{mark}" for mark in marks), *(mark[: len(mark) // 2] for mark in marks)} - {""})
    return [*(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in pieces)]


@pytest.mark.parametrize("form", WRITTEN, ids=lambda form: form.name)
def test_arguments_are_read_back_as_their_schema_allows(form: ToolFormat) -> None:
    tokens, seen = tokens_of(form), Counter[str]()
    marks = {mark: len(tokens) + at for at, mark in enumerate(form.marks)}
    plain = VocabularyGrammars.of_tokens(tokens, list)
    marked = VocabularyGrammars.of_tokens([*tokens, *[None] * len(marks)], list)

    @settings(
        max_examples=drawn(15, 300),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=not IS_THOROUGH,
    )
    @given(schema=SCHEMAS, seed=st.integers(0, 1 << 30), is_strict=st.booleans(), are_controls=st.booleans())
    def check(schema: Any, seed: int, is_strict: bool, are_controls: bool) -> None:
        tools = (Tool("order", None, json.dumps(schema), strict=is_strict), Tool("weather", None, '{"type": "object"}'))
        use, rng = ToolUse(tools, "auto" if is_strict else "required"), Random(seed)
        try:
            grammar = (use.free_grammar if is_strict else use.grammar)(form, marks if are_controls else {})
        except InvalidRequest as error:
            assert error.param and error.param.startswith("tools[0].function.parameters")
            seen["refused"] += 1
            return
        matcher = (marked if are_controls else plain).compile(grammar.text)
        texts = [*tokens, *(mark.encode() for mark in marks if are_controls)]
        for text in (walk(matcher.deep_copy(), texts, rng) for _ in range(4)):
            if text is None or HUGE.search(text):
                continue
            content, calls = read(form, use.schemas, text, rng.randint(1, 7))
            assert is_strict or (calls and not content.strip()), text
            for name, arguments in calls:
                seen[name] += 1
                assert name == "weather" or fits_schema(schema, json.loads(arguments)), (text, arguments)

    check()
    assert seen["order"] and seen["weather"]


@pytest.mark.parametrize("are_controls", [True, False])
@pytest.mark.parametrize("form", WRITTEN, ids=lambda form: form.name)
def test_a_text_is_no_shorter_than_its_schema_allows(form: ToolFormat, are_controls: bool) -> None:
    """Wherever the text stands between marks that are tokens of their own: such a text may be left out at all."""
    tokens = tokens_of(form)
    marks = {mark: len(tokens) + at for at, mark in enumerate(form.marks)} if are_controls else {}
    schema = {"type": "object", "properties": {"x": {"type": "string", "minLength": 1}}, "required": ["x"]}
    tools = (Tool("order", None, json.dumps({**schema, "additionalProperties": False}), strict=True),)
    grammar = ToolUse(tools, "required").grammar(form, marks)
    matcher = VocabularyGrammars.of_tokens([*tokens, *[None] * len(marks)], list).compile(grammar.text)
    texts = [*tokens, *(mark.encode() for mark in marks)]
    walked = [text for seed in range(60) if (text := walk(matcher.deep_copy(), texts, Random(seed)))]
    read_back = [arguments for text in walked for _, arguments in read(form, {"order": schema}, text, 9)[1]]
    assert read_back and all(json.loads(each)["x"] for each in read_back)
