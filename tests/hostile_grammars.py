"""Grammars that somebody could send to do harm, by families: what they would take without end, what would be ignored,
and what no answer fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from service.text.grammars.json_schema import KEPT

DRAFTS: Final = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)
Schema = dict[str, Any]
UNKEPT: Final = (
    "$dynamicAnchor $dynamicRef $recursiveAnchor $recursiveRef contains contentSchema dependencies dependentRequired "
    "dependentSchemas else if maxContains minContains not nullable propertyNames then unevaluatedItems "
    "unevaluatedProperties uniqueItems"
)
"""Words of JSON Schema that no grammar keeps."""


@dataclass(frozen=True)
class Hostile:
    """`fields` is the field of a request's body with the grammar. One that `may_act` does no harm where it is kept."""

    name: str
    fields: dict[str, Any]
    may_act: bool = False


def hostile() -> Iterator[Hostile]:
    """Yields them, each with a name of its own."""
    for family in (*SCHEMAS, *PATTERNS, *LARK):
        numbers = count()
        for made in family():
            fields, may_act = made if isinstance(made, tuple) else (made, False)
            yield Hostile(f"{family.__name__.strip('_')}-{next(numbers)}", fields, may_act)


Made = dict[str, Any] | tuple[dict[str, Any], bool]
"""The field, and whether it may act."""


def _json(schema: Any) -> dict[str, Any]:
    return {"guided_json": schema}


def _regex(pattern: str) -> dict[str, Any]:
    return {"guided_regex": pattern}


def _lark(text: str) -> dict[str, Any]:
    return {"guided_grammar": text}


# -- JSON schemas -----------------------------------------------------------------------------------------------------

AROUND: Final[dict[str, Callable[[Any], Schema]]] = {
    "items": lambda inner: {"items": inner},
    "prefixItems": lambda inner: {"prefixItems": [inner]},
    "properties": lambda inner: {"type": "object", "properties": {"a": inner}, "required": ["a"]},
    "additionalProperties": lambda inner: {"additionalProperties": inner},
    "patternProperties": lambda inner: {"patternProperties": {"^a": inner}},
    "allOf": lambda inner: {"allOf": [inner, {"type": ["object", "array"]}]},
    "anyOf": lambda inner: {"anyOf": [inner, {"type": "null"}]},
    "oneOf": lambda inner: {"oneOf": [inner]},
    "$defs": lambda inner: {"$defs": {"a": inner}, "type": "null"},
}


def _nested(word: str, levels: int, inner: Any) -> Any:
    for _ in range(levels):
        inner = AROUND[word](inner)
    return inner


def _nesting() -> Iterator[Made]:
    for word in AROUND:
        for levels in (66, 100, 180):
            yield _json(_nested(word, levels, {"type": "null"}))
        yield _json(json.dumps(_nested(word, 150, {})))
    for levels in (500, 5_000, 50_000):
        for opening in ("[", '{"items": ', '{"allOf": [', '{"const": [', '{"a": '):
            yield _json(opening * levels)
    constant: Any = 1
    for _ in range(150):
        constant = [constant]
    yield _json({"const": constant}), True
    yield _json({"enum": [{"a": constant}]}), True


