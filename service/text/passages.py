"""This module cuts a document into passages that can be found and sent alone: whole paragraphs if they are short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

LONGEST: Final = 600
"""Characters."""
_PARAGRAPH: Final = "\n\n"
_ENDS: Final = re.compile(r"(?<=[.!?。？！])\s+|\n")


def passages_of(text: str) -> list[str]:
    """Returns the passages in order, each of at most LONGEST characters. It joins short neighbours and leaves out only
    white space."""
    return list(_joined(_parts(text)))


def titled(title: str | None, passage: str) -> str:
    """Returns the passage as it is sent and found."""
    return f"{title}\n{passage}" if title else passage


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yields each part with the separator before it."""
    for paragraph in re.split(r"\n\s*\n", text):
        between = _PARAGRAPH
        for sentence in _ENDS.split(paragraph.strip()) if len(paragraph) > LONGEST else [paragraph.strip()]:
            while sentence:
                yield between, sentence[:LONGEST]
                sentence, between = sentence[LONGEST:], "\n"
            between = "\n"


def _joined(parts: Iterator[tuple[str, str]]) -> Iterator[str]:
    passage = ""
    for between, part in parts:
        if passage and len(passage) + len(between) + len(part) > LONGEST:
            yield passage
            passage = ""
        passage = f"{passage}{between}{part}" if passage else part
    if passage:
        yield passage
