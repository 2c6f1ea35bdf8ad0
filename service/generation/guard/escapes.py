"""JSON writes some characters of a string as escapes, in which scanners must not take letters for text.

    text      "Contact:\\njohn@example.com"      as the model writes it, a backslash and an n
    scanners  "Contact:\\·john@example.com"      a mark for each character of the escape that is no text
              "john\\u0040example.com" is "john\\····@example.com"

Of escapes with four digits only the sign @ and letters beyond ASCII are read: a match that began with another escaped
character would begin inside the escape, and a mask would break the JSON. An escape behind an escaped backslash is none.
The length stays the same. What a character becomes depends on it and the characters before it alone, never on how the
text was cut.
"""

from __future__ import annotations

from typing import Final

BACKSLASH: Final = "\\"
_MARKED: Final = frozenset("bfnrtu")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_FIRST_MARK: Final = 0x10F000  # of Unicode's last private area
_MARKS: Final = frozenset(chr(_FIRST_MARK + ord(each)) for each in _MARKED | _HEX)
_LONGEST: Final = len(r"\u0040")
BEFORE: Final = _LONGEST - 1
"""How many characters of an escape of six stand before the character that it stands for."""
FULL_WIDTH: Final = range(0xFF01, 0xFF5F)


class Escapes:
    """One sequence's text, as scanners read it."""

    def __init__(self) -> None:
        self._escape = ""  # the characters of the escape that the text so far ends with

    def read(self, text: str) -> str:
        """Returns the next text, with marks and with the characters that escapes stand for."""
        if not self._escape and BACKSLASH not in text:
            return text
        return "".join(map(self._read, text))

    def _read(self, character: str) -> str:
        escape, self._escape = self._escape + character, ""
        if escape == BACKSLASH or escape == BACKSLASH + "u":
            self._escape = escape
        if len(escape) <= 2:
            return _mark(character) if len(escape) == 2 and character in _MARKED else character
        if character not in _HEX:
            return self._read(character)
        if len(escape) < _LONGEST:
            self._escape = escape
            return _mark(character)
        code = int(escape[2:], 16)
        return chr(code) if _is_read(code) else _mark(character)


def _is_read(code: int) -> bool:
    is_letter = code > 0x7F and code not in FULL_WIDTH and chr(code).isalpha()
    return is_letter or chr(code) == "@"


def _mark(character: str) -> str:
    return chr(_FIRST_MARK + ord(character))


def is_mark(character: str) -> bool:
    return character in _MARKS


def written(character: str) -> str:
    """Returns the character that a mark stands for, and every other character as it is."""
    return chr(ord(character) - _FIRST_MARK) if is_mark(character) else character


def is_escaped(text: str, place: int) -> bool:
    """Returns whether the character at `place` is one that an escape of six characters stands for."""
    start = place - BEFORE
    return start >= 0 and text[start] == BACKSLASH and all(map(is_mark, text[start + 1 : place]))


def begun(text: str) -> int:
    """Returns how many characters at the end of the text may be the beginning of an escape."""
    end = text[-BEFORE:]
    place = end.rfind(BACKSLASH)
    return len(end) - place if place >= 0 and all(map(is_mark, end[place + 1 :])) else 0
