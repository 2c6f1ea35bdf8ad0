"""A vocabulary wraps one version's `tokenizers` object: text ↔ ids, bytes of tokens, streams. It knows no template."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from time import thread_time

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as RustTokenizer

from service.errors import InvalidRequest
from service.text.files import Json, TokenizerFiles
from service.text.streams import REPLACEMENT, ByteStream, LocalStream, TextStream, WholeStream, joining, with_bytes

_LONG_TEXT = 16_384
"""Texts from this number of characters on (about 10 ms) are encoded in a thread. From there on the GIL is released."""
_LONG_SECONDS = 0.1
_LONG_TEXT_OF_SLOW = 512
"""The same once a shorter text took so long: some published expressions look back over all blanks before a word."""
_BLOCK = 2048
_LONG_RUN_SECONDS = 0.03
"""For two blocks; most tokenizers take 5 ms."""
_LOCAL = frozenset({"Replace", "ByteFallback", "Fuse", "StripStart", "Metaspace", "WordPiece"})
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
Piece = tuple[int, int, int]
"""(id, start, stop): a token stands for the characters [start, stop) of the text; the range of an added one is
empty."""
NOWHERE = -1


def middle(start: int, stop: int) -> int:
    """Returns the character that decides a token's owner; NOWHERE for a token without characters."""
    return max(start, (start + stop - 1) // 2) if stop > start else NOWHERE


def _byte_alphabet() -> dict[str, int]:
    """Returns GPT-2's printable stand-ins for bytes (openai/gpt-2, encoder.py, bytes_to_unicode)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF_CHAR = _byte_alphabet()


def require_text(text: str, param: str) -> None:
    """Raises InvalidRequest for lone surrogates: JSON can carry them, UTF-8 and the tokenizer cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"`{param}` holds a lone surrogate at character {error.start}; send well-formed Unicode.",
            param=param,
            fields=(param,),
        ) from None


def _pieces(encoding: Encoding) -> list[Piece]:
    return [(id, start, stop) for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)]


