"""The bounds of a tokenizer.json keep a text's length in bounds: a tokenizer can make a thousand characters of one.

    {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}     in a row of sixty: 2^60 characters of one

This module reads the file's JSON and loads no tokenizer. It knows what of a file makes a text longer; what time it
takes, `text_trial` finds out.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

MOST_GROWTH: Final = 64
"""The most characters that one character of a text becomes. Unicode's own forms (NFKC) have 18."""
MOST_STEPS: Final = 64
MOST_TOKEN: Final = 4096
"""The most characters of a token."""
_MOST_OF_MODEL: Final = {"continuing_subword_prefix": 64, "end_of_word_suffix": 64, "max_input_chars_per_word": 1_000}
_PARTS: Final = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
"""Each part, and what the steps of a sequence are called there."""
_CONSUMING: Final = re.compile(
    r"(?:(?:[^\\^$.|?*+()\[\]{}]|\\[dDsSwWnrt]|\[\^?(?:[^\\^\[\]]|\\[dDsSwWnrt])+\])(?:\+|\{[1-9]\d*,?\})?)+"
)
"""Expressions of which every match has a character: each of their items is a character or a class, such as ` {2,}`."""


def refuse(tokenizer: Mapping[str, Any]) -> None:
    """Raises ValueError, whose text is the end of a sentence, for a tokenizer that makes texts too long."""
    for part, name in _PARTS.items():
        steps = list(_steps(tokenizer.get(part), name))
        if len(steps) > MOST_STEPS:
            raise ValueError(f"has {len(steps):,} steps in its {part}, and at most {MOST_STEPS} are accepted")
        growth = math.prod(map(_growth, steps)) if part != "decoder" else math.prod(map(_replaced, steps))
        if growth > MOST_GROWTH:
            raise ValueError(
                f"makes up to {growth:,.0f} characters of one in its {part}, and at most {MOST_GROWTH} are accepted"
            )
    model = tokenizer.get("model") or {}
    for key, most in _MOST_OF_MODEL.items():
        value = model.get(key)
        if (len(value) if isinstance(value, str) else value or 0) > most:
            raise ValueError(f"has a {key} above {most:,}")
    longest = max(map(len, _tokens(tokenizer, model)), default=0)
    if longest > MOST_TOKEN:
        raise ValueError(f"has a token of {longest:,} characters, and at most {MOST_TOKEN:,} are accepted")


def patterns(tokenizer: Mapping[str, Any]) -> list[str]:
    """Returns the regular expressions."""
    named = (_pattern(step) for step in _all_steps(tokenizer))
    return [regex for _, regex in named if isinstance(regex, str)]


def texts(tokenizer: Mapping[str, Any]) -> list[str]:
    """Returns the texts that steps look for, and those that steps put."""
    named = (text for step in _all_steps(tokenizer) for text in (_pattern(step)[0], step.get("content")))
    return [text for text in named if isinstance(text, str) and text]


def _all_steps(tokenizer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (step for part, name in _PARTS.items() for step in _steps(tokenizer.get(part), name))


def _pattern(step: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns what a step looks for: a text, a regular expression, or None for both."""
    pattern = step.get("pattern")
    return (pattern.get("String"), pattern.get("Regex")) if isinstance(pattern, dict) else (None, None)


def _steps(part: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """Yields the steps of a part; a sequence stands for its own."""
    waiting = [part]
    while waiting:
        step = waiting.pop(0)
        if isinstance(step, dict) and step.get("type") == "Sequence":
            waiting = [*step.get(name, ()), *waiting]
        elif isinstance(step, dict):
            yield step


def _growth(step: Mapping[str, Any]) -> float:
    match step.get("type"):
        case "ByteLevel":
            return 2  # a byte becomes a character, and that has two
        case "Prepend":
            return 1 + len(step.get("prepend") or "")
        case "Precompiled":
            return max(1, _longest_of(str(step.get("precompiled_charsmap") or "")))
        case _:
            return _replaced(step)


def _replaced(step: Mapping[str, Any]) -> float:
    """Returns the growth by a step that puts a text for each match. A match without a character may stand before every
    character, which stays."""
    text, regex = _pattern(step)
    content = step.get("content")
    if step.get("type") != "Replace" or not isinstance(content, str):
        return 1
    if isinstance(text, str) and text:
        return max(1, len(content) / len(text))
    is_consuming = isinstance(regex, str) and _CONSUMING.fullmatch(regex) is not None
    return max(1, len(content)) if is_consuming else 1 + len(content)


def _longest_of(charsmap: str) -> int:
    """Returns the characters of the longest text that sentencepiece's map puts for a character: behind a tree, whose
    length in bytes stands before it, the texts end with NUL."""
    data = base64.b64decode(charsmap)
    found = data[4 + int.from_bytes(data[:4], "little") :].decode(errors="replace").split("\0")
    return max(map(len, found))


def _tokens(tokenizer: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[str]:
    vocabulary = model.get("vocab") or ()
    yield from (each if isinstance(each, str) else each[0] for each in vocabulary)  # unigrams have a score each
    yield from (each["content"] for each in tokenizer.get("added_tokens") or ())
