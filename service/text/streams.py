"""A text stream turns token ids into text, piece by piece. The pieces join to the decode of all ids at once.

Only an unfinished character at the end is left out. Streams know decoders; they know no stop strings. There are three
streams for three kinds of decoder, each amortised O(1) per token but the last:

    ByteStream   byte-level BPE. A token is bytes; the whole text is their lossy UTF-8, which an incremental UTF-8
                 decoder gives exactly (Python and Rust both replace maximal subparts, Unicode 3.9 / WHATWG).
    LocalStream  decoders whose text for a token depends on the token and on being first: Metaspace, WordPiece,
                 SentencePiece with byte fallback. A run of byte tokens is one unit: an invalid run becomes
                 U+FFFD per byte *as a whole*, so its text is certain only when the run has ended.
    WholeStream  anything else: decodes all ids at each push and gives out what two decodes agree on.

`tokenizers` has a DecodeStream of its own. It is not exact: with byte fallback a third of random ids is an error or
another text, and with byte-level BPE it keeps back U+FFFD that no later token can change.

A whole text, too, is divided among its tokens: the texts join to it, however its decoder works, in linear time.

    tokens   <s>   he   <0xEC>  <0x95>  <0x88>   llo
    texts    <s>   he   ""      ""      안       llo        a character is on the token that completes it
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Final, Protocol

Decode = Callable[[Sequence[int]], str]
REPLACEMENT: Final = "\ufffd"
NEARBY: Final = 16
"""How many characters a piece may lie behind the place where it was expected."""
_LONGEST_CHARACTER: Final = 4
"""Bytes of UTF-8."""


def _common_prefix(first: str, second: str) -> str:
    if second.startswith(first):
        return first
    length = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(second))
    return first[:length]


def _unfinished(run: bytes | bytearray) -> int:
    """Returns how many bytes at the end belong to an unfinished character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(run)
    held = decoder.getstate()[0]
    return 0 if _begins_surrogate(held) else len(held)


def _begins_surrogate(held: bytes) -> bool:
    """Whether these bytes, which Python's decoder still holds, cannot become a character: ED A0 to ED BF begin the
    surrogates, which UTF-8 does not have."""
    return len(held) == 2 and held[0] == 0xED and held[1] >= 0xA0


class TextStream(Protocol):
    """Gives one sequence's text. The results of all `push` calls and `finish` join to the full decode of the ids,
    without the bytes of an unfinished character at the end."""

    def push(self, token_id: int) -> str:
        """Returns the text that no later token can change."""
        ...

    def peek(self) -> str:
        """Returns the text that is certain only if no token follows, in whole characters; it may be empty."""
        ...

    def newest(self, size: int) -> str | None:
        """Returns the last `size` characters of what `peek` returns, where no more than the last of them can be new;
        None where `peek` is short, or the last token may change all of it."""
        ...

    def ahead(self) -> str:
        """Returns the whole characters of the pushed tokens beyond the results of `push`, as far as they are known."""
        ...

    def finish(self) -> str:
        """Returns the rest. No push may follow."""
        ...

    def begun(self) -> int:
        """Returns the most characters that the pushed tokens may hold beyond the results of `push`."""
        ...