def _references() -> Iterator[Made]:
    """Each definition needs the next one twice."""
    for length in (8, 16, 24, 40, 64, 200, 1000):
        for word in ("allOf", "anyOf", "prefixItems"):
            defs: dict[str, Schema] = {f"a{n}": {word: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(length)}
            yield _json({"$ref": "#/$defs/a0", "$defs": {**defs, f"a{length}": {"type": "string"}}}), True
        defs = {
            f"a{n}": {"properties": {"x": {"$ref": f"#/$defs/a{n + 1}"}, "y": {"$ref": f"#/$defs/a{n + 1}"}}}
            for n in range(length)
        }
        yield _json({"$ref": "#/$defs/a0", "$defs": {**defs, f"a{length}": {"type": "string"}}}), True


def _circles() -> Iterator[Made]:
    for length in (1, 2, 3, 10, 100):
        for word in ("$ref", "allOf", "anyOf", "oneOf"):
            defs: dict[str, Any] = {}
            for n in range(length):
                following = {"$ref": f"#/$defs/a{(n + 1) % length}"}
                defs[f"a{n}"] = following if word == "$ref" else {word: [following]}
            yield _json({"$ref": "#/$defs/a0", "$defs": defs})
        for inner in (
            {"type": "object", "properties": {f"x{length}": {"$ref": "#"}}, "required": [f"x{length}"]},
            {"type": "array", "items": {"$ref": "#"}, "minItems": length},
            {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": length},
            {"allOf": [{"$ref": "#"}] * length},
        ):
            yield _json(inner)


def _constants() -> Iterator[Made]:
    for number in (8_193, 20_000, 60_000):
        yield _json({"enum": list(range(number))})
        yield _json({"enum": [f"{n}" for n in range(number)]})
        yield _json({"const": dict.fromkeys(map(str, range(number)))})
        yield _json({"anyOf": [{"enum": list(range(n, n + 100))} for n in range(0, number, 100)]})
    for text in ("a\x00", "\x7f", "\x1b[31m", "a\x0bb"):
        yield _json({"const": text})
        yield _json({"enum": [{text: 1}]})
    yield _json({"const": "가" * 100_000})
    yield _json({"enum": ["x" * 3_000 + str(n) for n in range(100)]})
    yield _json({"enum": ["x" * 300 + str(n) for n in range(500)]}), True


def _patterns_of_schemas() -> Iterator[Made]:
    for pattern in (*BOMBS, *UNREADABLE):
        yield _json({"type": "string", "pattern": pattern}), pattern in BOMBS
        yield _json({"type": "object", "patternProperties": {pattern: {"type": "null"}}}), pattern in BOMBS
    yield _json({"anyOf": [{"type": "string", "pattern": "[a-z]" * 100}] * 100})
    yield _json({"allOf": [{"type": "string", "pattern": f"(a{n})+|b{{{n}}}"} for n in range(1, 200)]})
    yield _json({"type": "object", "patternProperties": {f"^a.*{n}": {"type": "null"} for n in range(300)}}), True


def _repetitions() -> Iterator[Made]:
    for size in (10**4, 10**6, 10**9, 2**31, 2**63, 10**30):
        for word in ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"):
            yield _json({word: size}), True
            kind = {"I": "array", "L": "string", "P": "object"}[word[3]]
            yield _json({"type": kind, word: size, "pattern": "^(ab|cd)*$", "items": {"type": "null"}}), True
    for least, most in ((5, 4), (1, 0), (10**6, 10), (2**40, 2**39)):
        yield _json({"type": "array", "minItems": least, "maxItems": most})
        yield _json({"type": "string", "minLength": least, "maxLength": most})


def _properties() -> Iterator[Made]:
    for number in (2_100, 5_000, 10_000):
        names = [f"p{n}" for n in range(number)]
        yield _json({"type": "object", "properties": {name: {} for name in names}})
        yield _json({"type": "object", "properties": dict.fromkeys(names, True), "required": names})
        yield _json({"type": "object", "required": names}), True
        yield _json({"anyOf": [{"const": name} for name in names]})
        yield _json({"allOf": [{}] * number})
        yield _json({"type": "array", "prefixItems": [{"type": "null"}] * number})
        yield _json({"anyOf": [{"multipleOf": 1}] * number})
        yield _json({"$defs": {name: {} for name in names}, "type": "null"})
    for number in (500, 1_000, 2_000):
        names = [f"p{n}" for n in range(number)]
        yield _json({"type": "object", "properties": {name: {"type": "object"} for name in names}}), True
        yield _json({"allOf": [{"type": "object", "properties": {name: {"type": "null"}}} for name in names]}), True
        yield _json({"anyOf": [{"type": "object", "required": [name]} for name in names]}), True
        yield _json({"oneOf": [{"type": "object", "required": [name]} for name in names]}), True
        yield _json({"allOf": [{"anyOf": [{"const": 1}, {"const": n}]} for n in range(number)]}), True


def _products() -> Iterator[Made]:
    """Every option of one `anyOf` with every option of the others."""
    for number in (8, 12, 16, 24, 60):
        for word in ("anyOf", "oneOf"):
            options: list[Schema] = [{word: [{"required": [f"{n}a"]}, {"required": [f"{n}b"]}]} for n in range(number)]
            yield _json({"type": "object", "allOf": options}), True
            options = [{word: [{"minimum": n}, {"maximum": -n - 1}]} for n in range(number)]
            yield _json({"type": "integer", "allOf": options}), True
            options = [{word: [{"pattern": f"a{n}"}, {"pattern": f"b{n}"}]} for n in range(number)]
            yield _json({"type": "string", "allOf": options}), True


def _tricks_of_unicode() -> Iterator[Made]:
    yield _json({"properties": {"가" * 50_000: {"not": {}}}})
    yield _json({"x" * 200_000: 1})
    for word in ("type", "enum", "properties", "required", "$ref"):
        for other in (
            f"{word}\u200b",
            f"\ufeff{word}",
            f"{word}\u0301",
            word.upper(),
            f" {word}",
            f"{word}\x00",
            f"{word[0]}\u2060{word[1:]}",
        ):
            yield _json({other: "string"})
    for word in ("tуpe", "ｔｙｐｅ", "𝐭𝐲𝐩𝐞", "ıtems", "ｅnum"):
        yield _json({word: "string"})
        yield _json({"properties": {"a": {word: "string"}}})
    yield _json(r'{"const": "\ud800"}')
    yield _json(r'{"properties": {"\udfff": {}}}')
    yield _json(r'{"pattern": "\ud83d"}')


def _unsupported() -> Iterator[Made]:
    for word in UNKEPT.split():
        for value in ({"type": "string"}, True, ["a"], 2):
            yield _json({word: value})
        for around in ("items", "properties", "anyOf", "$defs"):
            yield _json(AROUND[around]({word: {"type": "string"}}))
    for word in (
        "typ",
        "optional",
        "x-order",
        "strict",
        "x-guidance",
        "propertyOrdering",
        "constructor",
        "__proto__",
        "",
        "0",
    ):
        yield _json({word: True})
        yield _json({"items": {"prefixItems": [{word: 1}]}})


WRONG_VALUES: Final[tuple[Any, ...]] = (None, -1, 1.5, "x", [], {}, True, [[1]], {"a": 1}, "", [None])


def _wrong_types() -> Iterator[Made]:
    """Of every keyword: the test asks JSON Schema's own schema which of them may act."""
    for word in sorted(KEPT):
        for value in WRONG_VALUES:
            yield _json({word: value}), True
            yield _json({"type": "object", "properties": {"a": {word: value}}, "required": ["a"]}), True
    for draft in DRAFTS:
        yield _json({"$schema": draft, "type": "strin"})
        yield _json({"$schema": draft, "not": {}})
    for draft in ("http://json-schema.org/draft-03/schema#", "https://example.com/mine", "x", ""):
        yield _json({"$schema": draft, "type": "string"})


def _numbers() -> Iterator[Made]:
    for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const"):
        for value in (2**53, -(2**53), 2**64, 10**30, 10**400, 1e300, -1e308, 2**53 + 1):
            yield _json({word: value})
        for text in ("1e400", "1e-400", "NaN", "Infinity", "-Infinity", "9" * 5_000, "0." + "1" * 400, "1e99999999"):
            yield _json(f'{{"{word}": {text}}}'), text == "1e-400" or text.startswith("0.")
    for value in (0, -1, 1e-300, 5e-324, 1_000_003, 0.1234567, 2**40):
        yield _json({"type": "number", "multipleOf": value})
    yield _json({"allOf": [{"multipleOf": prime} for prime in (101, 103, 107, 109, 113, 127)]})
    for least, most in ((2, 1), (0.5, 0.4), (-1, -2)):
        yield _json({"type": "number", "minimum": least, "maximum": most})
        yield _json({"type": "integer", "minimum": least, "maximum": most})
        yield _json({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2})


def _remote() -> Iterator[Made]:
    for place in (
        "http://127.0.0.1:1/schema.json", "https://example.com/a#/b", "file:///etc/passwd", "ftp://localhost/a",
        "//localhost/a", "/etc/passwd", "../../../etc/passwd", "urn:uuid:1", "a.json", "a.json#/b", "data:,{}", "#b",
        "#/$defs/none", "#/$defs", "#/$defs/a/const", "#/$defs/a~2b", "#/$defs/%", "#a/b", "?", "http://[",
        "jar:file:/a!/b", "javascript:1", "http://169.254.169.254/latest/meta-data/", "#/" + "a/" * 5_000, "#" * 1_000,
    ):  # fmt: skip
        yield _json({"$ref": place})
        yield _json({"properties": {"a": {"$ref": place}}, "required": ["a"], "$defs": {"a": {"const": {"type": "x"}}}})
    yield _json({"$id": "http://example.com/a", "items": {"$ref": "b"}, "minItems": 1, "type": "array"})


def _nothing_fits() -> Iterator[Made]:
    never: list[Any] = [
        False, {"enum": []}, {"type": []}, {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": {"a": False}, "required": ["a"]}, {"const": 1, "enum": [2]},
        {"type": "string", "pattern": "^a$", "minLength": 2}, {"allOf": [{"const": 1}, {"const": 2}]},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "array", "prefixItems": [False], "minItems": 1},
        {"type": "object", "minProperties": 2, "maxProperties": 1},
        {"type": "string", "enum": [1]}, {"anyOf": []}, {"oneOf": []}, {"anyOf": [False]},
        {"type": "integer", "multipleOf": 10, "minimum": 1, "maximum": 9},
    ]  # fmt: skip
    for schema in never:
        yield _json(schema)
        yield _json({"type": "object", "properties": {"a": schema}, "required": ["a"]})


def _texts() -> Iterator[Made]:
    for text in (
        "",
        "{",
        "}",
        "nul",
        "'a'",
        '{"type": "string"',
        '{"type": "string"}}',
        "{,}",
        "\x00",
        "[]",
        "1",
        "null",
    ):
        yield _json(text)
    for text in (
        '{"type": "string", "type": "integer"}',
        '{"properties": {"a": true, "a": false}}',
        '{"a": 1, "a": 1}',
    ):
        yield _json(text)


SCHEMAS: Final = (
    _nesting, _references, _circles, _constants, _patterns_of_schemas, _repetitions, _properties, _products,
    _tricks_of_unicode, _unsupported, _wrong_types, _numbers, _remote, _nothing_fits, _texts,
)  # fmt: skip

# -- patterns ---------------------------------------------------------------------------------------------------------

BOMBS: Final = (
    "a{5000}{5000}{5000}", "(a+)+$", "(a|aa)+$", "(a|a)*b", "([a-z]+)*@", "(.*a){20}", ".*.*.*.*=.*", "(x+x+)+y",
    "^(([a-z])+.)+[A-Z]([a-z])+$", "a{1,10000}", "(a{1,100}){1,100}", "((a{1,50}){1,50}){1,50}", "(((a{9}){9}){9}){9}",
    "(a?){500}a{500}", "[가-힣]{1,3000}", r"\p{L}{500}", r"(\p{L}\p{N}){300}", "(?:a|b|ab|ba|aba)*c" * 20, "(.*)*" * 50,
    "(ab*){0,2000}", "(a|b)*a(a|b){14}", "(a|b)*a(a|b){40}", "(a|b)*a(a|b){400}",
    "(" * 60 + "a" + ")*" * 60, "[^a]{4000}",
    "|".join(f"word{n}" for n in range(800)), ".{0,5000}x.{0,5000}", "(?i)(straße|ſ|K){300}", "a{0,65535}" * 3,
)  # fmt: skip
"""Patterns that take long where they are read carelessly. Some do no harm to a compiler without backtracking."""
UNREADABLE: Final = (
    "(?=a)a", "(?!a)b", "(?<=a)b", "(?<!a)b", r"(a)\1", r"(?P<x>a)(?P=x)", r"\bword\b", r"\Ba", "(", ")", "[", "a{2,1}",
    "*a", "a**{", r"\p{Nothing}", r"\p{L", r"\u{110000}", r"\xZZ", r"\k<x>", "(?<n", "(?z)a", "a{1,99999999999}", "\\",
    "[z-a]", r"[\d-z]\q", "(?x) a # b", "[]", "[^]", "(" * 5_000,
)  # fmt: skip


def _regexes() -> Iterator[Made]:
    for pattern in BOMBS:
        yield _regex(pattern), True
    for pattern in UNREADABLE:
        yield _regex(pattern), pattern in ("(?x) a # b", "[]", "[^]")
    for size in (1_000, 8_000, 32_000, 250_000):
        for part in ("a?", "(a|b)", "[a-z]{9}", ".*", "(x", "\\", "[", "|", r"\p{L}", "가"):
            yield _regex(part * (size // len(part))), True


# -- Lark -------------------------------------------------------------------------------------------------------------


def _lark_rules() -> Iterator[Made]:
    for length in (10, 20, 30, 60):
        doubling = "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(length))
        yield _lark(f'start: r0\n{doubling}\nr{length}: "a"'), True
        doubling = "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(length))
        yield _lark(f'start: T0\n{doubling}\nT{length}: "a"'), True
        doubling = "\n".join(f"T{n}: (T{n + 1} | T{n + 1})*" for n in range(length))
        yield _lark(f'start: T0\n{doubling}\nT{length}: "a"'), True
    for number in (1_000, 5_000):
        yield (
            _lark(
                "start: "
                + " | ".join(f"r{n}" for n in range(number))
                + "".join(f'\nr{n}: "{n}"' for n in range(number))
            ),
            True,
        )
        yield _lark("start: " + " ".join(f'"{n}"?' for n in range(number))), True
    for depth in (100, 1_000, 10_000, 100_000):
        yield _lark("start: " + "(" * depth + '"a"' + ")" * depth), True
        yield _lark("start: " + "(" * depth)
    for most in (1_000, 100_000, 10**9, 10**20):
        yield _lark(f'start: "a"{{1,{most}}}'), True
        yield _lark(f'start: ("a" "b"?){{{most}}}'), True
        yield _lark(f"start: A\nA: /[a-z]/{{0,{most}}}"), True


def _lark_without_end() -> Iterator[Made]:
    for text in (
        "start: start", "start: a\na: b\nb: a", "start: T\nT: T", 'start: T\nT: "a" U\nU: T', "start: a a\na: start",
        "start: start start", "start: nothing", "start: NOTHING", 'begin: "a"', "",
        "start: A & B", "start: /[/", "start: /a/ /(?=b)/", 'start: "a', "start: ^", "%ignore", "start: a.b",
        "start: 5", "%import common.NOTHING", "%import os.system", "%declare X\nstart: X", "%override start",
        "start: @other", 'start: "a" -> b c',
        'a{x}: x\nstart: a{"b"}', 'start: "\\q"', 'start: "\\ud800"', "start: /a/q", "start: ~a",
        '{"grammars": []}', '{"grammars": [{"json_schema": {"typ": 1}}]}', '[{"lark_grammar": "start: 1"}]',
    ):  # fmt: skip
        yield _lark(text)
    for text in (
        'start: start "a" | "a"',
        'start: start start | "a"',
        'start: (("a"*)*)*',
        'start: ("a" | "a" | "aa")*',
        'start: a\na: "" | a a',
    ):
        yield _lark(text), True


def _lark_directives() -> Iterator[Made]:
    for name in ("temperature", "max_tokens", "capture", "stop_capture", "unknown"):
        for value in ("=1", '="x"', "=0.5, lazy"):
            yield _lark(f'start: a\na[{name}{value}]: "b"')
    for token in (
        "<[1]>",
        "<[0-5]>",
        "<[^1]>",
        "<[*]>",
        "<|im_end|>",
        "<end>",
        "<eos>",
        "</s>",
        "<[999999]>",
        "<[-1]>",
    ):
        yield _lark(f'start: "a" {token}')
    for schema in (
        '{"typ": 1}',
        '{"not": {}}',
        '{"$ref": "file:///etc/passwd"}',
        "{",
        "",
        "5",
        '{"const": "\\u0000"}',
        "[" * 5_000,
    ):
        yield _lark(f"start: %json {schema}")
    yield _lark('%llguidance {"allow_invalid_utf8": true}\nstart: "a"')
    for part in ("a[\n", "\n", r"\/", "/a", '"a', "<a", "%json {} ", "[", "[a]", "#", r"/\\"):
        yield _lark("start: /" + part * (32_000 // len(part))), part in ("\n", "#", "/a", r"/\\")
        yield _lark(part * (32_000 // len(part)))


PATTERNS: Final = (_regexes,)
LARK: Final = (_lark_rules, _lark_without_end, _lark_directives)
