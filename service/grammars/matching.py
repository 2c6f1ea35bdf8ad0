"""Matchers of grammars over a vocabulary: the one place that calls llguidance.

Both the process that tries a grammar and the engine process that follows it compile here, with the same limits. What a
grammar costs hardly depends on the vocabulary, so bytes as tokens are enough to try one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

_LIMITS: Final = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
"""Of one step 50,000 parser items and 200,000 units of the lexer (about 15 ms), its defaults: then the answer ends."""
_LONGEST_REASON: Final = 300


class VocabularyGrammars:
    """Compiles grammars for one vocabulary. Any thread may call it."""

    def __init__(self, tokenizer: LLTokenizer, end_id: int) -> None:
        self._tokenizer = tokenizer
        self.end_id = end_id
        """An id behind the vocabulary: a mask allows it where the text may end."""

    @classmethod
    def of_bytes(cls) -> VocabularyGrammars:
        """Each byte is a token."""
        return cls.of_tokens([bytes([byte]) for byte in range(256)], list)

    @classmethod
    def of_tokens(cls, tokens: Sequence[bytes | None], encode: Callable[[bytes], Sequence[int]]) -> VocabularyGrammars:
        """`tokens` has the bytes of each id, None for one that stands for no text. `encode` is how the tokenizer writes
        a well-formed text."""
        end_id = len(tokens)
        nothing = [id for id, each in enumerate(tokens) if not each]
        return cls(LLTokenizer(TokenizerWrapper(_Tokens(tokens, end_id, nothing, encode))), end_id)

    def compile(self, text: str) -> LLMatcher:
        """Returns a matcher at the start of a grammar. Raises ValueError, which says what is wrong with it."""
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise ValueError(_reason(matcher.get_error()))
        matcher.compute_bitmask()
        if matcher.is_error():
            raise ValueError(_reason(matcher.get_error()))
        return matcher


class _Tokens:
    """A vocabulary as llguidance asks for it."""

    bos_token_id = None

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        end_id: int,
        nothing: Sequence[int],
        encode: Callable[[bytes], Sequence[int]],
    ) -> None:
        self.tokens = [*(each or f"<{id}>".encode() for id, each in enumerate(tokens)), b"<end>"]
        self.special_token_ids = [*nothing, end_id]
        self.eos_token_id = end_id
        self._encode = encode

    def __call__(self, text: bytes) -> Sequence[int]:
        return self._encode(text)


def _reason(error: str) -> str:
    """Returns the reason without the parser's state, which may be long."""
    lines = error.split("<state>")[0].strip().splitlines()
    if lines[:1] in (["NoExtension"], ["NoExtensionBias"]):
        return "no text fits it"
    said = " ".join(line.strip() for line in lines)
    return said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON]} …"
