"""The address scanner finds e-mail addresses in a text that grows. It starts from their `@`, so that no text is read
twice. It knows no actions."""

from __future__ import annotations

import re
import string
from typing import Final

from service.generation.guard.rules import Span

LONGEST: Final = 254
"""The most characters of an address (RFC 5321, errata 1690)."""
LONGEST_LOCAL: Final = 64
_LOCAL = string.ascii_letters + string.digits + "._%+-"
_RUN = re.compile(r"[A-Za-z0-9.-]*")
_DOMAIN = re.compile(r"(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z][A-Za-z0-9-]{0,61}[A-Za-z0-9]")


class AddressScanner:
    """One sequence's search. A text that may still become a local part is not certain: the last word, up to its 64th
    character from the end. An address ends with the last label that can be a top-level domain."""

    def __init__(self) -> None:
        self.certain = 0
        self._seen = 0  # signs before this position are decided

    def scan(self, text: str, at: int, new: int, final: bool) -> list[Span]:
        found = list[Span]()
        sign = text.find("@", self._seen - at)
        while sign >= 0:
            start = sign - _local_length(text, sign)
            if start == sign:
                sign = text.find("@", sign + 1)
                continue
            stop = start + LONGEST
            end = _RUN.match(text, sign + 1, stop + 1).end()  # type: ignore[union-attr]  # matches always
            if end == len(text) <= stop and not final:
                self._seen, self.certain = at + sign, at + start
                return found
            domain = _DOMAIN.match(text, sign + 1, min(end, stop))
            if domain is not None:
                found.append((at + start, at + domain.end()))
            sign = text.find("@", sign + 1)
        self._seen = at + len(text)
        self.certain = self._seen - (0 if final else _local_length(text, len(text)))
        return found


def _local_length(text: str, end: int) -> int:
    """Returns how many characters before `end` a local part may have."""
    before = text[max(0, end - LONGEST_LOCAL) : end]
    return len(before) - len(before.rstrip(_LOCAL))
