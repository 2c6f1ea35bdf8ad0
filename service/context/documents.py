"""Which documents of a call are sent where not all fit their budget: by rank, or by how they match a question. Knows
tokens of texts by themselves; no template and no wire format."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from service.context import retrieval
from service.text.messages import Document
from service.text.tokenizer import Tokenizer

Placed = tuple[int, Document]
"""A document's place among those given, and what is sent of it."""
_PARAGRAPH = "\n\n"


def by_rank(tokenizer: Tokenizer, documents: Sequence[Document], budget: int) -> list[Placed]:
    """Those of the highest rank that fit so many tokens; of the first that does not, its leading paragraphs that do."""
    kept: list[Placed] = []
    for at, document in enumerate(documents):
        budget -= tokenizer.text_tokens(document.title or "")
        paragraphs = document.text.split(_PARAGRAPH)
        leading = partial(_tokens_of_first, tokenizer, paragraphs)
        count = bisect_right(range(1, len(paragraphs) + 1), budget, key=leading)
        if count:
            kept.append((at, replace(document, text=_PARAGRAPH.join(paragraphs[:count]))))
        if count < len(paragraphs):
            break
        budget -= tokenizer.text_tokens(document.text)
    return kept


def by_match(tokenizer: Tokenizer, documents: Sequence[Document], budget: int, question: str) -> list[Placed]:
    """All of them where they fit; else the paragraphs that match best while they fit, in their order."""
    if sum(tokenizer.text_tokens(text) for each in documents for text in (each.title or "", each.text)) <= budget:
        return list(enumerate(documents))
    paragraphs = [
        (at, place, text)
        for at, document in enumerate(documents)
        for place, text in enumerate(document.text.split(_PARAGRAPH))
    ]
    titled = [f"{documents[at].title or ''}\n{text}" for at, _, text in paragraphs]
    chosen: dict[int, list[tuple[int, str]]] = {}
    for best in retrieval.ranked(retrieval.scores(question, titled)):
        at, place, text = paragraphs[best]
        around = 1 if at in chosen else tokenizer.text_tokens(documents[at].title or "")
        tokens = around + tokenizer.text_tokens(text)
        if tokens <= budget:
            chosen.setdefault(at, []).append((place, text))
            budget -= tokens
    return [
        (at, replace(documents[at], text=_PARAGRAPH.join(text for _, text in sorted(chosen[at]))))
        for at in sorted(chosen)
    ]


def _tokens_of_first(tokenizer: Tokenizer, paragraphs: Sequence[str], count: int) -> int:
    return tokenizer.text_tokens(_PARAGRAPH.join(paragraphs[:count]))
