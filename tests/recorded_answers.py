"""This module makes recorded answers fit to be kept in a file: ids and times are made up, long lists are cut, and
nothing of the machine that recorded them is left."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

BEGIN: Final = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
"""When the recording began, as the examples tell it."""
HEX: Final = re.compile(r"(?<![0-9a-zA-Z.])(?=\d*[a-f])[0-9a-f]{12,}(?![0-9a-zA-Z])")
NAMED: Final = re.compile(r"\b(s|m|k)_[0-9A-Za-z_-]{22}(?![0-9A-Za-z_-])")
"""Ids of sessions, messages and documents."""
EPOCH: Final = re.compile(r"(?<![\d.])1[789]\d{8}(?!\d)")
TIME: Final = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?")
FLOATS, ENTRIES, LINES = 4, 32, 24
"""The most that is kept of a vector, of another list, and of a text's lines."""


class Wording:
    """Rewrites the answers of one recording. The same id is rewritten to the same one everywhere."""

    def __init__(self, replaced: Mapping[str, str]) -> None:
        """`replaced` are texts of this machine, and what stands for them."""
        self._replaced = replaced
        self._ids: dict[str, str] = {}
        self._told: Counter[str] = Counter()
        self._began = datetime.now(UTC)

    def settled(self, operation: str, answer: Any) -> Any:
        """Returns the answer as the file has it."""
        if isinstance(answer, str):
            lines = answer.splitlines(keepends=True)
            return self._text(operation, "".join(lines[:LINES]))
        return self._value(operation, answer)

    def _value(self, operation: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._value(operation, each) for name, each in value.items()}
        if isinstance(value, list):
            most = FLOATS if all(isinstance(each, float) for each in value) else ENTRIES
            return [self._value(operation, each) for each in value[:most]]
        if isinstance(value, str):
            return self._text(operation, value)
        if isinstance(value, int | float) and EPOCH.match(str(value)):
            return type(value)(self._moved(datetime.fromtimestamp(value, UTC)).timestamp())
        return value

    def _text(self, operation: str, text: str) -> str:
        for found, told in self._replaced.items():
            text = text.replace(found, told)
        text = HEX.sub(lambda found: self._id(operation, found[0]), text)
        text = NAMED.sub(lambda found: f"{found[1]}_{self._id(operation, found[0])[:22]}", text)
        text = EPOCH.sub(
            lambda found: str(int(self._moved(datetime.fromtimestamp(int(found[0]), UTC)).timestamp())), text
        )
        return TIME.sub(lambda found: self._time(found[0]), text)

    def _id(self, operation: str, found: str) -> str:
        """Returns an id of the same length, made of the operation that told it first; the short form of a digest is the
        beginning of the whole one's."""
        key = found[:12]
        if key not in self._ids:
            self._told[operation] += 1
            self._ids[key] = hashlib.sha256(f"{operation} {self._told[operation]}".encode()).hexdigest()
        return self._ids[key][: len(found)]

    def _time(self, found: str) -> str:
        moved = self._moved(datetime.fromisoformat(found).replace(tzinfo=UTC)).isoformat(timespec="microseconds")
        return moved[: len(found)]

    def _moved(self, told: datetime) -> datetime:
        return BEGIN + max(told - self._began, timedelta(0))


def same_but_for_numbers(one: Any, other: Any) -> bool:
    """Returns whether two answers say the same but for what is measured."""
    return json.dumps(_without_numbers(one)) == json.dumps(_without_numbers(other))


def _without_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_numbers(each) for each in value]
    if isinstance(value, str):
        return TIME.sub("", re.sub(r"\d+(\.\d+)?", "0", value))
    return 0 if isinstance(value, int | float) and not isinstance(value, bool) else value