class ByteStream:
    """Decodes byte-level tokens. `token_bytes(id)` gives a token's bytes, b"" for a token that the decode leaves
    out."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._token_bytes(token_id))

    def peek(self) -> str:
        return ""

    def newest(self, size: int) -> None:
        return None

    def ahead(self) -> str:
        return ""

    def finish(self) -> str:
        held = self._decoder.getstate()[0]
        return held.decode(errors="replace") if _begins_surrogate(held) else ""

    def begun(self) -> int:
        held = self._decoder.getstate()[0]
        return len(held) if _begins_surrogate(held) else min(len(held), 1)


class LocalStream:
    """Decodes [anchor, new tokens] and removes the anchor's own text, so that no new token stands first.

        ids   x x x x x A | b b c        A anchor: a token given out before
                          └ pending ┘    b a byte token, c any other: it ends the run, all three are given out

    `byte_of(id)`: the byte of a byte-fallback token, None for any other, -1 for a token that the decode leaves out.
    Until the text so far is non-empty, leading spaces may still be stripped: the head is decoded from its start.
    Behind the tokens `behind` the text is no head.
    """

    def __init__(self, decode: Decode, byte_of: Callable[[int], int | None], behind: Sequence[int] = ()) -> None:
        self._decode = decode
        self._byte_of = byte_of
        self._anchor = list(behind)
        self._anchor_length = len(decode(self._anchor)) if behind else 0
        self._pending: list[int] = []
        self._run = bytearray()
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._is_utf8 = True  # the run so far, but for an unfinished character

    def push(self, token_id: int) -> str:
        byte = self._byte_of(token_id)
        if byte == -1:
            return ""
        self._pending.append(token_id)
        if byte is not None:
            self._add(byte)
            return ""
        text = self._tail()
        self._advance(token_id)
        return text

    def peek(self) -> str:
        return self._tail() if self._is_whole() else ""

    def newest(self, size: int) -> str | None:
        if not self._is_whole():
            return ""
        most = _LONGEST_CHARACTER * size
        return self._run[-most:].decode(errors="ignore")[-size:] if len(self._run) > most else None

    def ahead(self) -> str:
        return self._run[: len(self._run) - _unfinished(self._run)].decode(errors="replace")

    def finish(self) -> str:
        self._pending = self._pending[: len(self._pending) - _unfinished(self._run)]
        return self._tail()

    def begun(self) -> int:
        return len(self._pending)

    def _add(self, byte: int) -> None:
        self._run.append(byte)
        try:
            self._utf8.decode(bytes((byte,)))
        except UnicodeDecodeError:
            self._is_utf8 = False

    def _is_whole(self) -> bool:
        """Whether the run is text in whole characters."""
        return self._is_utf8 and not self._utf8.getstate()[0]

    def _tail(self) -> str:
        return self._decode([*self._anchor, *self._pending])[self._anchor_length :] if self._pending else ""

    def _advance(self, last: int) -> None:
        """Looks for an anchor until there is one: tokens that show text, so that later text is not stripped."""
        if not self._anchor_length:
            alone = self._decode([last])
            self._anchor = [last] if alone else self._anchor + self._pending
            self._anchor_length = len(alone or self._decode(self._anchor))
        self._pending = []
        self._run.clear()
        self._utf8.reset()
        self._is_utf8 = True


class WholeStream:
    """Works with any decoder, at O(n) per token. Text is one token late. All U+FFFD at the end are left out, because
    some may stand for an unfinished character. `behind`: as in LocalStream."""

    def __init__(self, decode: Decode, behind: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(behind)
        self._before = decode(self._ids) if behind else ""
        self._emitted = len(self._before)

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._decode(self._ids)
        certain = _common_prefix(self._before, text).rstrip(REPLACEMENT)
        self._before = text
        delta = certain[self._emitted :]
        self._emitted += len(delta)
        return delta

    def peek(self) -> str:
        text = self._before[self._emitted :]
        return "" if text.endswith(REPLACEMENT) else text

    def newest(self, size: int) -> None:
        return None

    def ahead(self) -> str:
        return self._before[self._emitted :].rstrip(REPLACEMENT)

    def finish(self) -> str:
        return self._before[self._emitted :].rstrip(REPLACEMENT)

    def begun(self) -> int:
        return len(self._before) - self._emitted


def joining(whole: str, pieces: Sequence[str]) -> list[str]:
    """Returns one text for each of `pieces`, which is that piece where it stands in `whole` next. The texts join to
    `whole`; what no piece explains is in the text of the next piece that is found, and at last in the last one."""
    texts, at = list[str](), 0
    for piece in pieces:
        found = whole.find(piece, at, at + len(piece) + NEARBY) if piece else -1
        stop = at if found < 0 else found + len(piece)
        texts.append(whole[at:stop])
        at = stop
    if texts:
        texts[-1] += whole[at:]
    return texts


def with_bytes(pieces: Sequence[str], values: Sequence[int | None]) -> list[str]:
    """Returns `pieces` in which each byte token has its own text. `values` are the tokens' bytes: None for a token that
    is no byte, whose piece begins with the text of the bytes before it; -1 for a token that the decode leaves out."""
    texts, run = list(pieces), dict[int, int]()
    for at, value in enumerate([*values, None]):
        if value is not None:
            if value >= 0:
                run[at] = value
            continue
        own = _texts_of(bytes(run.values()))
        text = "".join(own)
        is_last = at == len(pieces)
        if is_last or pieces[at].startswith(text):
            for place, one in zip(run, own, strict=True):
                texts[place] = one
            if not is_last:
                texts[at] = pieces[at][len(text) :]
        run.clear()
    return texts


def _texts_of(run: bytes) -> list[str]:
    """Returns the text of each byte, as decoders with byte fallback write it: of a run that is not UTF-8, one U+FFFD
    for each byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return [decoder.decode(run[at : at + 1], final=at == len(run) - 1) for at in range(len(run))]
    except UnicodeDecodeError:
        return [REPLACEMENT] * len(run)
