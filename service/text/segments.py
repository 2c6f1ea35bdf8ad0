"""This module encodes a text piece by piece between control tokens, each piece once. A new turn costs only itself.

    text       <|user|>hello<|end|><|assistant|>hi<|end|>
    pieces     a token, a text, a token, a token, a text, a token

`tokenizers` first takes added tokens out of a text. So the text between two of them is encoded by itself. A tokenizer
may put a space before the first piece only, so the other pieces are encoded behind an added token. If an added token
takes the spaces beside it along, or a check with a few texts finds a difference, texts are encoded whole.

A piece's key is its digest behind whether it is the first, so that no text is kept.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tokenizers import Encoding

from service.text.alternation import longest_of
from service.text.recent import Recent
from service.text.vocabulary import NOWHERE, Piece, Vocabulary, middle

MOST_PIECES: Final = 4_096
MOST_PIECES_BYTES: Final = 8 << 20
"""Of each owner, whatever the pieces' lengths: 4,096 long documents would take a GiB."""
MOST_COUNTED: Final = 8_192
"""Of each owner, in 2 MiB. An hour makes tens of thousands of turns; those of two hundred chats at once fit."""
_PROBES: Final = ("hello", " hello ", "\nhello\n", "user\n가나 다", "", "  ", "a.b 1,234!", "é\u0301 Ａ")


def digest_of(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class _Part:
    """One piece's tokens, and the middle character of each token, counted from the piece's beginning."""

    ids: array[int]
    middles: array[int]

    def num_bytes(self) -> int:
        """Returns about what it takes in memory."""
        return 600 + self.ids.itemsize * len(self.ids) + self.middles.itemsize * len(self.middles)

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> _Part:
        return cls(array("I", [id for id, _, _ in pieces]), array("i", [middle(*place) for _, *place in pieces]))


@dataclass(frozen=True, slots=True)
class Segmented:
    """A text's tokens: its parts and the beginning of each."""

    parts: tuple[tuple[int, _Part], ...]

    def __len__(self) -> int:
        return sum(len(part.ids) for _, part in self.parts)

    def ids(self) -> tuple[int, ...]:
        ids = array("I")
        for _, part in self.parts:
            ids.extend(part.ids)
        return tuple(ids)

    def middles(self) -> list[int]:
        """Returns the middle character of each token."""
        return [at + own if own != NOWHERE else own for at, part in self.parts for own in part.middles]


class Splitting:
    """Splits texts of one vocabulary into pieces. `is_exact` is False if texts must be encoded whole."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._tokens = {token: _Part.of([(id, 0, len(token))]) for id, token in vocabulary.added.items() if token}
        self._anchor = next((token for token in self._tokens if self._is_no_beginning(token)), "")
        self._between = re.compile(f"({longest_of(self._tokens)})")
        self.is_exact = vocabulary.has_plain_added_tokens and all(map(self._agrees, self._texts()))

    def _is_no_beginning(self, token: str) -> bool:
        """Returns whether the token begins no longer token, which the text behind it could complete."""
        return not any(other != token and other.startswith(token) for other in self._tokens)

    def split(self, text: str) -> list[str]:
        return self._between.split(text)

    def token(self, token: str) -> _Part:
        return self._tokens[token]

    def part(self, text: str, *, is_first: bool) -> _Part:
        """Encodes a piece between tokens, or the first piece of a text."""
        if is_first:
            return _Part.of(self.vocabulary.pieces(text))
        _, *pieces = self.vocabulary.pieces(self._anchor + text)
        before = len(self._anchor)
        return _Part.of([(id, max(0, start - before), max(0, stop - before)) for id, start, stop in pieces])

    def _texts(self) -> Iterator[str]:
        tokens = list(self._tokens)[:3]
        for first in tokens:
            for second in tokens:
                yield "".join(f"{first}{probe}{second}" for probe in _PROBES)
        yield from _PROBES

    def _agrees(self, text: str) -> bool:
        found, whole = Memory(self).segmented(text), _Part.of(self.vocabulary.pieces(text))
        return found.ids() == tuple(whole.ids) and found.middles() == list(whole.middles)


class Memory:
    """Remembers the pieces of one owner's texts. Pieces of other owners are not here, so the time of an encoding
    reveals nothing about other owners. Safe from any thread."""

    def __init__(self, splitting: Splitting) -> None:
        self._splitting = splitting
        self._known = Recent[bytes, _Part](MOST_PIECES, MOST_PIECES_BYTES, _Part.num_bytes)
        self._counted = Recent[bytes, int](MOST_COUNTED)

    def encode(self, text: str) -> Segmented | Encoding:
        """Encodes a text as the vocabulary does."""
        return self.segmented(text) if self._splitting.is_exact else self._splitting.vocabulary.encode(text)

    def count(self, text: str) -> int:
        """Returns the number of tokens of `encode`. A text that is only counted evicts no piece."""
        if not self._splitting.is_exact:
            return len(self._splitting.vocabulary.encode(text))
        total = at = 0
        for number, piece in enumerate(self._splitting.split(text)):
            if piece:
                total += 1 if number % 2 == 1 else self._count(piece, is_first=at == 0)
                at += len(piece)
        return total

    def segmented(self, text: str) -> Segmented:
        """Encodes a text piece by piece, exact or not."""
        parts, at = [], 0
        for number, piece in enumerate(self._splitting.split(text)):
            if piece:
                is_token = number % 2 == 1
                parts.append((at, self._splitting.token(piece) if is_token else self._part(piece, is_first=at == 0)))
                at += len(piece)
        return Segmented(tuple(parts))

    def _count(self, text: str, *, is_first: bool) -> int:
        key = bytes([is_first]) + digest_of(text)
        count = self._counted.get(key)
        if count is None:
            known = self._known.get(key) or self._splitting.part(text, is_first=is_first)
            count = self._counted[key] = len(known.ids)
        return count

    def _part(self, text: str, *, is_first: bool) -> _Part:
        key = bytes([is_first]) + digest_of(text)
        known = self._known.get(key)
        if known is None:
            known = self._splitting.part(text, is_first=is_first)
            self._known[key] = known
        return known
