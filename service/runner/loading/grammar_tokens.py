"""The tokens of a version as its grammars know them, read by a thread beside the weights."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from service.errors import InvalidRequest
from service.grammars.matching import VocabularyGrammars
from service.text.files import read_files
from service.text.vocabulary import Vocabulary

Read = tuple[VocabularyGrammars | None, str]
"""What compiles the version's grammars; or None and the reason why no grammar can be followed."""


def begin_reading(directory: str) -> Future[Read]:
    """Reads the tokenizer of the version in `directory`."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="grammar tokens")
    try:
        return pool.submit(_read, Path(directory))
    finally:
        pool.shutdown(wait=False)


def _read(directory: Path) -> Read:
    try:
        vocabulary = Vocabulary(read_files(directory))
        tokens = [vocabulary.token_bytes(id) for id in range(vocabulary.size)]
    except InvalidRequest as error:
        return None, error.message
    if not tokens:
        return None, "The version's tokenizer has no tokens."
    return VocabularyGrammars.of_tokens(tokens, lambda text: vocabulary.encode_inside(text.decode())), ""
