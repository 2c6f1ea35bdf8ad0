"""A grammar says what an answer must look like. Its text is in the language of llguidance; every dialect's field
becomes one here.

    JSON schema   {"type": "object", …}     the value alone, as Python's json.dumps writes it: `{"a": 1, "b": [2, 3]}`
    regex         [0-9]{3}-[0-9]{4}         the whole answer
    choice        ["yes", "no"]             one of the texts
    Lark          start: "a" | "b"          see llguidance's documentation of its grammar
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from service.errors import InvalidRequest
from service.grammars.json_schema import followed

MAX_GRAMMAR_BYTES: Final = 256 * 1024
_JSON_OPTIONS: Final = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "coerce_one_of": False,
    "lenient": False,
}
"""A value has one way of being written: a model cannot write blanks without an end, and more tokens are certain."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """`text` is the grammar as llguidance reads it; `field` is the request's field that holds it, for errors."""

    text: str
    field: str

    def __post_init__(self) -> None:
        """Raises InvalidRequest for a text that is too long or no well-formed Unicode."""
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"`{self.field}` holds a lone surrogate: send well-formed Unicode", param=self.field
            ) from None
        if size > MAX_GRAMMAR_BYTES:
            raise InvalidRequest(
                f"`{self.field}` has {size} bytes as a grammar; {MAX_GRAMMAR_BYTES} are the most: make it shorter",
                param=self.field,
            )

    @classmethod
    def of_json_schema(cls, schema: Any, field: str) -> Grammar:
        """Returns the grammar of the JSON values that `schema` allows: an object, a boolean, or its JSON text. Raises
        InvalidRequest, UnsupportedField."""
        return cls(json.dumps({"grammars": [{"json_schema": _kept(schema, field)}]}, ensure_ascii=False), field)

    @classmethod
    def of_json_object(cls, field: str) -> Grammar:
        """Returns the grammar of all JSON objects."""
        return cls.of_json_schema({"type": "object"}, field)

    @classmethod
    def of_regex(cls, pattern: str, field: str) -> Grammar:
        """Returns the grammar of the texts that the pattern matches as a whole (syntax of Rust's regex crate, without
        look-around)."""
        if not pattern:
            raise InvalidRequest(f"`{field}` is empty, which only an empty answer fits: send a pattern", param=field)
        return cls(f"start: PATTERN\nPATTERN: /{_escaped(pattern)}/", field)

    @classmethod
    def of_choice(cls, options: Iterable[str], field: str) -> Grammar:
        """Returns the grammar of exactly these texts."""
        texts = " | ".join(json.dumps(each, ensure_ascii=False) for each in options)
        return cls(f"start: {texts}", field)

    def or_else(self, other: Grammar) -> Grammar:
        """Returns the grammar of the answers that fit one of the two."""
        named = [{"name": name, **_definition(each.text)} for name, each in (("first", self), ("second", other))]
        text = json.dumps({"grammars": [{"lark_grammar": "start: @first | @second"}, *named]}, ensure_ascii=False)
        return Grammar(text, self.field)

    @classmethod
    def of_lark(cls, text: str, field: str) -> Grammar:
        """Returns a grammar in llguidance's variant of Lark, whose first rule is `start`."""
        return cls(text, field)


def _definition(text: str) -> dict[str, Any]:
    """Returns a grammar's text as a part of a larger one."""
    if not text.startswith("{"):
        return {"lark_grammar": text}
    [definition] = json.loads(text)["grammars"]
    assert isinstance(definition, dict)
    return definition


def json_rule(schema: Any, field: str) -> str:
    """Returns a part of a Lark rule: the JSON values that `schema` allows. Raises InvalidRequest, UnsupportedField."""
    return f"%json {json.dumps(_kept(schema, field), ensure_ascii=False)}"


def _kept(schema: Any, field: str) -> dict[str, Any]:
    return {**followed(_parsed(schema, field), field), "x-guidance": _JSON_OPTIONS}


def _parsed(schema: Any, field: str) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        raise InvalidRequest(
            f"`{field}` is a string that is not the JSON of a schema: correct it", param=field
        ) from None


def _escaped(pattern: str) -> str:
    """Returns the pattern as it stands between two slashes."""
    written, is_escaped = "", False
    for character in pattern:
        if character in "/\n" and not is_escaped:
            written += "\\"
        written += "n" if character == "\n" else character
        is_escaped = character == "\\" and not is_escaped
    return written
