"""Cutting finds where a long text may be cut: between its paragraphs; in a paragraph that is too long, between its
sentences; in a sentence that is too long, between tokens. It knows a tokenizer; no budget of a call and no documents.

    text      | paragraph |  | sentence. | sentence. |  | tokens | tokens |
    spans     [0, 11)        [13, 23)    [24, 34)       [36, 44)  [44, 52)
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from service.text.tokenizer import Tokenizer

PARAGRAPH: Final = "\n\n"
LEAST: Final = 16
"""The fewest tokens of a sentence that are worth sending."""
Span = tuple[int, int]
_PARAGRAPHS: Final = re.compile(re.escape(PARAGRAPH))
_SENTENCES: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。？！])\s*|\n")


def leading(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """Returns the longest beginning with at most `tokens` tokens: whole paragraphs; where not one fits, whole
    sentences; where not one fits LEAST tokens or more, up to a whole character."""
    if tokenizer.text_tokens(text) <= tokens:
        return text
    for between in (_PARAGRAPHS, _SENTENCES):
        spans = _split(text, (0, len(text)), between)
        count = bisect_right(spans, tokens, key=lambda span: tokenizer.text_tokens(text[: span[1]]))
        if count:
            return text[: spans[count - 1][1]]
    return text[: _fitting(tokenizer, text, tokens)] if tokens >= LEAST else ""


def spans_of(tokenizer: Tokenizer, text: str, tokens: int) -> Iterator[Span]:
    """Yields the text's pieces in order: paragraphs; where a paragraph has more than `tokens` tokens, its sentences;
    where a sentence has more, runs of as many tokens as fit, if these are at least LEAST."""
    for paragraph in _split(text, (0, len(text)), _PARAGRAPHS):
        if tokenizer.text_tokens(text[slice(*paragraph)]) <= tokens:
            yield paragraph
            continue
        for sentence in _split(text, paragraph, _SENTENCES):
            yield from _by_tokens(tokenizer, text, sentence, tokens)


def joined(text: str, spans: Sequence[Span]) -> str:
    """Returns the pieces in order, with the text between neighbours; a paragraph's break stands where some text is left
    out."""
    parts, end = [], -1
    for first, stop in sorted(spans):
        between = text[end:first] if end >= 0 else ""
        parts += [between if not between.strip() else PARAGRAPH, text[first:stop]]
        end = stop
    return "".join(parts)


def _split(text: str, span: Span, between: re.Pattern[str]) -> list[Span]:
    """Returns the span's parts that hold more than white space; where there is none, the whole span."""
    first, stop = span
    breaks = [match.span() for match in between.finditer(text, first, stop)]
    starts, ends = [first, *(end for _, end in breaks)], [*(start for start, _ in breaks), stop]
    return [each for each in zip(starts, ends, strict=True) if text[slice(*each)].strip()] or [span]


def _by_tokens(tokenizer: Tokenizer, text: str, span: Span, tokens: int) -> Iterator[Span]:
    first, stop = span
    if tokenizer.text_tokens(text[first:stop]) <= tokens:
        yield span
        return
    while tokens >= LEAST and first < stop and (length := _fitting(tokenizer, text[first:stop], tokens)):
        yield first, first + length
        first += length


def _fitting(tokenizer: Tokenizer, text: str, tokens: int) -> int:
    """Returns how many leading characters have at most `tokens` tokens, counted by themselves."""
    pieces = tokenizer.encode_with_offsets(text, add_special_tokens=False)
    for count in range(min(tokens, len(pieces)), 0, -1):
        length = pieces[count - 1][3]
        if tokenizer.text_tokens(text[:length]) <= tokens:
            return length
    return 0
