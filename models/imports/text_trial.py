"""The text trial loads and uses a foreign chat template and tokenizer, each in a limited child.

The tokenizer's regular expressions search backwards, and one such as `(a+)+b` may take hours over thirty characters. So
the child tries texts that such expressions are slow at: what an expression itself names, again and again.

The trial is a heuristic: no list of texts shows every slow expression. Repeats within repeats are not refused as such,
because published expressions have them, such as `(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+` of EXAONE.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, Any, Final

from models.checkpoint import limited
from models.checkpoint.tokenizer_files import MOST_BYTES, TOKENIZER
from models.errors import InvalidSource
from models.imports import chat_template, tokenizer_bounds

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CHARACTERS: Final = 4096
"""Of a text that is tried."""
_SECONDS: Final = 0.5
"""For such a text, which takes most tokenizers 5 ms; published ones that end words by `\\s+$` take 100 ms."""
_MOST_SECONDS: Final = 2.0
_USUAL: Final = ("a", "A", " ", "\n", "1", "!", "'", "_", "가", "中", "é", "a ", "a1", "Aa", " \n", "a\u0301", "🙂")
_MOST_TEXTS: Final = 256
_WORDS: Final = re.compile(r"\w{2,16}")
_FEW: Final = 64
_REPEATS: Final = 24
"""Of a unit in a short run: an expression that takes twice the time for each does not end."""
_STOPS: Final = ("\0", "\n", "?")
"""A run ends with each of these, so that one of them is not what an expression looks for."""
_MOST_PAIRED: Final = 24
"""The most characters of an expression of which pairs are tried."""
_MOST_RUNS: Final = 4096
_ESCAPED: Final = re.compile(r"\\(?:x\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4}))")
_SYNTAX: Final = re.compile(r"[\[\](){}?:]")
_TOKENIZER: Final = (TOKENIZER, "save it again with tokenizers")


def require_usable(directory: Path) -> None:
    """Raises InvalidSource for a chat template that does not compile, and for a tokenizer that cannot be loaded and
    used within bounds."""
    limited.run("models.imports.text_trial", str(directory), subject=TOKENIZER, way_out=_TOKENIZER[1])


def main(directory: str) -> str:
    """The child. Returns the sentence of a refusal, or ""."""
    limited.at("The chat template", "make it shorter, or leave it out")
    try:
        chat_template.require_compiles(Path(directory))
    except InvalidSource as error:
        return str(error)
    limited.at(*_TOKENIZER)
    why = _why_not(Path(directory, TOKENIZER))
    return f"{TOKENIZER} {why}; {_TOKENIZER[1]}" if why else ""


def _why_not(path: Path) -> str:
    """Returns the middle of a sentence, or ""."""
    from tokenizers import Tokenizer

    if path.stat().st_size > MOST_BYTES:
        return f"is larger than {MOST_BYTES >> 20} MiB"
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        tokenizer_bounds.refuse(content)
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # `tokenizers` raises bare Exception
        return f"cannot be read: {str(error)[:120]}" if type(error) is not ValueError else str(error)
    try:
        return _used(tokenizer, content)
    except BaseException as error:  # a panic of the library is no Exception
        if isinstance(error, MemoryError):
            raise
        return f"fails on a text: {str(error)[:120]}"


def _used(tokenizer: Tokenizer, content: Mapping[str, Any]) -> str:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if (tokens := len(tokenizer.encode("a" * _FEW))) > 2 * _FEW:  # what it puts around every text is among them
        return f"makes {tokens:,} tokens of a text of {_FEW} characters"
    for text, what in _texts(tokenizer_bounds.patterns(content), tokenizer_bounds.texts(content)):
        limited.at(f"{TOKENIZER}, {what},", _TOKENIZER[1], _MOST_SECONDS)
        if all(_seconds(tokenizer, text) > _SECONDS for _ in range(2)):
            return f"takes too long {what}"
    return ""


def _seconds(tokenizer: Tokenizer, text: str) -> float:
    begun = thread_time()
    tokenizer.decode(tokenizer.encode(text).ids)
    return thread_time() - begun


def _texts(patterns: Sequence[str], texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields what is tried, each with the end of a sentence about it: one unit again and again, then short runs."""
    patterns = [_ESCAPED.sub(_unescaped, pattern) for pattern in patterns]
    end = "!\0" + "".join(patterns)[:_CHARACTERS]  # what an expression looks for first is somewhere in the text
    for unit in _units(patterns, texts):
        yield unit * (_CHARACTERS // len(unit)) + end, f"over {_CHARACTERS:,} characters that repeat {unit!r}"
    runs = list(dict.fromkeys(run for pattern in patterns for run in _runs(pattern)))[:_MOST_RUNS]
    for at in range(0, len(runs), _FEW):
        yield "".join(runs[at : at + _FEW]) + end, f"over texts that repeat {_REPEATS} times what its expressions name"


def _units(patterns: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Returns what is repeated: usual characters, those and the words of the patterns, and the texts."""
    own = (unit for pattern in patterns for unit in _named(pattern))
    return list(dict.fromkeys((*_USUAL, *(text[:_FEW] for text in texts), *own)))[:_MOST_TEXTS]


def _named(pattern: str) -> Iterator[str]:
    yield from _WORDS.findall(pattern)
    yield from _WORDS.findall(_SYNTAX.sub("", pattern))  # of classes with a character each, such as `[a][1]`
    yield from pattern


def _runs(pattern: str) -> Iterator[str]:
    """Yields the words of a pattern and pairs of its characters, letters and digits first, each again and again."""
    characters = sorted(dict.fromkeys(pattern), key=lambda each: not each.isalnum())[:_MOST_PAIRED]
    pairs = map("".join, product(characters, repeat=2))
    for unit, stop in product((*_named(pattern), *pairs), _STOPS):
        yield unit * _REPEATS + stop


def _unescaped(match: re.Match[str]) -> str:
    """Returns the character that a code such as `\\x71` means; a code that is no character stays as it is."""
    code = int(next(filter(None, match.groups())), 16)
    return chr(code) if code < 0xD800 or 0xDFFF < code < 0x110000 else match[0]
