"""A grammar says what an answer must look like. Its text is in the language of llguidance; every dialect's field
becomes one here.

    JSON schema   {"type": "object", …}     the value alone, as Python's json.dumps writes it: `{"a": 1, "b": [2, 3]}`
    regex         [0-9]{3}-[0-9]{4}         the whole answer
    choice        ["yes", "no"]             one of the texts
    Lark          start: "a" | "b"          see llguidance's documentation of its grammar
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from service.errors import InvalidRequest, UnsupportedField
from service.grammars.json_schema import followed

MAX_GRAMMAR_BYTES: Final = 256 * 1024
_JSON_OPTIONS: Final = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "coerce_one_of": False,
    "lenient": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
"""A value has one way of being written: a model cannot write blanks without an end, more tokens are certain, and a
name that is taken cannot come again as `\\u0061`. Of control characters only \\n, \\r, \\t, \\b and \\f have one."""
_TEMPERATURE: Final = re.compile(r"^\s*[\w-]+\s*\[[^\]]*\btemperature\s*=", re.MULTILINE)


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
        return cls(f'{{"grammars": [{{"json_schema": {_kept(schema, field)}}}]}}', field)

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
        """Returns the grammar of exactly these texts. Raises InvalidRequest if there are none."""
        texts = " | ".join(_quoted(each) for each in options)
        if not texts:
            raise InvalidRequest(f"`{field}` has no option: send one", param=field)
        return cls(f"start: {texts}", field)

    def or_else(self, other: Grammar) -> Grammar:
        """Returns the grammar of the answers that fit one of the two."""
        named = [{"name": name, **_definition(each.text)} for name, each in (("first", self), ("second", other))]
        text = json.dumps({"grammars": [{"lark_grammar": "start: @first | @second"}, *named]}, ensure_ascii=False)
        return Grammar(text, self.field)

    @classmethod
    def of_lark(cls, text: str, field: str) -> Grammar:
        """Returns a grammar in llguidance's variant of Lark, whose first rule is `start`. Raises UnsupportedField for a
        rule's temperature."""
        if _TEMPERATURE.search(text):
            raise UnsupportedField(
                f"`{field}` cannot act: a rule has a temperature; send `temperature` for the whole answer", param=field
            )
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
    return f"%json {_kept(schema, field)}"


def _kept(schema: Any, field: str) -> str:
    """Returns the JSON of a schema as the compiler reads it."""
    try:
        kept = {**followed(_parsed(schema, field), field), "x-guidance": _JSON_OPTIONS}
        return json.dumps(kept, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequest(f"`{field}` is nested too deep: make it flatter", param=field) from None
    except ValueError:  # an integer of thousands of digits
        raise InvalidRequest(f"`{field}` holds a number with too many digits: correct it", param=field) from None


def _parsed(schema: Any, field: str) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        raise InvalidRequest(
            f"`{field}` is a string that is not the JSON of a schema: correct it", param=field
        ) from None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _escaped(pattern: str) -> str:
    """Returns the pattern as it stands between two slashes."""
    written, is_escaped = "", False
    for character in pattern:
        if character in "/\n" and not is_escaped:
            written += "\\"
        written += "n" if character == "\n" else character
        is_escaped = character == "\\" and not is_escaped
    return written
