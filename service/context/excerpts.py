"""Excerpts are the parts of long texts that are sent: a beginning, pieces that match a question, both ends. Cuts
are between a text's paragraphs; in a paragraph that is too long, between its sentences; in a sentence that is too long,
between tokens. The module counts each text by itself; it knows no template and no budget of a call.

    text      | paragraph |  | sentence. | sentence. |  | tokens | tokens |
    spans     [0, 11)        [13, 23)    [24, 34)       [36, 44)  [44, 52)
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from service.context import retrieval
from service.text.messages import Document
from service.text.tokenizer import Tokenizer

PARAGRAPH: Final = "\n\n"
LEAST: Final = 16
"""The fewest tokens of a sentence that are worth sending."""
_CHARACTERS: Final = 16
"""More than two tokens have, in nearly every text."""
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
    """Returns how many leading characters have at most `tokens` tokens, counted by themselves. It reads no more of
    `text` than that takes: a long sentence is read once, and not once for each of its parts."""
    reach = _CHARACTERS * tokens
    pieces = tokenizer.encode_with_offsets(text[:reach], add_special_tokens=False)
    while len(pieces) < 2 * tokens and reach < len(text):
        reach *= 2
        pieces = tokenizer.encode_with_offsets(text[:reach], add_special_tokens=False)
    for count in range(min(tokens, len(pieces)), 0, -1):
        length = pieces[count - 1][3]
        if tokenizer.text_tokens(text[:length]) <= tokens:
            return length
    return 0


Placed = tuple[int, Document]
"""A document's position among the given ones, and the part of it that is sent."""


def by_rank(tokenizer: Tokenizer, documents: Sequence[Document], budget: int) -> list[Placed]:
    """Returns the documents of the highest rank that fit `budget` tokens, and of the first that does not, the beginning
    that does."""
    kept: list[Placed] = []
    for at, document in enumerate(documents):
        budget -= tokenizer.text_tokens(document.title or "")
        text = leading(tokenizer, document.text, budget)
        if text or (not document.text and budget >= 0):
            kept.append((at, replace(document, text=text)))
        if len(text) < len(document.text):
            break
        budget -= tokenizer.text_tokens(text)
    return kept


def by_match(tokenizer: Tokenizer, documents: Sequence[Document], budget: int, question: str) -> list[Placed]:
    """Returns all documents where they fit; else the pieces that match best while they fit, in their order."""
    if sum(tokenizer.text_tokens(text) for each in documents for text in (each.title or "", each.text)) <= budget:
        return list(enumerate(documents))
    titles = [tokenizer.text_tokens(each.title or "") for each in documents]
    pieces = [
        (at, span)
        for at, document in enumerate(documents)
        for span in spans_of(tokenizer, document.text, budget - titles[at])
    ]
    texts = [documents[at].text[slice(*span)] for at, span in pieces]
    titled = [f"{documents[at].title or ''}\n{text}" for (at, _), text in zip(pieces, texts, strict=True)]
    chosen: dict[int, list[Span]] = {}
    for best in retrieval.ranked(retrieval.scores(question, titled)):
        at, span = pieces[best]
        around = 1 if at in chosen else titles[at]
        tokens = around + tokenizer.text_tokens(texts[best])
        if tokens <= budget:
            chosen.setdefault(at, []).append(span)
            budget -= tokens
    return [(at, replace(documents[at], text=joined(documents[at].text, chosen[at]))) for at in sorted(chosen)]


MARK: Final = "\n[… {count} tokens left out …]\n"


def without_middle(tokenizer: Tokenizer, text: str, tokens: int) -> tuple[str, int]:
    """Returns `text` without about `tokens` of the tokens in its middle, and how many were left out. Both ends are
    equally long, and consist of whole characters."""
    pieces = tokenizer.encode_with_offsets(text, add_special_tokens=False)
    kept = max(0, len(pieces) - tokens)
    head, tail = (kept + 1) // 2, kept // 2
    first = pieces[head - 1][3] if head else 0
    last = pieces[len(pieces) - tail][2] if tail else len(text)
    left_out = len(pieces) - kept
    return f"{text[:first]}{MARK.format(count=left_out)}{text[max(first, last) :]}", left_out
