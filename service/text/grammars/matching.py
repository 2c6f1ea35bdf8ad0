"""Matchers of grammars over a vocabulary: the one place that calls llguidance.

Both the process that tries a grammar and the engine process that follows it compile here, with the same limits. What a
grammar costs hardly depends on the vocabulary, so a small one is enough to try it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from string import ascii_lowercase
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

_LIMITS: Final = LLParserLimits(step_max_items=10_000, max_lexer_states=50_000, verbose_errors=False)
"""Of one step 10,000 parser items and 200,000 units of the lexer, about 15 ms each: then the answer ends. The states of
a grammar's lexer take 10 MiB at most."""
_LONGEST_REASON: Final = 300
_MOST_FORCED_BYTES: Final = 4096  # of the text that a grammar leaves alone, in tokens at once
_SLICES: Final = (
    *(rf'[^"\\\x00-\x1F\x7F]{{1,{most}}}' for most in (2, 4, 6)),
    *LLTokenizer.general_slices(),
)
"""Sets of tokens that a mask takes as a whole where all of them may come next: blanks, and texts of JSON's strings, by
their lengths. llguidance's own begin at 10 characters; in a string with fewer left, a mask would try each token."""
Encode = Callable[[bytes], Sequence[int]]


class VocabularyGrammars:
    """Compiles grammars for one vocabulary. Any thread may call it."""

    def __init__(self, tokenizer: LLTokenizer, end_id: int) -> None:
        self._tokenizer = tokenizer
        self.end_id = end_id
        """An id behind the vocabulary: a mask allows it where the text may end."""

    @classmethod
    def of_letters(cls) -> VocabularyGrammars:
        """Each byte is a token, and each word of two or three small letters: enough for a grammar to meet its limits
        where a real vocabulary would."""
        words = ("".join(word) for count in (2, 3) for word in product(ascii_lowercase, repeat=count))
        return cls.of_tokens([*(bytes([byte]) for byte in range(256)), *(word.encode() for word in words)], list)

    @classmethod
    def of_tokens(cls, tokens: Sequence[bytes | None], encode: Encode) -> VocabularyGrammars:
        """`tokens` has the bytes of each id of the model, None for one that stands for no text. `encode` is how the
        tokenizer writes a well-formed text."""
        held = _Tokens(tokens, encode)
        held.tokenizer = LLTokenizer(TokenizerWrapper(held), slices=list(_SLICES))
        return cls(held.tokenizer, held.eos_token_id)

    def compile(self, text: str) -> LLMatcher:
        """Returns a matcher at the start of a grammar. Raises ValueError, which says what is wrong with it."""
        try:
            matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=_LIMITS)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust; no Exception
                raise
            raise ValueError("it could not be compiled") from None
        if matcher.is_error():
            raise ValueError(_reason(matcher.get_error()))
        matcher.compute_bitmask()
        if matcher.is_error():
            raise ValueError(_reason(matcher.get_error()))
        return matcher

    def tokens(self, text: str) -> list[int]:
        """Returns tokens that have this text."""
        return list(self._tokenizer.greedy_tokenize(text))


class _Tokens:
    """A vocabulary as llguidance asks for it."""

    bos_token_id = None
    tokenizer: LLTokenizer | None = None

    def __init__(self, tokens: Sequence[bytes | None], encode: Encode) -> None:
        self.tokens = [*(each or f"<{id}>".encode() for id, each in enumerate(tokens)), b"<end>"]
        self.eos_token_id = len(tokens)
        self.special_token_ids = [*(id for id, each in enumerate(tokens) if not each), self.eos_token_id]
        self._bytes = tokens
        self._encode = encode

    def __call__(self, text: bytes) -> Sequence[int]:
        """The first tokens are enough: the others are asked for when these are written. A text that the tokenizer would
        write with other bytes, or with control tokens, is written with the longest tokens."""
        end = _MOST_FORCED_BYTES
        while end < len(text) and text[end] & 0xC0 == 0x80:  # inside of a character
            end -= 1
        text = text[:end]
        ids = self._encode(text)
        if b"".join(self._bytes_of(id) for id in ids) == text or self.tokenizer is None:
            return ids
        return self.tokenizer.greedy_tokenize(text.decode())

    def _bytes_of(self, id: int) -> bytes:
        return (self._bytes[id] or b"") if 0 <= id < len(self._bytes) else b""


def _reason(error: str) -> str:
    """Returns the reason without the parser's state, which may be long."""
    lines = error.split("<state>")[0].split("<non-verbose/>")[0].strip().splitlines()
    if lines[:1] in (["NoExtension"], ["NoExtensionBias"]):
        return "no text fits it"
    said = " ".join(line.strip() for line in lines)
    return said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON]} …"