class Vocabulary:
    """Immutable after construction, safe from any thread."""

    def __init__(self, files: TokenizerFiles) -> None:
        try:
            self._rust = RustTokenizer.from_str(files.tokenizer)
        except Exception as error:  # `tokenizers` raises bare Exception
            raise InvalidRequest(
                "tokenizer.json is not a tokenizer that `tokenizers` can read.", param="model"
            ) from error
        self._rust.no_truncation()
        self._rust.no_padding()
        self._add(files)
        self.added = {id: token.content for id, token in self._rust.get_added_tokens_decoder().items()}
        self.special = frozenset(id for id, token in self._rust.get_added_tokens_decoder().items() if token.special)
        self.has_plain_added_tokens = not any(
            token.lstrip
            or token.rstrip
            or token.single_word
            or (token.normalized and self._rust.normalizer is not None)
            for token in self._rust.get_added_tokens_decoder().values()
        )
        """Whether no added token takes neighbouring spaces along, or matches in normalised text or between words
        only."""
        self.size = max(self._rust.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._steps = _decoder_steps(json.loads(files.tokenizer).get("decoder"))
        self.long_text = _LONG_TEXT
        self._source = files.tokenizer
        self._bytes: dict[int, bytes] = {}

    def _add(self, files: TokenizerFiles) -> None:
        """Adds the tokens that only tokenizer_config.json names, as transformers does."""
        known = {token.content for token in self._rust.get_added_tokens_decoder().values()}
        new: dict[str, bool] = {}
        for text, special in (*files.added, *((token, True) for token in files.named_tokens.values())):
            if text not in known:
                new.setdefault(text, special)
        tokens = [AddedToken(text, special=special, normalized=False) for text, special in new.items()]
        self._rust.add_tokens(tokens)  # at once: each call looks at all that there are

    @property
    def token_ids(self) -> dict[str, int]:
        """Returns the id of each token, by its text in the vocabulary. It is made at each call."""
        return self._rust.get_vocab(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> Encoding:
        """Encodes a text. Ids and offsets become Python lists only when read: for a long text, look at `len` first.

        `tokenizers` releases the GIL for batches only, so a long text goes as a batch of one. Raises InvalidRequest
        for a text that one of its expressions does not come to an end with."""
        try:
            if len(text) >= self.long_text:
                self._refuse_slow_run(text)
                return self._rust.encode_batch([text], add_special_tokens=add_special_tokens)[0]
            begun = thread_time()
            encoding = self._rust.encode(text, add_special_tokens=add_special_tokens)
            if thread_time() - begun > _LONG_SECONDS:
                self.long_text = _LONG_TEXT_OF_SLOW
            return encoding
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of the library; it is no Exception
                raise
            raise InvalidRequest("This version's tokenizer fails on this text; send another text.") from None

    def _refuse_slow_run(self, text: str) -> None:
        """Raises InvalidRequest for thousands of blanks or digits in a row, where an expression looks back over all of
        them at each: a mebibyte would take a thread ten minutes, and no thread can be ended."""
        blocks = (text[at : at + _BLOCK] for at in range(0, len(text), _BLOCK))
        run = next((block for block in blocks if block.isspace() or block.isnumeric()), "")
        if len(run) < _BLOCK:
            return
        begun = thread_time()
        self._rust.encode(f"{run}{run}a")
        if thread_time() - begun > _LONG_RUN_SECONDS:
            raise InvalidRequest(
                f"This version's tokenizer takes too long over {_BLOCK:,} or more blanks or digits in a row: send fewer"
            )

    def pieces(self, text: str) -> list[Piece]:
        return _pieces(self.encode(text))

    def plain_pieces(self, text: str) -> list[Piece]:
        """Works as `pieces`, but reads every added token in `text` as ordinary characters."""
        pieces = _pieces(self._plain.encode(text, add_special_tokens=False))
        if not any(id in self.added for id, _, _ in pieces):
            return pieces
        # Unigram and WordLevel models may know a control token as a word. Letter by letter they cannot find it.
        return [
            (id, at + start, at + stop)
            for at, character in enumerate(text)
            for id, start, stop in _pieces(self._plain.encode(character, add_special_tokens=False))
            if id not in self.special
        ]

    @cached_property
    def _plain(self) -> RustTokenizer:
        spec = json.loads(self._source)
        spec |= {"added_tokens": [], "post_processor": None, "decoder": None, "truncation": None, "padding": None}
        return RustTokenizer.from_str(json.dumps(spec))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of ids. Ids that the vocabulary lacks have no text."""
        known = [id for id in ids if 0 <= id < self.size]
        return self._rust.decode(known, skip_special_tokens=skip_special_tokens)

    def id_of(self, token: str) -> int | None:
        return self._rust.token_to_id(token)

    def token(self, id: int) -> str | None:
        """Returns the vocabulary's own writing of a token (`Ġhello`, `▁hello`, `<0xEC>`); None for an unknown id."""
        return self._rust.id_to_token(id) if 0 <= id < self.size else None

    def token_text(self, id: int) -> str:
        """Returns a token's text in the middle of an answer, control tokens shown, cut characters as U+FFFD."""
        if self._steps == {"ByteLevel"}:
            return self._token_bytes(id).decode("utf-8", "replace")
        alone = self.decode([id], skip_special_tokens=False)
        return self.decode([id, id], skip_special_tokens=False)[len(alone) :]

    def text_bytes(self, id: int) -> bytes | None:
        """Returns the bytes of `token_text`, exact where the token is a part of a character; None where they are not
        known."""
        if self._steps == {"ByteLevel"}:
            return self._token_bytes(id)
        value = self._fallback_byte(id)
        if value is not None and value >= 0:
            return bytes([value])
        text = self.token_text(id)
        return None if REPLACEMENT in text and REPLACEMENT not in (self.token(id) or "") else text.encode()

    def token_bytes(self, id: int) -> bytes | None:
        """Returns what a token adds in the middle of an answer; None for a control token and an id without a token.
        Raises InvalidRequest if a token's text depends on the tokens beside it."""
        if self._steps != {"ByteLevel"} and not self._steps <= _LOCAL - {"WordPiece"}:
            raise InvalidRequest(
                "The text of this tokenizer's tokens depends on the tokens beside them.", param="model"
            )
        if id in self.special or self.token(id) is None:
            return None
        if self._steps == {"ByteLevel"}:
            return self._token_bytes(id)
        value = self._fallback_byte(id)
        return self.token_text(id).encode() if value is None else bytes([value])

    def encode_inside(self, text: str) -> list[int]:
        """Returns the ids of a text in the middle of an answer: nothing is put before it."""
        if self._steps == {"ByteLevel"}:
            return self.encode(text).ids
        return [id for id, start, _ in self.pieces(f"\n{text}") if start > 0]

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Returns the text that each token adds to the decode of all, control tokens shown. The texts join to
        `decode(ids, skip_special_tokens=False)`; a character is on the token that completes it."""
        whole = self.decode(ids, skip_special_tokens=False)
        if self._steps == {"ByteLevel"}:
            stream: TextStream = self.text_stream(skip_special_tokens=False)
            return joining(whole, [stream.push(id) for id in ids])
        values = [self._fallback_byte(id) for id in ids]
        stream = LocalStream(lambda some: self.decode(some, skip_special_tokens=False), self._fallback_byte)
        pieces = [stream.push(id) for id in ids]
        return joining(whole, with_bytes(pieces, values))

    def text_stream(
        self, skip_special_tokens: bool = True, shown: frozenset[int] = frozenset(), inside: bool = False
    ) -> TextStream:
        """Returns a stream without the text of control tokens but `shown`, or with that of all. `inside`: as behind
        another text."""
        behind = self.encode("a").ids if inside else []
        skipped = self.special - shown if skip_special_tokens else frozenset[int]()

        def decode(ids: Sequence[int]) -> str:
            if shown:
                return self.decode([id for id in ids if id not in skipped], skip_special_tokens=False)
            return self.decode(ids, skip_special_tokens=skip_special_tokens)

        if self._steps == {"ByteLevel"}:
            return ByteStream(lambda id: b"" if id in skipped else self._token_bytes(id))
        if self._steps <= _LOCAL:
            return LocalStream(decode, lambda id: -1 if id in skipped else self._fallback_byte(id), behind)
        return WholeStream(decode, behind)

    def _token_bytes(self, id: int) -> bytes:
        """Returns a token's bytes as `tokenizers`' ByteLevel decoder does: the bytes of its stand-ins, or raw UTF-8 if
        one character is no stand-in."""
        raw = self._bytes.get(id)
        if raw is None:
            token = self.token(id) or ""
            try:
                raw = bytes(_BYTE_OF_CHAR[character] for character in token)
            except KeyError:
                raw = token.encode("utf-8")
            self._bytes[id] = raw
        return raw

    def _fallback_byte(self, id: int) -> int | None:
        token = self.token(id)
        if token is None:
            return -1
        match = _BYTE.fullmatch(token) if "ByteFallback" in self._steps else None
        return int(match[1], 16) if match else None


def _decoder_steps(decoder: Json) -> frozenset[str]:
    """Returns the decoder's step names. A step that works across tokens is called `Global`: a Strip at the right end,
    and a replacement or strip after the tokens were fused into one text."""
    if not isinstance(decoder, dict):
        return frozenset()
    inner = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    names: set[str] = set()
    for step in inner if isinstance(inner, list) else []:
        name = str(step.get("type")) if isinstance(step, dict) else "Global"
        if name == "Strip" and isinstance(step, dict):
            name = "StripStart" if step.get("stop") == 0 or "Fuse" not in names else "Global"
        elif name == "Replace" and "Fuse" in names:
            name = "Global"
        names.add(name)
    return frozenset(names)
