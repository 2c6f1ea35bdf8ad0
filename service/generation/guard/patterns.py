"""The patterns find what names a person: e-mail addresses, phone numbers, payment cards, Korean resident registration
numbers. They know no actions. The address scanner starts from each `@`, so that no text is read twice.

A match begins and ends between digits and something else, and has a bounded width. A position where a match may begin
is decided as soon as the text from there on is no longer the beginning of a match, or is wider than any match:

    text   … call 010-1234-56        `open` reaches the end: a match may still come, the position is not decided
    text   … call 010-1234-56 and    it does not: decided, no match
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Final

from service.generation.guard.escapes import BEFORE, FULL_WIDTH, begun, is_escaped
from service.generation.guard.rules import Span

_DASHES = [*range(0x2010, 0x2016), 0x2212, 0xFE63]
_SPACES = [0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000]
_PLAIN = {code: code - 0xFEE0 for code in FULL_WIDTH} | dict.fromkeys(_DASHES, 0x2D) | dict.fromkeys(_SPACES, 0x20)
CARD_DIGITS: Final = range(13, 20)
_NUMBER = r"(?<![0-9])(?<![0-9]\.)"
"""Not behind a digit, nor behind a decimal point: one fraction in ten would pass as a card."""


def plain(text: str) -> str:
    """Returns the text with ASCII characters for full-width characters, dashes and spaces; the length stays the
    same."""
    return text if text.isascii() else text.translate(_PLAIN)


@dataclass(frozen=True, slots=True)
class Pattern:
    """`starts` finds single characters at which a match may begin. `open` matches from there to the text's end where
    later text may still make or lengthen a match. `end` returns the end of the longest match, or -1. No match is wider
    than `width`, and the number of steps of each expression is bounded by it."""

    starts: re.Pattern[str]
    open: re.Pattern[str]
    end: Callable[[str, int], int]
    width: int


class PatternScanner:
    """One sequence's search for a pattern. Matches may overlap, so that a wrong guess at a card does not hide the
    card."""

    def __init__(self, pattern: Pattern) -> None:
        self.certain = 0
        self._pattern = pattern

    def scan(self, text: str, at: int, new: int, final: bool) -> list[Span]:
        pattern, spans = self._pattern, list[Span]()
        for start in pattern.starts.finditer(text, self.certain - at):
            place = start.start()
            if not final and len(text) - place <= pattern.width and pattern.open.match(text, place):
                self.certain = at + place
                return spans
            end = pattern.end(text, place)
            if end >= 0:
                spans.append((at + place, at + end))
        self.certain = at + len(text)
        return spans


def _by(*expressions: str) -> Callable[[str, int], int]:
    """Returns a function that returns the end of the first expression that matches."""
    compiled = [re.compile(each) for each in expressions]

    def end(text: str, place: int) -> int:
        return next((match.end() for each in compiled if (match := each.match(text, place))), -1)

    return end


PHONE: Final = Pattern(
    starts=re.compile(r"(?<![0-9])[02-9]|[+(]"),
    open=re.compile(
        r"(?:[(+0]|82)(?:[-. ()+]{0,3}[0-9])*[-. ()+]{0,3}\Z"
        r"|[2-9][0-9]{0,2}\Z|[2-9][0-9]{2}[-.][0-9]{0,3}\Z|[2-9][0-9]{2}([-.])[0-9]{3}\1[0-9]{0,4}\Z"
    ),
    end=_by(
        # Korea, with a country code or 0: mobile, Seoul, the provinces, 070, 080, 050x
        r"\(?(?:\+?82[-. ]{0,2}(?:\(0\))?[-. ]?0?|0)(?:1[016-9]|2|[3-6][1-5]|70|80|50[0-9]?)"
        r"[-. )]{0,3}[0-9]{3,4}[-. ]{0,3}[0-9]{4}(?![0-9])",
        # any country's, with its + (E.164: up to 15 digits)
        r"\(?\+[1-9](?:[-. ()]{0,2}[0-9]){7,14}(?![0-9])",
        # North America's, in its national form
        r"(?:\([2-9][0-9]{2}\)[-. ]?[0-9]{3}[-. ]|[2-9][0-9]{2}([-.])[0-9]{3}\1)[0-9]{4}(?![0-9])",
    ),
    width=48,
)

_CARD = re.compile(r"[1-9](?:[ -]?[0-9]){12,18}")


def _card_end(text: str, place: int) -> int:
    """Returns the end of the longest run of 13 to 19 digits that passes Luhn's test; at most one space or hyphen stands
    between two digits."""
    match = _CARD.match(text, place)
    if match is None:
        return -1
    ends = [at + 1 for at in range(place, match.end()) if text[at] not in " -"]
    digits = [int(text[end - 1]) for end in ends]
    for count in range(len(digits), CARD_DIGITS.start - 1, -1):
        end = ends[count - 1]
        if text[end : end + 1] not in _DIGITS and passes_luhn(digits[:count]):
            return end
    return -1


_DIGITS = frozenset("0123456789")


def passes_luhn(digits: list[int]) -> bool:
    """Returns whether the digits pass Luhn's test: ISO/IEC 7812-1, annex B."""
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


