"""This module makes a version's `tokenizer.json` from older formats if it is missing, and loads it once in a child.

A foreign tokenizer may be built to waste time or memory. So the first load runs in a child, where both are limited.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from models.checkpoint.config_policy import read_json
from models.errors import InvalidSource

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
FILES = (TOKENIZER, CONFIG, "special_tokens_map.json")
SLOW_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "merges.txt", "vocab.txt")
ADDED = "added_tokens.json"
"""Tokens beside those of slow files, with their ids; it is no tokenizer by itself."""
TO_CONVERT = (*SLOW_FILES, ADDED)
_SECONDS = 20
_BYTES = 2 << 30
_TRIAL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))
resource.setrlimit(resource.RLIMIT_AS, ({bytes}, {bytes}))
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
tokenizer.decode(tokenizer.encode("a 도시락 1").ids)
"""


def convert_slow(directory: Path) -> None:
    """Make `tokenizer.json` from the slow tokenizer files that were copied to `directory`, and remove those.

    Raises InvalidSource when none is there, transformers cannot convert them, or a token gets another id than theirs.
    """
    slow = [name for name in SLOW_FILES if (directory / name).exists()]
    if not slow:
        raise InvalidSource("There is no tokenizer.json; save the model's fast tokenizer into the directory")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            directory, use_fast=True, trust_remote_code=False, local_files_only=True
        )
        tokenizer.backend_tokenizer.save(str(directory / TOKENIZER))
    except Exception as error:  # transformers and its tokenizer backends raise anything here
        raise InvalidSource(
            f"{', '.join(slow)} could not be converted to a tokenizer.json ({type(error).__name__}); "
            "save the model's fast tokenizer into the directory"
        ) from error
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


def try_loading(directory: Path) -> None:
    """Load and use `tokenizer.json` in a child that has 20 s and 2 GiB. Raises InvalidSource when that fails."""
    command = [sys.executable, "-I", "-c", _TRIAL.format(seconds=_SECONDS, bytes=_BYTES), str(directory / TOKENIZER)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=3 * _SECONDS, check=False)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode != 0:
        raise InvalidSource("tokenizer.json does not load within 20 seconds and 2 GiB; save it again with tokenizers")
