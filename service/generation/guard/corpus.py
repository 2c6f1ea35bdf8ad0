"""Protected texts are found in a text that grows: given strings (canaries), and copies of a corpus, which is kept as
hashed n-grams. The module knows no actions.

    text     "Ärger  macht\\nmüde."      letters and digits only, decomposed, folded: "argermachtmude"
    n-grams  every 32 of these units that end where a character ends, hashed with the file's own key

The scanner finds a copy of 34 units or more, except at most two units at its beginning, in any case, spacing,
punctuation and accents: about six English words or thirteen Korean syllables (a syllable is two or three units).
Shorter n-grams would match common phrases; longer n-grams would miss longer copies.

The file holds a keyed hash of 64 bits for each n-gram. The hashes cannot be read back; but a holder of the file can
test guesses, and go on letter by letter from a known passage, so the file is as private as a password file.
"""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from service.errors import InvalidRequest
from service.generation.guard.escapes import BACKSLASH, BEFORE, begun, is_mark, written
from service.generation.guard.patterns import plain
from service.generation.guard.rules import Span

UNITS: Final = 32
_VERSION: Final = 1
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 8


@cache
def fold(character: str) -> str:
    """Returns a character's units; none for a character that is neither a letter nor a digit. Each character is folded
    by itself, so that a text can be folded as it comes."""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return "".join(unit for unit in decomposed if unit.isalnum())


