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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from service.errors import InvalidRequest, UnsupportedField
from service.text.grammars.json_schema import followed
from service.text.grammars.json_values import Extent
from service.text.grammars.lark import DECODER, followed_lark

MAX_GRAMMAR_BYTES: Final = 256 * 1024
ANY: Final = r"(.|\n)"
"""One character, in a regex."""
MAX_TEXT_BYTES: Final = 32 * 1024
"""Of a regex or a Lark grammar, which are read character by character beside other requests."""
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
_LONGEST_PLACE: Final = 200
_TO_ESCAPE: Final = re.compile(r"\\[^\n]|\\?\n|/")
_FLAGS_AND_CLASSES: Final = re.compile(r"\\.|\[\^?\]?|\]|\(\?([imsRUux-]*)[:)]", re.DOTALL)
_ESCAPED: Final = {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}


@dataclass(frozen=True, slots=True)
class Grammar:
    """`text` is the grammar as llguidance reads it; `field` is the request's field that holds it, for errors. `marks`
    are the ids in it of a version's control tokens. `begun` is what the answer goes on from: the beginning of a text
    that fits."""

    text: str
    field: str
    marks: tuple[int, ...] = ()
    begun: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidRequest for a text that is too long or no well-formed Unicode."""
        _require_size(self.text, self.field)

    @classmethod
    def of_json_schema(cls, schema: Any, field: str) -> Grammar:
        """Returns the grammar of the JSON values that `schema` allows: an object, a boolean, or its JSON text. Raises
        InvalidRequest, UnsupportedField."""
        return cls(f'{{"grammars": [{{"json_schema": {_kept(schema, field, Extent())}}}]}}', field)

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
        _require_size(pattern, field, MAX_TEXT_BYTES)
        if _is_verbose(pattern):
            raise UnsupportedField(
                f"`{field}` cannot act with the flag `x`: write the pattern without blanks and comments", param=field
            )
        return cls(f"start: PATTERN\nPATTERN: /{_escaped(pattern)}/", field)

    @classmethod
    def of_choice(cls, options: Iterable[str], field: str) -> Grammar:
        """Returns the grammar of exactly these texts. Raises InvalidRequest if there are none."""
        texts = " | ".join(_quoted(each) for each in options)
        if not texts:
            raise InvalidRequest(f"`{field}` has no option: send one", param=field)
        return cls(f"start: {texts}", field)

    @property
    def trial(self) -> str:
        """Returns the text for a vocabulary that is smaller than the version's: with other ids for `marks`."""
        text = self.text
        for number, mark in enumerate(self.marks):
            text = text.replace(token(mark), token(number))
        return text

    def or_else(self, other: Grammar) -> Grammar:
        """Returns the grammar of the answers that fit one of the two."""
        return self._within("start: @first | @second", (("first", self), ("second", other)))

    def behind(self, text: str, ids: Mapping[str, int]) -> Grammar:
        """Returns the grammar of a text, and then this."""
        return self._within(f"start: {text_rule(text, ids)} @behind", (("behind", self),), tuple(ids.values()))

    def behind_reasoning(
        self, opening: str, closing: str, ids: Mapping[str, int], is_open: bool, lead: str = ""
    ) -> Grammar:
        """Returns the grammar of any text up to the closing mark, and then this, with `lead` between. `ids` has the
        marks that are control tokens. `is_open`: the prompt has opened the reasoning; else the answer may also have
        none."""
        think = f"TEXT? {token(ids[closing])}" if closing in ids else "rest"
        begun = text_rule(opening, ids)
        begun = begun if "<[" in begun else "begun"  # lazy: content that begins so is reasoning
        think_then = f"think BLANK? {text_rule(lead, ids)}"
        start = f"{think_then} @content" if is_open else f"({begun} {think_then})? @content"
        rest = f"rest[suffix={_quoted(closing)}]: /{ANY}*/"
        lazy = f"begun[lazy]: {_quoted(opening)}"
        lines = (f"start: {start}", f"think: {think}", rest, lazy, f"TEXT: /{ANY}+/", r"BLANK: /\n{1,2}/")
        return self._within("\n".join(lines), (("content", self),), tuple(ids.values()))

    def _within(self, start: str, named: Iterable[tuple[str, Grammar]], marks: tuple[int, ...] = ()) -> Grammar:
        grammars: list[dict[str, Any]] = [{"lark_grammar": start}]
        for name, each in named:
            grammars += _definitions(each.text, name)
            marks += each.marks
        return Grammar(json.dumps({"grammars": grammars}, ensure_ascii=False), self.field, tuple(dict.fromkeys(marks)))

    @classmethod
    def of_lark(cls, text: str, field: str) -> Grammar:
        """Returns a grammar in llguidance's variant of Lark, whose first rule is `start`. Raises InvalidRequest,
        UnsupportedField."""
        _require_size(text, field, MAX_TEXT_BYTES)
        extent = Extent()
        return cls(followed_lark(text, field, lambda schema: _kept(schema, field, extent)), field)


