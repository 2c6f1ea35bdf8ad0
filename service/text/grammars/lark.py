"""Lark grammars of clients: what the compiler would take without acting on it, or only with one vocabulary, is refused
here. A schema inside one is read as every other schema is, and its JSON as strictly as a request's body.

    start: "a" %json {"type": "integer"}      the schema is replaced by what the compiler keeps of it
    start: a  a[temperature=0.5]: "b"         refused, as is what else would not act
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn

from service.errors import InvalidRequest, UnsupportedField

_PART: Final = re.compile(
    r""""(?:\\.|[^"\\\n])*(?:["\n]|\\?\Z)|//[^\n]*|/(?:\\.|[^/\\])+(?:/|\\?\Z)|\#[^\n]*"""
    r"""|%[a-z]+|<[^<>\s]+>|[^"/\#%<]+|.""",
    re.DOTALL,
)
"""A text, a pattern, a comment, a directive, a special token, or what is none of these. A text or a pattern
without its end is one up to where it must end, so that reading takes time by the length alone."""
_ATTRIBUTES: Final = re.compile(r"\[([^\[\]]*)\]\s*:")
_NAME: Final = re.compile(r"[a-z_]+")
_BLANKS: Final = re.compile(r"\s*")
_INSTEAD: Final[Mapping[str, str]] = {
    "temperature": "send `temperature` for the whole answer",
    "max_tokens": "bound the rule's pattern, as in /[a-z]{1,20}/, or send `max_tokens` for the whole answer",
    "capture": "remove it and read the answer",
    "capture_name": "remove it and read the answer",
    "stop_capture": "remove it and read the answer",
}
"""Attributes of a rule that do not act: the answer is one text, of tokens that depend on no vocabulary."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refused)
"""Raises ValueError for what is no JSON, for NaN and Infinity, and for a name that comes twice in an object."""


def followed_lark(text: str, field: str, kept: Callable[[Any], str]) -> str:
    """Returns the grammar as the compiler can keep it. `kept` returns the JSON of a schema as the compiler reads it.
    Raises UnsupportedField, InvalidRequest."""
    if text.lstrip()[:1] in ("{", "["):  # the compiler would read it as JSON
        raise InvalidRequest(f'`{field}` begins with a bracket: write a Lark grammar, as in `start: "a"`', param=field)
    written, bare, place = list[str](), list[str](), 0
    while place < len(text):
        match = _PART.match(text, place)
        assert match is not None
        part, place = match[0], match.end()
        _require_acts(part, field)
        if part == "%json":
            schema, place = _schema(text, place, field)
            part = f"%json {kept(schema)}"
        written.append(part)
        bare.append(part if part[0] not in '"/#%' else " ")
    for name in _attributes("".join(bare)):
        if name in _INSTEAD:
            raise UnsupportedField(f"`{field}` cannot act: a rule has `{name}`; {_INSTEAD[name]}", param=field)
    return "".join(written)


def _require_acts(part: str, field: str) -> None:
    if part == "%llguidance":
        raise UnsupportedField(f"`{field}` cannot act: it has options behind `%llguidance`; remove them", param=field)
    if len(part) > 2 and part[0] == "<":
        raise UnsupportedField(
            f'`{field}` cannot act: `{part[:40]}` is a token of one vocabulary; write its text, as in "<"', param=field
        )


def _schema(text: str, place: int, field: str) -> tuple[Any, int]:
    """Returns the JSON value behind `%json`, and the place behind it."""
    blanks = _BLANKS.match(text, place)
    try:
        return DECODER.raw_decode(text, blanks.end() if blanks else place)
    except (ValueError, RecursionError):
        raise InvalidRequest(
            f"`{field}` has a `%json` without a JSON schema behind it: correct it", param=field
        ) from None


def _attributes(bare: str) -> Iterator[str]:
    """Yields the words between the brackets of rules' heads, of a grammar without its texts."""
    for match in _ATTRIBUTES.finditer(bare):
        yield from _NAME.findall(match[1])
