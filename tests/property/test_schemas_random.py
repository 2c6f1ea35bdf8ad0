"""A random JSON schema is kept or refused: answers of an accepted one fit it, as another library reads it; a refused
one is refused by name."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.errors import InvalidRequest
from service.text.grammars import Grammar
from service.text.grammars.trial import require_end
from tests.effort import drawn
from tests.grammars import FIELD, random_answer, vocabulary
from tests.schema_values import HUGE, fits_schema, is_schema

Schema = Any
ANSWERS = 3
NAMES = ("a", "b", "이름", 'q"', "a/b")
COUNTS = st.integers(0, 4)
NUMBERS = st.sampled_from([-7, -1, 0, 1, 2, 3, 10, 0.5, -2.25, 99])
VALUES = st.sampled_from([None, True, 0, 1, -3, 2.5, "", "menu", "도시락", [1, "a"], {"a": 1}])
PATTERNS = ("^[a-c]{1,3}$", "^가+[0-9]$", "x|yz", r"^\\d{2}-\\w$")
FORMATS = ("date", "time", "uuid", "ipv4", "no-such-format")
UNKEPT = {
    "not": {"type": "null"},
    "if": {"type": "string"},
    "contains": {"const": 1},
    "uniqueItems": True,
    "propertyNames": {"maxLength": 2},
    "dependentRequired": {"a": ["b"]},
    "unevaluatedProperties": False,
    "optional": True,
    "minLenght": 2,
}
"""Words that a grammar cannot keep, or that JSON Schema lacks."""


def fields(**words: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    """Some of these words."""
    return st.fixed_dictionaries({}, optional=words)


LEAVES: st.SearchStrategy[Schema] = st.one_of(
    fields(const=VALUES),
    fields(enum=st.lists(VALUES, min_size=1, max_size=4)),
    fields(type=st.sampled_from(["null", "boolean", "integer", "number", "string", ["string", "null"], "text"])),
    fields(
        type=st.just("string"),
        minLength=COUNTS,
        maxLength=COUNTS,
        pattern=st.sampled_from(PATTERNS),
        format=st.sampled_from(FORMATS),
    ),
    fields(
        type=st.sampled_from(["integer", "number"]),
        minimum=NUMBERS,
        maximum=NUMBERS,
        exclusiveMinimum=NUMBERS,
        multipleOf=st.sampled_from([1, 2, 0.25, 0, -1]),
    ),
    st.booleans(),
)


def nested(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    properties = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        fields(
            type=st.just("object"),
            properties=properties,
            required=st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
            additionalProperties=st.booleans() | inner,
            minProperties=COUNTS,
            maxProperties=COUNTS,
        ),
        fields(
            type=st.just("array"), items=inner, prefixItems=several, minItems=COUNTS, maxItems=COUNTS, contains=inner
        ),
        fields(anyOf=several),
        fields(oneOf=several),
        fields(allOf=several, title=st.just("a note")),
    )


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    schema = draw(st.recursive(LEAVES, nested, max_leaves=6))
    if isinstance(schema, dict) and draw(st.integers(0, 9)) == 0:
        word = draw(st.sampled_from(sorted(UNKEPT)))
        schema = {**schema, word: UNKEPT[word]}
    return schema


def made(schema: Schema) -> Grammar | None:
    """None where it is refused: by its place, or by the compiler, whose reason a service shows behind the field."""
    try:
        grammar = Grammar.of_json_schema(schema, FIELD)
    except InvalidRequest as error:
        assert (error.param or "").startswith(FIELD) and f"`{FIELD}" in error.message
        return None
    try:
        vocabulary().compile(grammar.text)
        require_end(grammar.text)
    except ValueError as error:
        assert 5 < len(str(error)) < 400
        return None
    return grammar


SEEN: Counter[str] = Counter()


@settings(max_examples=drawn(60, 3000), deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), st.integers(0, 9))
def check_a_random_schema(schema: Schema, seed: int) -> None:
    grammar, rng = made(schema), Random(seed)
    SEEN["refused" if grammar is None else "accepted"] += 1
    if grammar is None:
        return
    assert is_schema(schema), schema
    for _ in range(ANSWERS):
        answer = random_answer(grammar, rng)
        if answer is not None and not HUGE.search(answer):
            value = json.loads(answer)
            SEEN["answers"] += 1
            assert fits_schema(schema, value), (schema, answer)


def test_random_schemas() -> None:
    """Enough of them are accepted, enough refused, and most answers end."""
    SEEN.clear()
    check_a_random_schema()
    print(dict(SEEN))
    assert min(SEEN["accepted"], SEEN["refused"]) > drawn(60, 3000) / 10
    assert SEEN["answers"] > SEEN["accepted"]


@pytest.mark.parametrize("word", UNKEPT)
def test_what_cannot_be_kept_is_named(word: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Grammar.of_json_schema({"properties": {"a": {"type": "string", word: UNKEPT[word]}}}, FIELD)
    assert caught.value.param == f"{FIELD}.properties.a.{word}" and word in caught.value.message
