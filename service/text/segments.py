"""Texts encoded piece by piece between control tokens, each piece once: a chat with a turn more costs its new turn.

    text       <|user|>hello<|end|><|assistant|>hi<|end|>
    pieces     a token, a text, a token, a token, a text, a token

`tokenizers` takes added tokens out of a text before anything else, so that what stands between two of them is encoded
by itself, and the first piece, where a tokenizer may put a space, is told from the others: these are encoded behind an
added token. Where one takes the spaces beside it along, or a check with a few texts finds a difference, texts are
encoded whole, as they would be without this.

Pieces are remembered by their digest, so that no text is kept.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tokenizers import Encoding

from service.text.vocabulary import NOWHERE, Piece, Vocabulary, middle

MOST_PIECES: Final = 4_096
_PROBES: Final = ("hello", " hello ", "\nhello\n", "user\n가나 다", "", "  ", "a.b 1,234!", "é\u0301 Ａ")


def digest_of(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class _Part:
    """One piece's tokens, the character in the middle of each counted from the piece's beginning."""

    ids: array[int]
    middles: array[int]

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> _Part:
        return cls(array("I", [id for id, _, _ in pieces]), array("i", [middle(*place) for _, *place in pieces]))


@dataclass(frozen=True, slots=True)
class Segmented:
    """A text's tokens: its parts and where each begins."""

    parts: tuple[tuple[int, _Part], ...]

    def __len__(self) -> int:
        return sum(len(part.ids) for _, part in self.parts)

    def ids(self) -> tuple[int, ...]:
        ids = array("I")
        for _, part in self.parts:
            ids.extend(part.ids)
        return tuple(ids)

    def middles(self) -> list[int]:
        """Of each token."""
        return [at + own if own != NOWHERE else own for at, part in self.parts for own in part.middles]


class Splitting:
    """How one vocabulary's texts fall into pieces. `is_exact` is False where they must be encoded whole."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._tokens = {token: _Part.of([(id, 0, len(token))]) for id, token in vocabulary.added.items() if token}
        self._anchor = next((token for token in self._tokens if self._is_no_beginning(token)), "")
        longest_first = sorted(map(re.escape, self._tokens), key=len, reverse=True)
        self._between = re.compile(f"({'|'.join(longest_first)})") if longest_first else None
        self.is_exact = vocabulary.has_plain_added_tokens and all(map(self._agrees, self._texts()))

    def _is_no_beginning(self, token: str) -> bool:
        """Of a longer token, which a text behind it could complete."""
        return not any(other != token and other.startswith(token) for other in self._tokens)

    def split(self, text: str) -> list[str]:
        return [text] if self._between is None else self._between.split(text)

    def token(self, token: str) -> _Part:
        return self._tokens[token]

    def part(self, text: str, *, is_first: bool) -> _Part:
        """A piece between tokens, or the first of a text."""
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
    """The pieces that one owner's texts had. Pieces of other owners are not found here: how long a text takes tells
    nothing about others'. Safe from any thread; forgets all when it is full."""

    def __init__(self, splitting: Splitting) -> None:
        self._splitting = splitting
        self._known: dict[tuple[bool, bytes], _Part] = {}

    def encode(self, text: str) -> Segmented | Encoding:
        """As the vocabulary encodes it."""
        return self.segmented(text) if self._splitting.is_exact else self._splitting.vocabulary.encode(text)

    def segmented(self, text: str) -> Segmented:
        """Piece by piece, exact or not."""
        parts, at = [], 0
        for number, piece in enumerate(self._splitting.split(text)):
            if piece:
                is_token = number % 2 == 1
                parts.append((at, self._splitting.token(piece) if is_token else self._part(piece, is_first=at == 0)))
                at += len(piece)
        return Segmented(tuple(parts))

    def _part(self, text: str, *, is_first: bool) -> _Part:
        key = is_first, digest_of(text)
        known = self._known.get(key)
        if known is None:
            known = self._splitting.part(text, is_first=is_first)
            if len(self._known) >= MOST_PIECES:
                self._known.clear()
            self._known[key] = known
        return known
