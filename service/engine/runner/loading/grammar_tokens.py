"""The tokens of a version as its grammars know them, read by a thread beside the weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from service.errors import InvalidRequest
from service.text.files import read_files
from service.text.grammars.matching import Encode, VocabularyGrammars
from service.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class GrammarTokens:
    """`tokens` are the bytes of the tokenizer's ids, None for control tokens and for those that end an answer. `encode`
    writes a text with them. `built` is for as many ids as config.json says."""

    tokens: Sequence[bytes | None]
    encode: Encode
    built: VocabularyGrammars

    @classmethod
    def of(cls, tokens: Sequence[bytes | None], encode: Encode, vocab_size: int) -> GrammarTokens:
        """A vocabulary of 150,000 takes 0.4 s."""
        known = tokens[:vocab_size]
        padded = [*known, *[None] * (vocab_size - len(known))]
        return cls(tokens, encode, VocabularyGrammars.of_tokens(padded, encode))

    def grammars(self, vocab_size: int) -> VocabularyGrammars:
        """Returns what compiles grammars for a model that has logits for `vocab_size` ids, which may be more than the
        tokenizer's, or fewer."""
        if self.built.end_id == vocab_size:
            return self.built
        return self.of(self.tokens, self.encode, vocab_size).built


Read = GrammarTokens | str
"""The tokens, or the reason why no grammar can be followed."""


def begin_reading(directory: str) -> Future[Read]:
    """Reads the tokenizer of the version in `directory`."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="grammar tokens")
    try:
        return pool.submit(_read, Path(directory))
    finally:
        pool.shutdown(wait=False)


def _read(directory: Path) -> Read:
    try:
        files = read_files(directory)
        vocabulary = Vocabulary(files)
        stops = {*files.eos_token_ids, vocabulary.id_of(files.named_tokens.get("eos_token", ""))}
        tokens = [None if id in stops else vocabulary.token_bytes(id) for id in range(vocabulary.size)]
    except InvalidRequest as error:
        return error.message
    if not tokens:
        return "The version's tokenizer has no tokens."
    return GrammarTokens.of(
        tokens, lambda text: vocabulary.encode_inside(text.decode()), _told_vocab_size(directory) or len(tokens)
    )


def _told_vocab_size(directory: Path) -> int:
    """Returns what config.json says; 0 if that is nothing."""
    try:
        size = json.loads((directory / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return size if isinstance(size, int) and size > 0 else 0