@dataclass(frozen=True, slots=True)
class Grams:
    """The n-grams of some texts: sorted hashes, and the salt that they were hashed with."""

    salt: bytes
    hashes: array[int]

    @classmethod
    def of(cls, texts: Iterable[str], salt: bytes | None = None) -> Grams:
        """Returns the n-grams of `texts`. Raises InvalidRequest where none of the texts is long enough."""
        salt = salt or os.urandom(_SALT_BYTES)
        found = {hashed(gram, salt) for text in texts for gram in _grams(unicodedata.normalize("NFC", text))}
        if not found:
            raise InvalidRequest(f"The texts have fewer than {UNITS} letters in a row: give longer ones")
        return cls(salt, array("Q", sorted(found)))

    def __contains__(self, gram: str) -> bool:
        key = hashed(gram, self.salt)
        place = bisect_left(self.hashes, key)
        return place < len(self.hashes) and self.hashes[place] == key

    def write(self, path: Path) -> None:
        """Writes the file, readable by its owner only, whatever file was there before. Raises InvalidRequest where that
        fails, and leaves nothing then."""
        head = {"version": _VERSION, "units": UNITS, "salt": self.salt.hex(), "count": len(self.hashes)}
        part = path.with_name(f".{path.name}.part")
        try:
            with os.fdopen(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
                file.write(json.dumps(head).encode() + b"\n" + _little_endian(self.hashes).tobytes())
            part.replace(path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise InvalidRequest(f"{path} cannot be written ({error.strerror}): name another file") from None

    @classmethod
    def read(cls, path: Path) -> Grams:
        """Reads the file. Raises InvalidRequest for a file of another format, or an incomplete one."""
        try:
            head, _, body = path.read_bytes().partition(b"\n")
        except OSError as error:
            raise InvalidRequest(f"{path}: {error.strerror}") from None
        try:
            facts = json.loads(head)
            salt, known = bytes.fromhex(facts["salt"]), (facts["version"], facts["units"]) == (_VERSION, UNITS)
            whole = known and len(body) == facts["count"] * _HASH_BYTES
        except (ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise InvalidRequest(f"{path} is not a file of n-grams of this version: make it with `dosirak guard hash`")
        hashes = array("Q")
        hashes.frombytes(body)
        return cls(salt, _little_endian(hashes))


def _little_endian(hashes: array[int]) -> array[int]:
    turned = array("Q", hashes)
    if sys.byteorder == "big":
        turned.byteswap()
    return turned


def hashed(gram: str, salt: bytes) -> int:
    """Returns a keyed hash. A linear rolling hash would be faster, but its values over neighbouring n-grams reveal the
    text."""
    return int.from_bytes(blake2b(gram.encode(), digest_size=_HASH_BYTES, key=salt).digest(), "little")


def _grams(text: str) -> Iterator[str]:
    units = ""
    for character in text:
        folded = fold(character)
        if folded:
            units = (units + folded)[-UNITS:]
            if len(units) == UNITS:
                yield units


@dataclass(slots=True)
class _Window:
    """The last 32 units of a text, and the position at which each unit's character, or its escape, begins."""

    units: str = ""
    places: list[int] = field(default_factory=list)

    def add(self, folded: str, place: int) -> None:
        self.units = (self.units + folded)[-UNITS:]
        self.places += [place] * len(folded)
        del self.places[:-UNITS]

    def is_copy(self, grams: Grams) -> bool:
        return len(self.units) == UNITS and self.units in grams


class CorpusScanner:
    """One sequence's search. Any of the last 31 units may be the first of a copy, so with `mask` and `stop` the output
    is that far behind. A backslash and an n may be an escape, or a word as in `\\nabla`: both readings are searched,
    each with a window of its own, until the windows are the same again."""

    def __init__(self, grams: Grams) -> None:
        self.certain = 0
        self._grams = grams
        self._windows = [_Window()]  # one, or the reading with escapes and that without
        self._escape = -1  # the position of the backslash of the escape that the text so far ends with, or -1

    def scan(self, text: str, at: int, new: int, final: bool) -> list[Span]:
        spans, windows = list[Span](), self._windows
        for place in range(at + new, at + len(text)):
            character = text[place - at]
            start = self._start(character, place)
            if is_mark(character) and len(windows) == 1:
                windows.append(_Window(windows[0].units, [*windows[0].places]))
            for window, reading in zip(windows, (character, written(character)), strict=False):
                folded = fold(reading)
                window.add(folded, start)
                if folded and window.is_copy(self._grams):
                    spans.append((window.places[0], place + 1))
            if len(windows) == 2 and windows[0] == windows[1]:
                windows.pop()
        open_ = [] if final else [place for each in windows for place in each.places[1 - UNITS :][:1]]
        self.certain = min(open_, default=at + len(text) - (0 if final else begun(text)))
        return spans

    def _start(self, character: str, place: int) -> int:
        """Returns the position at which the character begins: before it, where an escape of six stands for it."""
        escape = self._escape
        if not is_mark(character):
            self._escape = place if character == BACKSLASH else -1
            return escape if 0 <= escape == place - BEFORE else place
        return place


@dataclass(slots=True)
class _Node:
    """A prefix of some string, `depth` characters long; `fallback` is its longest proper suffix that is a prefix,
    too."""

    depth: int = 0
    following: dict[str, _Node] = field(default_factory=dict)
    fallback: _Node | None = None
    lengths: list[int] = field(default_factory=list)
    """The lengths of the strings that end here, longest first."""


class Canaries:
    """The strings, all found in one pass (Aho and Corasick 1975). They are compared as `plain` writes them, otherwise
    character by character."""

    def __init__(self, strings: Iterable[str]) -> None:
        self.root = _Node()
        for each in strings:
            self._add(plain(each))
        self._link()

    def _add(self, text: str) -> None:
        node = self.root
        for depth, character in enumerate(text, 1):
            node = node.following.setdefault(character, _Node(depth))
        node.lengths = [len(text)]

    def _link(self) -> None:
        waiting = deque([self.root])
        while waiting:
            node = waiting.popleft()
            for character, child in node.following.items():
                fallback = node.fallback
                while fallback is not None and character not in fallback.following:
                    fallback = fallback.fallback
                child.fallback = self.root if fallback is None else fallback.following[character]
                child.lengths = [*child.lengths, *child.fallback.lengths]
                waiting.append(child)


class CanaryScanner:
    """One sequence's search."""

    def __init__(self, canaries: Canaries) -> None:
        self.certain = 0
        self._root = self._node = canaries.root

    def scan(self, text: str, at: int, new: int, final: bool) -> list[Span]:
        spans, node, root = list[Span](), self._node, self._root
        for place in range(new, len(text)):
            character = written(text[place])
            while character not in node.following and node.fallback is not None:
                node = node.fallback
            node = node.following.get(character, root)
            spans += [(at + place + 1 - length, at + place + 1) for length in node.lengths]
        self._node = node
        self.certain = at + len(text) - (0 if final else node.depth)
        return spans
