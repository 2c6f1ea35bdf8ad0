"""Values of a JSON schema: numbers, formats and patterns are kept exactly, or refused"""

from __future__ import annotations

import datetime
import json
import math
import random
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import UnsupportedField
from service.text.grammars import Grammar
from service.text.grammars.json_values import UNWRITABLE, Extent, followed_pattern, with_bounds
from tests.effort import drawn
from tests.grammars import FIELD, fits

Schema = dict[str, Any]


def allowed(schema: Mapping[str, Any], values: Iterable[Any]) -> list[Any]:
    """The values that a schema's grammar allows, as Python writes them; bytes as they are."""
    grammar = Grammar.of_json_schema(dict(schema), FIELD)
    return [
        value
        for value in values
        if fits(grammar, value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False))
    ]


def words(text: str) -> list[str]:
    return text.split()


def refused(schema: Schema) -> str:
    """The place that is refused; "" for a schema that is kept."""
    try:
        Grammar.of_json_schema(schema, FIELD)
    except UnsupportedField as error:
        return error.param or ""
    return ""


# -- numbers ----------------------------------------------------------------------------------------------------------

BOUNDED: list[tuple[Schema, str, str]] = [
    ({"type": "integer", "minimum": 3}, "3 40", "2 -3 3.0 3.5"),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, "4", "3 5"),
    ({"type": "integer", "exclusiveMinimum": 2.5, "maximum": 3.5}, "3", "2 4"),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "0.1 0.5", "0 -0 0.0 0.51"),
    ({"type": "number", "minimum": 1, "exclusiveMaximum": 1.5}, "1 1.49", "1.5 0.9"),
    ({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.5}, "1.1", "1 1.0 1.5 1.50"),
    ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, "-0.1 -0.5", "0 -0 -0.0 -0.51"),
    ({"type": "number", "exclusiveMaximum": 1, "exclusiveMinimum": -1}, "0 0.9", "1 -1 1.0"),
    ({"minimum": 3, "exclusiveMinimum": True}, "3.1 4", "3 3.0"),
    ({"minimum": 3, "exclusiveMinimum": False}, "3", "2.9"),
    ({"exclusiveMaximum": False}, "3", ""),
    ({"exclusiveMaximum": 5, "maximum": 3}, "3", "4 5"),
    ({"exclusiveMaximum": 3, "maximum": 5}, "2.9", "3 4"),
    ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}], "type": "number"}, "0.1", "0 0.6"),
    ({"type": "number", "minimum": 0.30000000000000004}, "0.31", "0.3 0.30000000000000003"),
    ({"const": 0.1}, "0.1", "0.10000000000000001 0.2"),
    ({"enum": [1, 2.5, [-3]]}, "1 2.5 [-3]", "-3 2.50000001"),
    ({"multipleOf": 0.01, "type": "number"}, "0.07 1.15 3", "0.001 1.155"),
    ({"multipleOf": 7, "type": "integer"}, "0 7 -14", "8"),
    ({"multipleOf": 65535, "type": "integer"}, "65535 131070", "65536"),
    ({"allOf": [{"multipleOf": 6}, {"multipleOf": 4}], "type": "integer"}, "12 0", "4 6 18"),
    ({"allOf": [{"multipleOf": 0.5}, {"multipleOf": 0.2}], "type": "number"}, "1 2", "0.5 0.4"),
]
"""A schema, numbers that it allows, and others."""


def test_bounds_multiples_and_constants() -> None:
    for schema, right, wrong in BOUNDED:
        numbers = [number.encode() for number in words(f"{right} {wrong}")]
        assert allowed(schema, numbers) == [number.encode() for number in right.split()], schema


def test_numbers_that_the_compiler_would_change_are_refused() -> None:
    values: dict[str, list[Any]] = {
        "minimum": [2**53, math.nan],
        "maximum": [-(2**53), math.inf],
        "exclusiveMinimum": [1e300, True],
        "exclusiveMaximum": [10**400],
        "const": [2**53, 0.30000000000000004, 1e-30],
        "enum": [[1, {"a": [12345678901234567890]}]],
        "multipleOf": [65536, 0.1234567, 1e-20, 1e300, 0, -1],
    }
    for word, all_ in values.items():
        for value in all_:
            assert refused({word: value}) == f"{FIELD}.{word}", value
            assert refused({"items": {"anyOf": [{word: value}]}}) == f"{FIELD}.items.anyOf.0.{word}", value


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
        found = allowed(schema, range(-32, 33))
    except ValueError:
        found = []
    assert found == right


