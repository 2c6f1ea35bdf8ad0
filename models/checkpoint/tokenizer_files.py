"""This module names a version's tokenizer files, and makes `tokenizer.json` from older formats if it is missing."""

import json
from pathlib import Path
from typing import Any, Final

from models.checkpoint import limited
from models.checkpoint.config_policy import read_json
from models.errors import InvalidSource

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
FILES = (TOKENIZER, CONFIG, "special_tokens_map.json")
SLOW_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "merges.txt", "vocab.txt")
ADDED = "added_tokens.json"
"""Tokens beside those of slow files, with their ids; it is no tokenizer by itself."""
TO_CONVERT = (*SLOW_FILES, ADDED)
MOST_BYTES: Final = 64 << 20
"""Of a tokenizer.json; the largest that are known have 35 MB."""
_WAY_OUT: Final = "save the model's fast tokenizer into the directory"


def convert_slow(directory: Path) -> None:
    """Make `tokenizer.json` from the slow tokenizer files that were copied to `directory`, and remove those.

    Raises InvalidSource when none is there, transformers cannot convert them, or a token gets another id than theirs.
    """
    slow = [name for name in SLOW_FILES if (directory / name).exists()]
    if not slow:
        raise InvalidSource(f"There is no tokenizer.json; {_WAY_OUT}")
    subject = f"The conversion of {', '.join(slow)} to a tokenizer.json"
    limits = limited.Limits(seconds=60, bytes=4 << 30, written=MOST_BYTES)
    words = (str(directory), subject, _WAY_OUT, str(directory / TOKENIZER))
    limited.run("models.checkpoint.slow_tokenizer", *words, subject=subject, way_out=_WAY_OUT, limits=limits)
    check_ids(directory)
    for name in TO_CONVERT:
        (directory / name).unlink(missing_ok=True)


def check_ids(directory: Path) -> None:
    """Raises InvalidSource for a token that the files of a slow tokenizer name, and whose id is another one now."""
    made: Any = json.loads((directory / TOKENIZER).read_bytes())  # of the library, so that its size is no matter
    vocabulary = made["model"]["vocab"]
    if isinstance(vocabulary, list):  # pieces of a unigram model, each with its score
        vocabulary = {piece: id for id, (piece, _) in enumerate(vocabulary)}
    ids = {**vocabulary, **{token["content"]: token["id"] for token in made["added_tokens"]}}
    for name in ("vocab.json", ADDED):
        for token, id in read_json(directory / name).items() if (directory / name).exists() else ():
            if ids.get(token) != id:
                raise InvalidSource(
                    f"{name} gives the token {token[:40]!r} the id {id}, and transformers {ids.get(token)}: save the "
                    "model's fast tokenizer into the directory"
                )
