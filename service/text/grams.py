"""Texts as what they can be found by: folded, then cut into terms.

Pairs of neighbouring characters find a Korean word of two syllables, and a word whatever particle follows it; scripts
that write words apart from each other are found better by whole words (docs/log.md).
"""

from __future__ import annotations

import unicodedata
from itertools import groupby
from typing import Final

_FIRST_BEYOND_ALPHABETS: Final = "\u0e00"
"""Before it lie the scripts of Europe, the Middle East and India; from it on Thai, Hangul, kana, Chinese characters."""


def fold(text: str) -> str:
    """Equal for texts that differ in case, in composition of Hangul or accents, or in kind and number of spaces."""
    return " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).split())


def terms(text: str) -> list[str]:
    """The folded text's words, of letters and digits only; of scripts beyond the alphabets their pairs of characters,
    or the one that there is."""
    found: list[str] = []
    for word in fold(text).split():
        for is_whole, letters in groupby(filter(str.isalnum, word), key=_FIRST_BEYOND_ALPHABETS.__gt__):
            run = "".join(letters)
            whole = is_whole or len(run) == 1
            found += [run] if whole else [run[at : at + 2] for at in range(len(run) - 1)]
    return found
