"""Tool arguments are read from JSON text and written back; marked values keep marks around them in a template's output.

{"city": "Seoul", "days": 3}  ─ tojson ─▶  ⟦{"city": "Seoul", "days": 3}⟧      one mark around all of it
                              ─ items ──▶  ⟦city⟧ ⟦Seoul⟧ ⟦days⟧ 3            or around each text
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Final, NoReturn

from service.errors import InvalidRequest

Value = object
MOST_LEVELS: Final = 32


def parsed(text: str) -> dict[str, Value]:
    """Returns a JSON object; an empty text is an empty object, because clients send that. Raises InvalidRequest for any
    other text."""
    try:
        value = loaded(text or "{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"A tool call's arguments must be a JSON object as text, of {MOST_LEVELS} levels at most and without lone "
            "surrogates.",
            param="messages",
        )
    return value


def loaded(text: str, levels: int = MOST_LEVELS) -> Value:
    """Returns a JSON value of `levels` levels at most, whose numbers are finite and whose texts are Unicode: half of a
    surrogate pair, as in "\\ud83d", is none. Raises ValueError for any other text."""
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_refuse)
        written(value).encode()
        fits = _levels(value) <= levels
    except RecursionError:
        fits = False
    if not fits:
        raise ValueError(f"more than {levels} levels")
    return value


def is_object(text: str) -> bool:
    """Whether the text is a JSON object that may be sent as arguments."""
    try:
        return bool(text) and parsed(text) is not None
    except InvalidRequest:
        return False


INVALID: Final = "INVALID_JSON"
"""The member that holds a text that is no JSON, as Anthropic's documentation names it."""


def whole(text: str) -> str:
    """Returns the text of an object. What only begins as one is a member INVALID of another: an answer may hold such
    arguments, and a client sends them back. Raises as `parsed` for any other text."""
    try:
        parsed(text)
    except InvalidRequest:
        if not text.lstrip().startswith("{"):
            raise
        return written({INVALID: text})
    return text


def original(text: str) -> str:
    """Returns the text that `whole` made this one of."""
    try:
        value = parsed(text)
    except InvalidRequest:
        return text
    said = value.get(INVALID) if len(value) == 1 else None
    return said if isinstance(said, str) and not is_object(said) else text


def written(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False)


def strings(value: Value) -> Iterator[str]:
    """Yields every text in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def mapped(value: Value, change: Callable[[str], str]) -> Value:
    """Returns a copy with every text changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        changed = {change(key): mapped(item, change) for key, item in value.items()}
        return JsonObject(changed) if isinstance(value, JsonObject) else changed
    return [mapped(item, change) for item in value] if isinstance(value, list) else value


class JsonObject(dict[str, Value]):
    """An object that is its JSON where a template writes it as a text: `'…' + call.function.arguments + '…'`."""

    def __str__(self) -> str:
        return written(self)

    def __add__(self, text: str) -> str:
        return f"{self}{text}"

    def __radd__(self, text: str) -> str:
        return f"{text}{self}"


class Marked:
    """A value that a template writes between `opening` and `closing` when it writes the whole value at once."""

    _plain: Value
    _marks: tuple[str, str]

    def dumped(self, dump: Callable[[Value], str]) -> str:
        opening, closing = self._marks
        return f"{opening}{dump(self._plain)}{closing}"

    def __str__(self) -> str:
        return self.dumped(str)


class MarkedObject(Marked, JsonObject):
    """A JSON object that replaces `plain` and has other texts."""

    def __init__(self, value: Mapping[str, Value], plain: Value, opening: str, closing: str) -> None:
        super().__init__(value)
        self._plain, self._marks = plain, (opening, closing)


class MarkedList(Marked, list[Value]):
    def __init__(self, value: Iterable[Value], plain: Value, opening: str, closing: str) -> None:
        super().__init__(value)
        self._plain, self._marks = plain, (opening, closing)


def enclosed(value: Value, opening: str, closing: str) -> Value:
    """Returns a copy whose texts, objects and lists are written between two marks. Numbers get no marks."""
    if isinstance(value, str):
        return f"{opening}{value}{closing}" if value else value
    if isinstance(value, Mapping):
        items = {str(enclosed(key, opening, closing)): enclosed(item, opening, closing) for key, item in value.items()}
        return MarkedObject(items, value, opening, closing)
    if isinstance(value, list):
        return MarkedList([enclosed(item, opening, closing) for item in value], value, opening, closing)
    return value


def _levels(value: Value) -> int:
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return 1 + max(map(_levels, inside), default=0) if inside else 0


def _finite(text: str) -> float:
    return float(text) if isfinite(float(text)) else _refuse(text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
