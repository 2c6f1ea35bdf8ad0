"""Patterns and formats of a JSON schema: what ECMA-262 reads differently, and formats by the calendar."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Mapping

import pytest

from service.errors import UnsupportedField
from service.text.grammars import Grammar
from service.text.grammars.extent import Extent
from service.text.grammars.json_values import UNWRITABLE, followed_pattern
from tests.grammars import FIELD, fits


def allowed(schema: Mapping[str, object], values: list[str]) -> list[str]:
    grammar = Grammar.of_json_schema(dict(schema), FIELD)
    return [value for value in values if fits(grammar, json.dumps(value, ensure_ascii=False))]


FORMATS: dict[str, tuple[list[str], list[str]]] = {
    "date": (
        ["2024-02-29", "2000-02-29", "1996-02-29", "2023-02-28", "1999-12-31", "2026-04-30", "1000-01-01"],
        [
            "2023-02-29",
            "1900-02-29",
            "2100-02-29",
            "2024-02-30",
            "2026-04-31",
            "2026-13-01",
            "2026-00-10",
            "2026-01-00",
            "2026-01-32",
            "0000-01-01",
            "0000-02-29",
            "26-01-01",
            "2026-1-1",
            "2026-01-01 ",
            "+2026-01-01",
            "２０２６-01-01",
            "",
        ],
    ),
    "time": (
        ["00:00:00Z", "23:59:59+09:00", "12:30:45.123456789Z", "08:30:06-23:59"],
        [
            "23:59:60Z",
            "22:58:60Z",
            "24:00:00Z",
            "12:60:00Z",
            "12:00:61Z",
            "12:00:00",
            "12:00Z",
            "12:00:00.Z",
            "12:00:00+24:00",
            "12:00:00+01:60",
            "12:00:00+0100",
            "12:00:00,5Z",
        ],
    ),
    "date-time": (
        ["2024-02-29T00:00:00Z", "1985-04-12T23:20:50.52Z", "1996-12-19T16:39:57-08:00"],
        [
            "2023-02-29T00:00:00Z",
            "1990-12-31T23:59:60Z",
            "1998-12-31T23:58:60Z",
            "2024-02-29",
            "2024-02-29T00:00:00",
            "2024-02-29 00:00:00Z",
            "T00:00:00Z",
            "2024-02-29T00:00:00Zx",
        ],
    ),
    "hostname": (
        ["localhost", "a", "www.example.com", "1.2.3.4", "a-b-c.x9", "EXAMPLE.org"],
        [
            "-a",
            "a-",
            "a..b",
            ".a",
            "a.",
            "a_b",
            "xn--X",
            "xn--abc",
            "XN--aa---o47jg78q",
            "a b",
            "도시락.한국",
            "",
            "a" * 64,
            ".".join(["abcdefgh"] * 40),
        ],
    ),
}


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


@pytest.mark.parametrize("name", ["ipv4", "ipv6", "uuid", "email", "uri", "duration"])
def test_other_formats_are_the_compilers(name: str) -> None:
    right = {
        "ipv4": "192.168.0.1",
        "ipv6": "2001:db8::1",
        "uuid": "2eb8aa08-aa98-11ea-b4aa-73b441d16380",
        "email": "a@example.com",
        "uri": "https://example.com/a?b=c",
        "duration": "P3DT4H",
    }
    assert allowed({"format": name}, list(right.values())) == [right[name]]


@pytest.mark.parametrize("name", ["regex", "color", "idn-hostname", "iri", "json-pointer", ""])
def test_a_format_that_nobody_keeps_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Unknown format"):
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


@pytest.mark.parametrize("pattern", MATCHED)
def test_patterns_mean_what_ecma_means(pattern: str) -> None:
    """Where readers disagree about a character, it is not allowed."""
    assert set(allowed({"pattern": f"^{pattern}$"}, list(CHARACTERS))) == set(MATCHED[pattern]) - UNWRITABLE


@pytest.mark.parametrize("pattern", ["[]", "a[]b", "[^]", "[a--b]", "(?x)a b", "(?i-x)a", "[a-z--[b]]"])
def test_patterns_that_mean_something_else_to_the_compiler_are_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedField, match=r"pattern` cannot act"):
        Grammar.of_json_schema({"pattern": pattern}, FIELD)
    with pytest.raises(UnsupportedField) as caught:
        Grammar.of_json_schema({"items": {"patternProperties": {pattern: {}}}}, FIELD)
    assert caught.value.param == f"{FIELD}.items.patternProperties.{pattern}"


@pytest.mark.parametrize("pattern", ["(?=a)", r"(a)\1", r"\bfoo", "(a", "a)|(b", "a**?{", "\\", r"\p{No}x{", "(?<!a)b"])
def test_patterns_that_the_compiler_cannot_read_are_refused(pattern: str) -> None:
    with pytest.raises((UnsupportedField, ValueError)):
        allowed({"pattern": pattern}, [""])


UNWRITTEN = [
    "\x01",
    "\x7f",
    r"\x01",
    r"\u0000",
    r"\x{1f}",
    r"\U0000007f",
    r"\u{b}",
    r"\a",
    r"\v",
    "[\x01]",
    r"[\x7f]",
    r"[\v]",
]


@pytest.mark.parametrize(
    "part", [*UNWRITTEN, "[\x02\x01]", r"[\x00-\x07]", r"[\x7f-\x7f]", r"\x01{1}", r"(?:\x01)", r"\x01+"]
)
def test_what_has_no_writing_is_not_left_out(part: str) -> None:
    """Control characters: nothing matches them, and nothing that has them is shortened."""
    with pytest.raises(ValueError, match="fits"):
        allowed({"type": "string", "pattern": f"^a{part}b$"}, ["ab"])
    assert allowed({"pattern": f"^a{part}b$|^c$"}, ["ab", "a\x01b", "axb", "b", "c"]) == ["c"]
    assert allowed({"pattern": f"^a(?:{part})?b$"}, ["ab", "a\x01b", "axb"]) == ["ab"]


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