CARD: Final = Pattern(
    starts=re.compile(_NUMBER + "[1-9]"),
    open=re.compile(r"[0-9](?:[ -]?[0-9])*[ -]?\Z"),
    end=_card_end,
    width=37,
)

_RESIDENT = re.compile(r"([0-9]{6})([ -]{0,3})([0-9]{7})(?![0-9])")
_CENTURIES = {"9": 1800, "0": 1800, "1": 1900, "2": 1900, "5": 1900, "6": 1900}
_RANDOM_SINCE = date(2020, 10, 1)


def _resident_end(text: str, place: int) -> int:
    match = _RESIDENT.match(text, place)
    if match is None or not is_resident_number(match[1] + match[3], separated=bool(match[2])):
        return -1
    return match.end()


def is_resident_number(digits: str, separated: bool) -> bool:
    """Returns whether the digits are a resident number: a date of birth, and a valid check digit where the 13 digits
    stand together. Numbers given since October 2020 have no check digit, also where they replace an older number; so a
    separated number is accepted without it."""
    try:
        year = _CENTURIES.get(digits[6], 2000) + int(digits[:2])
        born = date(year, int(digits[2:4]), int(digits[4:6]))
    except ValueError:
        return False
    return separated or born >= _RANDOM_SINCE or resident_check_digit(digits) == int(digits[12])


def resident_check_digit(digits: str) -> int:
    """Returns the check digit of the first 12 digits: weights 2 to 9 and 2 to 5, 11 less the sum modulo 11, modulo
    10."""
    return (11 - sum(int(digit) * (2 + at % 8) for at, digit in enumerate(digits[:12])) % 11) % 10


RESIDENT_NUMBER: Final = Pattern(
    starts=re.compile(_NUMBER + "[0-9]"),
    open=re.compile(r"[0-9]{1,6}\Z|[0-9]{6}[ -]{0,3}[0-9]{0,7}\Z"),
    end=_resident_end,
    width=16,
)

LONGEST: Final = 254
"""The most characters of an address (RFC 5321, errata 1690)."""
LONGEST_LOCAL: Final = 64
_LOCAL = string.ascii_letters + string.digits + "._%+-"
_RUN = re.compile(r"[A-Za-z0-9.-]*")
_DOMAIN = re.compile(r"(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z][A-Za-z0-9-]{0,61}[A-Za-z0-9]")


class AddressScanner:
    """One sequence's search. A text that may still become a local part is not certain: the last word, up to its 64th
    character from the end, and what may be the beginning of an escape behind it. Between the local part and the sign an
    escape may stand, which stands for the sign. An address ends with the last label that can be a top-level domain."""

    def __init__(self) -> None:
        self.certain = 0
        self._seen = 0  # signs before this position are decided

    def scan(self, text: str, at: int, new: int, final: bool) -> list[Span]:
        spans = list[Span]()
        sign = text.find("@", self._seen - at)
        while sign >= 0:
            before = sign - BEFORE if is_escaped(text, sign) else sign
            start = before - _local_length(text, before)
            if start == before:
                sign = text.find("@", sign + 1)
                continue
            stop = start + LONGEST
            end = _RUN.match(text, sign + 1, stop + 1).end()  # type: ignore[union-attr]  # matches always
            if end == len(text) <= stop and not final:
                self._seen, self.certain = at + sign, at + start
                return spans
            domain = _DOMAIN.match(text, sign + 1, min(end, stop))
            if domain is not None:
                spans.append((at + start, at + domain.end()))
            sign = text.find("@", sign + 1)
        self._seen = at + len(text)
        self.certain = self._seen - (0 if final else _open_length(text))
        return spans


def _open_length(text: str) -> int:
    """Returns how many of the last characters may belong to an address whose sign comes later."""
    escape = begun(text)
    local = _local_length(text, len(text) - escape)
    return local + escape if local else 0


def _local_length(text: str, end: int) -> int:
    """Returns how many characters before `end` a local part may have."""
    before = text[max(0, end - LONGEST_LOCAL) : end]
    return len(before) - len(before.rstrip(_LOCAL))