def _require_size(text: str, field: str, most: int = MAX_GRAMMAR_BYTES) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"`{field}` holds a lone surrogate: send well-formed Unicode", param=field) from None
    _require_bytes(size, field, most)


def _require_bytes(size: int, field: str, most: int) -> None:
    if size > most:
        raise InvalidRequest(
            f"`{field}` has {size} bytes as a grammar; {most} are the most: make it shorter", param=field
        )


def token(id: int) -> str:
    """Returns a part of a Lark rule: the control token itself."""
    return f"<[{id}]>"


def text_rule(text: str, ids: Mapping[str, int]) -> str:
    """Returns a part of a Lark rule: a text in which some texts are control tokens; "" for an empty text."""
    parts = re.split("(" + "|".join(map(re.escape, sorted(ids, key=len, reverse=True))) + ")", text) if ids else [text]
    return " ".join(token(ids[part]) if part in ids else literal(part) for part in parts if part)


def literal(text: str) -> str:
    return _quoted(text)


def exactly(text: str) -> str:
    """Returns a part of a pattern between slashes: this text."""
    return _escaped(re.escape(text))


def _definitions(text: str, name: str) -> list[dict[str, Any]]:
    """Returns a grammar's text as parts of a larger one, the first of them with this name."""
    if not text.startswith("{"):
        return [{"name": name, "lark_grammar": text}]
    first, *others = json.loads(text)["grammars"]
    return [{"name": name, **first}, *others]


def json_rule(schema: Any, field: str, extent: Extent) -> str:
    """Returns a part of a Lark rule: the JSON values that `schema` allows. Raises InvalidRequest, UnsupportedField."""
    return f"%json {_kept(schema, field, extent)}"


def _kept(schema: Any, field: str, extent: Extent) -> str:
    """Returns the JSON of a schema as the compiler reads it."""
    try:
        kept = {**followed(_parsed(schema, field), field, extent), "x-guidance": _JSON_OPTIONS}
        text = json.dumps(kept, ensure_ascii=False)
    except UnsupportedField as error:
        place = error.param or field
        raise UnsupportedField(error.message.replace(place, _short(place), 1), param=_short(place)) from None
    except RecursionError:
        raise InvalidRequest(f"`{field}` is nested too deep: make it flatter", param=field) from None
    except ValueError:  # an integer of thousands of digits
        raise InvalidRequest(f"`{field}` holds a number with too many digits: correct it", param=field) from None
    extent.written += len(text)
    _require_bytes(extent.written, field, MAX_GRAMMAR_BYTES)
    return text


def _short(place: str) -> str:
    """Returns a place in a schema as an error names it: the names of properties are the client's."""
    return place if len(place) <= _LONGEST_PLACE else f"{place[: _LONGEST_PLACE // 2]}…{place[-_LONGEST_PLACE // 2 :]}"


def _parsed(schema: Any, field: str) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return DECODER.decode(schema)
    except (ValueError, RecursionError):
        raise InvalidRequest(
            f"`{field}` is a string that is not the JSON of a schema: correct it", param=field
        ) from None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_verbose(pattern: str) -> bool:
    """Returns whether a flag turns blanks and comments into nothing, in linear time."""
    depth = 0  # of classes
    for part in _FLAGS_AND_CLASSES.finditer(pattern):
        if part[0].startswith("["):
            depth += 1
        elif part[0] == "]":
            depth = max(0, depth - 1)
        elif not depth and "x" in (part[1] or "").partition("-")[0]:
            return True
    return False


def _escaped(pattern: str) -> str:
    """Returns the pattern as it stands between two slashes."""
    return _TO_ESCAPE.sub(lambda part: _ESCAPED.get(part[0], part[0]), pattern)
