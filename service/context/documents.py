"""This module chooses the documents of a call that are sent where not all fit their budget: by rank, or by how well
they match a question. It counts each text by itself; it knows no template and no wire format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.context import retrieval
from service.context.cutting import Span, joined, leading, spans_of
from service.text.messages import Document
from service.text.tokenizer import Tokenizer

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
