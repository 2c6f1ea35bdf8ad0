"""Texts as what they can be found by: folded, then cut into pairs of neighbouring characters within words.

Pairs find Korean words of two syllables, and a word whatever particle follows it, which whole words do not.
"""

from __future__ import annotations

import unicodedata


def fold(text: str) -> str:
    """Equal for texts that differ in case, in composition of Hangul or accents, or in kind and number of spaces."""
    return " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).split())


def bigrams(text: str) -> list[str]:
    """The pairs of the folded text's words, of letters and digits only; a word of one character is itself."""
    found: list[str] = []
    for word in fold(text).split():
        letters = "".join(filter(str.isalnum, word))
        found += [letters[at : at + 2] for at in range(len(letters) - 1)] or ([letters] if letters else [])
    return found
