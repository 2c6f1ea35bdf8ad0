"""Scans find where a value ends in a text that grows. They look at brackets and strings only, once each."""

from __future__ import annotations

import re
from typing import Final

_STOPS: Final = re.compile(r"[\\\"'{}\[\](),\s\x00-\x1f]")
_CONTROL: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class ObjectScan:
    """Follows one value from its first character. Control characters in strings, which JSON does not allow there, are
    told with their escapes, for models write line ends as they are."""

    def __init__(self, quotes: str = '"', is_word: bool = False) -> None:
        """A word ends before a blank, a comma or a closing bracket."""
        self.is_ended = False
        self._depth = 0
        self._quotes = quotes
        self._quote = ""
        self._is_escaped = False
        self._is_word = is_word

    def feed(self, text: str) -> tuple[int, str]:
        """Returns how many of the characters belong to the value, and them as JSON writes them."""
        parts, at = list[str](), 0
        for found in _STOPS.finditer(text):
            start, character = found.start(), found[0]
            if self._is_escaped and start > at:
                self._is_escaped = False
            parts.append(text[at:start])
            at = start
            if self._stops(character):
                return at, "".join(parts)
            parts.append(self._written(character))
            at += 1
            if self.is_ended:
                return at, "".join(parts)
        if at < len(text):
            self._is_escaped = False
        parts.append(text[at:])
        return len(text), "".join(parts)

    def _stops(self, character: str) -> bool:
        """Whether a word ends before this character."""
        self.is_ended = self._is_word and not self._quote and (character.isspace() or character in ",}])")
        return self.is_ended

    def _written(self, character: str) -> str:
        if self._quote:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == self._quote:
                self._quote = ""
            elif character < " ":
                return _CONTROL.get(character, f"\\u{ord(character):04x}")
        elif character in self._quotes:
            self._quote = character
        elif character in "{[(":
            self._depth += 1
        elif character in "}])":
            self._depth -= 1
            self.is_ended = self._depth <= 0
        return character


def string_end(text: str, is_escaped: bool) -> tuple[int | None, bool]:
    """Returns the place behind the quote that ends a string; None where the string goes on, and whether the character
    that comes next is escaped."""
    for at, character in enumerate(text):
        if is_escaped:
            is_escaped = False
        elif character == "\\":
            is_escaped = True
        elif character == '"':
            return at + 1, False
    return None, is_escaped