def _is_inside(number: float, schema: Schema) -> bool:
    """In exact arithmetic; draft 4's exclusive bounds too."""
    value = Decimal(repr(number))

    def bound(word: str) -> Decimal | None:
        number = schema.get(word)
        return None if number is None or isinstance(number, bool) else Decimal(repr(number))

    low, high, above, below = map(bound, ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
    above = low if schema.get("exclusiveMinimum") is True else above
    below = high if schema.get("exclusiveMaximum") is True else below
    return (
        (low is None or value >= low)
        and (high is None or value <= high)
        and (above is None or value > above)
        and (below is None or value < below)
    )


# -- formats and patterns ---------------------------------------------------------------------------------------------

FORMATS: dict[str, tuple[list[str], list[str]]] = {
    "date": (
        words("2024-02-29 1999-12-31 1000-01-01"),
        [
            *words("2023-02-29 0000-01-01 0000-02-29 26-01-01 2026-1-1 +2026-01-01 ２０２６-01-01"),
            *("2026-01-01 ", ""),
        ],
    ),
    "time": (
        words("00:00:00Z 23:59:59+09:00 12:30:45.123456789Z 08:30:06-23:59"),
        words(
            "23:59:60Z 22:58:60Z 24:00:00Z 12:60:00Z 12:00:61Z 12:00:00 12:00Z 12:00:00.Z 12:00:00+24:00 "
            "12:00:00+01:60 12:00:00+0100 12:00:00,5Z"
        ),
    ),
    "date-time": (
        words("2024-02-29T00:00:00Z 1985-04-12T23:20:50.52Z 1996-12-19T16:39:57-08:00"),
        [
            *words("2023-02-29T00:00:00Z 1990-12-31T23:59:60Z 1998-12-31T23:58:60Z 2024-02-29 2024-02-29T00:00:00"),
            *("2024-02-29 00:00:00Z", "T00:00:00Z", "2024-02-29T00:00:00Zx"),
        ],
    ),
    "hostname": (
        words("localhost a www.example.com 1.2.3.4 a-b-c.x9 EXAMPLE.org"),
        [
            *words("-a a- a..b .a a. a_b xn--X xn--abc XN--aa---o47jg78q 도시락.한국"),
            *("a b", "", "a" * 64, ".".join(["abcdefgh"] * 40)),
        ],
    ),
}
"""By name: values of the format, and others."""


@pytest.mark.parametrize("name", FORMATS)
def test_values_of_formats(name: str) -> None:
    right, wrong = FORMATS[name]
    schema = {"type": "string", "format": name}
    assert allowed(schema, [*right, *wrong]) == right
    assert allowed({"format": name}, wrong) == []
    assert allowed({**schema, "pattern": "^.*9"}, [*right, *wrong]) == [value for value in right if "9" in value]
    longest = max(map(len, right))
    assert allowed({**schema, "minLength": longest}, right) == [value for value in right if len(value) == longest]
    others = {"allOf": [{"minLength": 3}], **schema, "pattern": "[a-z0-9]"}
    assert allowed(others, [*right, *wrong]) == [value for value in right if len(value) >= 3]


def test_dates_are_those_of_the_calendar() -> None:
    """All days of 31 that a month could have, of years of every kind."""
    grammar = Grammar.of_json_schema({"format": "date"}, FIELD)
    rng = random.Random(0)
    for year in (1000, 1900, 2000, 2023, 2024, 2100, 9999, *(rng.randrange(1000, 10_000) for _ in range(4))):
        for month in range(14):
            for day in (0, 1, 9, 10, 28, 29, 30, 31, 32):
                text = f"{year:04}-{month:02}-{day:02}"
                try:
                    datetime.date.fromisoformat(text)
                    is_right = True
                except ValueError:
                    is_right = False
                assert fits(grammar, f'"{text}"') == is_right, text


def test_other_formats_are_the_compilers() -> None:
    right = {
        "ipv4": "192.168.0.1",
        "ipv6": "2001:db8::1",
        "uuid": "2eb8aa08-aa98-11ea-b4aa-73b441d16380",
        "email": "a@example.com",
        "uri": "https://example.com/a?b=c",
        "duration": "P3DT4H",
    }
    assert {name: allowed({"format": name}, right.values()) for name in right} == {
        name: [value] for name, value in right.items()
    }
    for name in ("regex", "color", "idn-hostname", "iri", "json-pointer", ""):
        with pytest.raises(UnsupportedField, match="a grammar keeps only"):
            allowed({"format": name}, [""])


CHARACTERS = 'a b.@x[]^&~-/"\\A가c_Z5z09\t\n\r\u0000\u001c\u001f\u0085\u00a0\u2003\u2028\u2029\u3000\ufeff😀٣'
BLANKS = " \t\n\r\u00a0\u2003\u2028\u2029\u3000"
DISPUTED = "\u001c\u001f\u0085\ufeff"
"""White space to ECMA, Rust or Python, and not to another of them."""


def without(characters: str) -> str:
    return "".join(each for each in CHARACTERS if each not in characters)


MATCHED: dict[str, str] = {
    ".": without("\n\r\u2028\u2029"),
    r"\.": ".",
    "[.]": ".",
    r"\s": BLANKS,
    r"\S": without(BLANKS + DISPUTED),
    r"[\s@]": BLANKS + "@",
    r"[^\s@]": without(BLANKS + DISPUTED + "@"),
    r"[\S ]": without(BLANKS + DISPUTED) + " ",
    r"[^\S ]": BLANKS.replace(" ", ""),
    r"\d": "509",
    r"\D": without("509"),
    r"\w": "abxAc_Z5z09",
    r"[^\w]": without("abxAc_Z5z09"),
    "[[a]": "[a",
    "[a[^]": "a[^",
    "[a&&b]": "ab&",
    "[a~~b]": "ab~",
    r"[\]\[]": "][",
    r"[a\-z]": "a-z",
    "[a-c]": "abc",
    "/": "/",
    r"\/": "/",
    '"': '"',
    r"\\": "\\",
    "(?:a|b)": "ab",
    "가": "가",
    r"\u0041": "A",
    r"\x41": "A",
    "(?i)z": "zZ",
}
"""By pattern: the characters of CHARACTERS that it matches."""


def test_patterns_mean_what_ecma_means() -> None:
    """Where readers disagree about a character, it is not allowed."""
    for pattern, characters in MATCHED.items():
        assert set(allowed({"pattern": f"^{pattern}$"}, CHARACTERS)) == set(characters) - UNWRITABLE, pattern


def test_patterns_that_mean_something_else_to_the_compiler_are_refused() -> None:
    for pattern in ("[]", "a[]b", "[^]", "[a--b]", "(?x)a b", "(?i-x)a", "[a-z--[b]]"):
        assert refused({"pattern": pattern}) == f"{FIELD}.pattern", pattern
        place = f"{FIELD}.items.patternProperties.{pattern}"
        assert refused({"items": {"patternProperties": {pattern: {}}}}) == place
    for pattern in ("(?=a)", r"(a)\1", r"\bfoo", "(a", "a)|(b", "a**?{", "\\", r"\p{No}x{", "(?<!a)b"):
        with pytest.raises((UnsupportedField, ValueError)):
            allowed({"pattern": pattern}, [""])


def test_what_has_no_writing_is_not_left_out() -> None:
    """Control characters: nothing matches them, and nothing that has them is shortened."""
    parts = ["\x01", "\x7f", "[\x01]", "[\x02\x01]"]
    parts += words(
        r"\x01 \u0000 \x{1f} \U0000007f \u{b} \a \v [\x7f] [\v] [\x00-\x07] [\x7f-\x7f] \x01{1} (?:\x01) \x01+"
    )
    for part in parts:
        with pytest.raises(ValueError, match="fits"):
            allowed({"type": "string", "pattern": f"^a{part}b$"}, ["ab"])
        assert allowed({"pattern": f"^a{part}b$|^c$"}, ["ab", "a\x01b", "axb", "b", "c"]) == ["c"], part
        assert allowed({"pattern": f"^a(?:{part})?b$"}, ["ab", "a\x01b", "axb"]) == ["ab"], part


def test_classes_with_what_has_no_writing() -> None:
    characters = ["\x01", "\t", "\n", "a", "-", "x", "\x7f", "\x80"]
    for inside, expected in {
        r"^\x00-\x1f": ["a", "-", "x", "\x80"],
        r"\x01-a": ["\t", "\n", "a", "-"],
        r"\x01a": ["a"],
        r"\x7fa": ["a"],
        r"a\x7f": ["a"],
        r"^\x01a": ["\t", "\n", "-", "x", "\x80"],
        r"^a\x7f": ["\t", "\n", "-", "x", "\x80"],
        r"\x7f-\x80": ["\x80"],
        r"b-\x7f": ["x"],
        r"-\x7f": ["-"],
        r"\x01-": ["-"],
        r"\v\t": ["\t"],
    }.items():
        assert allowed({"pattern": f"^[{inside}]$"}, characters) == expected, inside


def test_a_pattern_searches_and_names_of_properties_too() -> None:
    assert allowed({"pattern": "b"}, ["abc", "b", "ac"]) == ["abc", "b"]
    assert allowed({"pattern": "^a|c$"}, ["ab", "bc", "b"]) == ["ab", "bc"]
    grammar = Grammar.of_json_schema(
        {"patternProperties": {"^a.c$": {"type": "null"}}, "additionalProperties": False}, FIELD
    )
    texts = ['{"abc": null}', '{"a\\nc": null}', '{"abc": 1}', '{"b": null}']
    assert [fits(grammar, text) for text in texts] == [True, False, False, False]


def test_nothing_else_of_a_pattern_is_changed() -> None:
    for pattern in (r"^(?P<year>[0-9]{4})-\d+(?i:x)$", r"[^\]\\-]+\[", "", "가[가-힣]*", r"a\\"):
        assert followed_pattern(pattern, FIELD, Extent()) == pattern
