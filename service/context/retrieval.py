"""Which texts match a question: BM25 over pairs of characters, and how much a text tells at all. Pure; knows no turns,
no store and no model.

    score(text) = (bm25 + TELLING · told) · (ASKING where the text is a question itself)

    bm25  sum over the question's pairs of idf · f (k + 1) / (f + k (1 - b + b · length / mean length))
    told  sum of the text's idf, one each pair, over the square root of its length: what is rare says much
    idf   ln(1 + (n - df + 1/2) / (df + 1/2)), over all texts of the chat

A chat's own questions resemble a question more than what answers it does, and of texts that share no pair with it those
that tell most are the likeliest to. Source of the first term: Robertson and Zaragoza, The Probabilistic Relevance
Framework, 2009; the other two were measured with the demo model's chats (docs/log.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from service.text.grams import bigrams

_K: Final = 1.2
_B: Final = 0.75
TELLING: Final = 0.4
ASKING: Final = 0.25
_QUESTION_MARKS: Final = "?？؟"


def asks(text: str) -> bool:
    return any(mark in text for mark in _QUESTION_MARKS)


def scores(
    question: str,
    texts: Sequence[str],
    questions: Sequence[bool] = (),
    others: Sequence[str] = (),
    telling: float = TELLING,
) -> list[float]:
    """One for each of `texts`; with `telling` 0, what shares nothing with `question` has 0. `questions` says which of
    them ask. `others` count for how rare a pair is, and are not looked for."""
    counts = [Counter(bigrams(text)) for text in texts]
    rarity = _idf([*counts, *(Counter(bigrams(text)) for text in others)])
    lengths = [sum(count.values()) for count in counts]
    mean = sum(lengths) / max(1, len(lengths)) or 1.0
    asked = set(bigrams(question))
    found = [
        _bm25(asked, count, rarity, length / mean)
        + telling * sum(rarity[pair] for pair in count) / math.sqrt(length or 1)
        for count, length in zip(counts, lengths, strict=True)
    ]
    for at, is_question in enumerate(questions):
        found[at] *= ASKING if is_question else 1
    return found


def _idf(counts: Sequence[Counter[str]]) -> dict[str, float]:
    known = Counter(pair for count in counts for pair in count)
    return {pair: math.log(1 + (len(counts) - df + 0.5) / (df + 0.5)) for pair, df in known.items()}


def _bm25(asked: set[str], count: Counter[str], idf: dict[str, float], length: float) -> float:
    weight = _K * (1 - _B + _B * length)
    return sum(idf[pair] * count[pair] * (_K + 1) / (count[pair] + weight) for pair in asked & count.keys())


def ranked(found: Sequence[float]) -> list[int]:
    """Their places, the highest score first, of equal ones the newest."""
    return sorted(range(len(found)), key=lambda at: (-found[at], -at))
