"""This module folds texts and cuts them into terms for search.

A pair of neighbouring characters finds a Korean word of two syllables, and a word with any particle behind it. For
scripts with spaces between words, whole words find more (loadtest/results/log.md).
"""

from __future__ import annotations

import unicodedata
from itertools import groupby
from typing import Final

_FIRST_BEYOND_ALPHABETS: Final = "\u0e00"
"""Scripts of Europe, the Middle East and India lie before it. Thai, Hangul, kana and Chinese characters lie behind."""


def fold(text: str) -> str:
    """Returns equal texts for texts that differ only in case, in composition of Hangul or accents, or in kind and
    number of spaces."""
    return " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).split())


def terms(text: str) -> list[str]:
    """Returns the folded text's words, of letters and digits only. For scripts beyond the alphabets it returns pairs of
    characters, or a single one."""
    pieces: list[str] = []
    for word in fold(text).split():
        for is_whole, letters in groupby(filter(str.isalnum, word), key=_FIRST_BEYOND_ALPHABETS.__gt__):
            run = "".join(letters)
            whole = is_whole or len(run) == 1
            pieces += [run] if whole else [run[at : at + 2] for at in range(len(run) - 1)]
    return pieces
