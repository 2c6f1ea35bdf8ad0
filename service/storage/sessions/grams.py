"""Grams are what the search index holds of a text: its characters and its pairs of neighbours, as 32-bit numbers.

Pairs find Korean words of two syllables, which indexes of words or of three characters miss. The index only proposes:
`contains` decides, in the same way for every database, so two characters with the same number do no harm.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from service.storage.sessions.values import Json
from service.text.grams import fold


def contains(text: str, needle: str) -> bool:
    """Returns whether `text`, folded, contains the folded `needle`."""
    return needle in fold(text)


def grams_of(owner: str, text: str) -> set[int]:
    """Returns all grams that `text` can be found by. They include the owner, so that a search reads one owner's
    entries."""
    found = {_signed(zlib.crc32(owner.encode()))}
    for word in fold(text).split():
        found.update(_pair(character, "\x00") for character in word)
        found.update(map(_pair, word, word[1:]))
    return found


def words_of(title: str | None, metadata: Json) -> list[str]:
    """Returns the texts of a session itself: its title, the keys of its metadata and their values."""
    found = [title] if title else []
    _collect(metadata, found)
    return found


def _collect(value: object, found: list[str]) -> None:
    if isinstance(value, Mapping):
        for key, each in value.items():
            found.append(str(key))
            _collect(each, found)
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, found)
    elif value is not None:
        found.append(str(value))


def _pair(first: str, second: str) -> int:
    return _signed((ord(first) & 0xFFFF) << 16 | (ord(second) & 0xFFFF))


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number
