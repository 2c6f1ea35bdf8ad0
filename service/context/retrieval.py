"""Retrieval scores which texts match a question: BM25 over words or pairs of characters, and how much information a
text holds. Of a chat's turns
those come back that match best, while they fit. It is pure; it knows no store and no model.

    score(text) = (bm25 + INFORMATION_WEIGHT · information) · (QUESTION_WEIGHT where the text is a question itself)

    bm25  sum over the question's terms of idf · f (k + 1) / (f + k (1 - b + b · length / mean length))
    information  sum of the text's idf, one each term, over the square root of its length: rare terms say much
    idf   ln(1 + (n - df + 1/2) / (df + 1/2)), over all texts of the chat

A chat's own questions resemble a question more than its answers do: hence QUESTION_WEIGHT. Among texts that share no
term with the question, the ones with the most information are the likeliest to answer it: hence `information`.
Source of the first term: Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009. The other two were
measured with the demo model's chats (loadtest/results/log.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from service.text.grams import terms

_K: Final = 1.2
_B: Final = 0.75
INFORMATION_WEIGHT: Final = 0.8
QUESTION_WEIGHT: Final = 0.25
ENOUGH: Final = 0.4
"""A share of the best score: texts below it are noise, and take room from better ones."""
_QUESTION_MARKS: Final = ("?", "？", "؟")


def asks(text: str) -> bool:
    """Returns whether the text ends as a question: a text that only holds a mark may give an answer ("My name?
    Ann.")."""
    return text.rstrip(" \"')\n").endswith(_QUESTION_MARKS)


def scores(
    question: str,
    texts: Sequence[str],
    questions: Sequence[bool] = (),
    others: Sequence[str] = (),
    information_weight: float = INFORMATION_WEIGHT,
) -> list[float]:
    """Returns one score for each of `texts`; with `information_weight` 0, a text that shares
    nothing with `question` has 0.
    `questions` says which texts ask. `others` count for how rare a pair is, and get no score."""
    counts = [Counter(terms(text)) for text in texts]
    rarity = _idf([*counts, *(Counter(terms(text)) for text in others)])
    lengths = [sum(count.values()) for count in counts]
    mean = sum(lengths) / max(1, len(lengths)) or 1.0
    query = set(terms(question))
    weighed = [
        _bm25(query, count, rarity, length / mean)
        + information_weight * sum(rarity[term] for term in count) / math.sqrt(length or 1)
        for count, length in zip(counts, lengths, strict=True)
    ]
    for at, is_question in enumerate(questions):
        weighed[at] *= QUESTION_WEIGHT if is_question else 1
    return weighed


def _idf(counts: Sequence[Counter[str]]) -> dict[str, float]:
    known = Counter(term for count in counts for term in count)
    return {term: math.log(1 + (len(counts) - df + 0.5) / (df + 0.5)) for term, df in known.items()}


def _bm25(query: set[str], count: Counter[str], idf: dict[str, float], length: float) -> float:
    weight = _K * (1 - _B + _B * length)
    return sum(idf[term] * count[term] * (_K + 1) / (count[term] + weight) for term in query & count.keys())


def ranked(scored: Sequence[float]) -> list[int]:
    """Returns the positions of the scores, highest first; of equal scores the newest first."""
    return sorted(range(len(scored)), key=lambda at: (-scored[at], -at))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided of one turn: its `score`, of which more than `enough` is needed, and its `tokens`, for which
    there was `room`. `rank` counts from 1, the best score."""

    turn: int
    rank: int
    score: float
    enough: float
    tokens: int
    room: int

    @property
    def matches(self) -> bool:
        return self.score > self.enough

    @property
    def comes_back(self) -> bool:
        return self.matches and self.tokens <= self.room


@dataclass(frozen=True, slots=True)
class Recall:
    """The turns that were left out, with their scores and tokens; `room` is what they may take together."""

    turns: Sequence[int] = ()
    scores: Sequence[float] = ()
    tokens: Sequence[int] = ()
    room: int = 0

    def verdicts(self) -> Iterator[Verdict]:
        """Yields one verdict for each turn, the best score first. A turn that comes back takes its room from the
        next ones."""
        enough, room = ENOUGH * max(self.scores, default=0.0), self.room
        for rank, at in enumerate(ranked(self.scores), 1):
            verdict = Verdict(self.turns[at], rank, self.scores[at], enough, self.tokens[at], room)
            room -= verdict.tokens if verdict.comes_back else 0
            yield verdict

    @property
    def chosen(self) -> tuple[int, ...]:
        """Returns the turns that come back, in their order."""
        return tuple(sorted(verdict.turn for verdict in self.verdicts() if verdict.comes_back))
