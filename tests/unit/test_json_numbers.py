"""Numbers of a JSON schema: bounds, constants and multiples are kept exactly, or refused."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import UnsupportedField
from service.text.grammars import Grammar
from service.text.grammars.json_values import with_bounds
from tests.effort import drawn
from tests.grammars import FIELD, fits

Schema = dict[str, Any]


def allowed(schema: Schema, *texts: str) -> list[bool]:
    grammar = Grammar.of_json_schema(schema, FIELD)
    return [fits(grammar, text) for text in texts]


def refused(schema: Schema) -> str:
    with pytest.raises(UnsupportedField) as caught:
        Grammar.of_json_schema(schema, FIELD)
    return caught.value.param or ""


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "minimum": 3}, ["3", "40"], ["2", "-3", "3.0", "3.5"]),
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, ["4"], ["3", "5"]),
        ({"type": "integer", "exclusiveMinimum": 2.5, "maximum": 3.5}, ["3"], ["2", "4"]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.1", "0.5"], ["0", "-0", "0.0", "0.51"]),
        ({"type": "number", "minimum": 1, "exclusiveMaximum": 1.5}, ["1", "1.49"], ["1.5", "0.9"]),
        ({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.5}, ["1.1"], ["1", "1.0", "1.5", "1.50"]),
        ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, ["-0.1", "-0.5"], ["0", "-0", "-0.0", "-0.51"]),
        ({"type": "number", "exclusiveMaximum": 1, "exclusiveMinimum": -1}, ["0", "0.9"], ["1", "-1", "1.0"]),
        ({"minimum": 3, "exclusiveMinimum": True}, ["3.1", "4"], ["3", "3.0"]),
        ({"minimum": 3, "exclusiveMinimum": False}, ["3"], ["2.9"]),
        ({"exclusiveMaximum": False}, ["3"], []),
        ({"exclusiveMaximum": 5, "maximum": 3}, ["3"], ["4", "5"]),
        ({"exclusiveMaximum": 3, "maximum": 5}, ["2.9"], ["3", "4"]),
        ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}], "type": "number"}, ["0.1"], ["0", "0.6"]),
        ({"type": "number", "minimum": 0.30000000000000004}, ["0.31"], ["0.3", "0.30000000000000003"]),
        ({"const": 0.1}, ["0.1"], ["0.10000000000000001", "0.2"]),
        ({"enum": [1, 2.5, [-3]]}, ["1", "2.5", "[-3]"], ["-3", "2.50000001"]),
        ({"multipleOf": 0.01, "type": "number"}, ["0.07", "1.15", "3"], ["0.001", "1.155"]),
        ({"multipleOf": 7, "type": "integer"}, ["0", "7", "-14"], ["8"]),
        ({"multipleOf": 65535, "type": "integer"}, ["65535", "131070"], ["65536"]),
        ({"allOf": [{"multipleOf": 6}, {"multipleOf": 4}], "type": "integer"}, ["12", "0"], ["4", "6", "18"]),
        ({"allOf": [{"multipleOf": 0.5}, {"multipleOf": 0.2}], "type": "number"}, ["1", "2"], ["0.5", "0.4"]),
    ],
)
def test_bounds_multiples_and_constants(schema: Schema, right: list[str], wrong: list[str]) -> None:
    assert allowed(schema, *right, *wrong) == [True] * len(right) + [False] * len(wrong)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("minimum", 2**53),
        ("maximum", -(2**53)),
        ("exclusiveMinimum", 1e300),
        ("exclusiveMaximum", 10**400),
        ("minimum", math.nan),
        ("maximum", math.inf),
        ("const", 2**53),
        ("const", 0.30000000000000004),
        ("const", 1e-30),
        ("enum", [1, {"a": [12345678901234567890]}]),
        ("multipleOf", 65536),
        ("multipleOf", 0.1234567),
        ("multipleOf", 1e-20),
        ("multipleOf", 1e300),
        ("multipleOf", 0),
        ("multipleOf", -1),
        ("exclusiveMinimum", True),
    ],
)
def test_numbers_that_the_compiler_would_change_are_refused(word: str, value: object) -> None:
    assert refused({word: value}) == f"{FIELD}.{word}"
    assert refused({"items": {"anyOf": [{word: value}]}}) == f"{FIELD}.items.anyOf.0.{word}"


def test_multiples_that_cannot_be_multiplied_are_refused() -> None:
    """The compiler's product of two of them would pass 32 bits, and allow 131,075 as a multiple of both."""
    assert refused({"allOf": [{"multipleOf": 257}, {"multipleOf": 65521}]}) == f"{FIELD}.allOf.1.multipleOf"
    assert refused({"properties": {"a": {"multipleOf": 0.001}, "b": {"multipleOf": 100}}}).endswith("b.multipleOf")


BOUNDS = st.one_of(
    st.sampled_from([0, -0.0, 1, -1, 0.5, 1e-7, -1e-7, 5e-324, 1e15, 2**53 - 1, -(2**53) + 1, 0.1, 1.1, 99.99]),
    st.integers(-1000, 1000),
    st.floats(-100, 100),
    st.decimals(-50, 50, places=3).map(float),
)


@given(
    schema=st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])},
        optional={
            **dict.fromkeys(("minimum", "maximum"), BOUNDS),
            **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), BOUNDS | st.booleans()),
        },
    ),
    numbers=st.lists(BOUNDS, min_size=1, max_size=8),
)
@settings(max_examples=drawn(200, 3000), deadline=None)
def test_kept_bounds_are_a_part_of_those_that_were_asked_for(schema: Schema, numbers: list[float]) -> None:
    """Numbers close to the bounds included; of integers no other than those."""
    for word, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and word not in schema:
            del schema[exclusive]
    kept = with_bounds(schema, FIELD)
    close = [math.nextafter(bound, way) for bound in schema.values() if type(bound) is float for way in (-1e9, 1e9)]
    for number in (*numbers, *close, *(value for value in schema.values() if type(value) in (int, float))):
        if _is_inside(number, kept):
            assert _is_inside(number, schema)
        elif type(number) is int and schema["type"] == "integer":
            assert not _is_inside(number, schema)


@given(low=st.integers(-30, 30), high=st.integers(-30, 30), exclusive=st.tuples(st.booleans(), st.booleans()))
@settings(max_examples=drawn(60, 1000), deadline=None)
def test_integers_between_bounds(low: int, high: int, exclusive: tuple[bool, bool]) -> None:
    words = ["exclusiveMinimum" if exclusive[0] else "minimum", "exclusiveMaximum" if exclusive[1] else "maximum"]
    schema = {"type": "integer", words[0]: low, words[1]: high}
    right = [number for number in range(-32, 33) if _is_inside(number, schema)]
    try:
        found = [number for number in range(-32, 33) if allowed(schema, json.dumps(number)) == [True]]
    except ValueError:
        found = []
    assert found == right


def _is_inside(number: float, schema: Schema) -> bool:
    """In exact arithmetic; draft 4's exclusive bounds too."""
    value = Decimal(repr(number))

    def bound(word: str) -> Decimal | None:
        told = schema.get(word)
        return None if told is None or isinstance(told, bool) else Decimal(repr(told))

    low, high, above, below = map(bound, ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
    above = low if schema.get("exclusiveMinimum") is True else above
    below = high if schema.get("exclusiveMaximum") is True else below
    return (
        (low is None or value >= low)
        and (high is None or value <= high)
        and (above is None or value > above)
        and (below is None or value < below)
    )
