"""This module measures several versions' predictions on the same text, and their distance from the first version's,
with the engine that serves.

The measurement is teacher-forced: every position is predicted from the true tokens before it. A difference is therefore
the version's own at that position, and no sum of earlier ones.

    perplexity = exp(-mean ln p(token)) over the positions that count
    agreement  = share of positions whose likeliest token is the first version's
    clear      = a position where the first version's likeliest token leads by `models.repository.report.CLEAR` nats or
               more
    kl         = mean Σ p·ln(p/q) in nats, p the first version's distribution
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from models.repository.intervals import LARGEST_EXPONENT
from models.repository.report import CLEAR
from service.errors import GenerationFailed
from service.evaluation.offline import Loaded
from service.evaluation.texts import Text

if TYPE_CHECKING:
    from service.engine.runner.scoring import Scores


@dataclass(frozen=True, slots=True)
class Predictions:
    """Of every scored position: the true token's logprob, the likeliest token, and the KL divergence from the first
    version. Of the first version itself: no divergence, and by how much its likeliest token leads (`margins`).
    `sizes` has the number of scored positions of each text."""

    logprobs: list[float] = field(default_factory=list)
    likeliest: list[int] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)

    @property
    def perplexity(self) -> float:
        return math.exp(min(LARGEST_EXPONENT, -sum(self.logprobs) / len(self.logprobs)))

    @property
    def mean_kl(self) -> float:
        return max(0.0, sum(self.kl) / len(self.kl)) if self.kl else 0.0  # below 0 is rounding

    def agreement(self, other: Predictions) -> float:
        return sum(self.same(other)) / len(self.likeliest)

    def same(self, other: Predictions) -> list[int]:
        """Returns 1 for each position whose likeliest token is the other's, else 0."""
        return [int(mine == theirs) for mine, theirs in zip(self.likeliest, other.likeliest, strict=True)]

    def clear(self) -> list[int]:
        """Returns 1 for each position where this version's likeliest token leads by `CLEAR`, else 0."""
        return [int(margin >= CLEAR) for margin in self.margins]

    def clear_same(self, first: Predictions) -> list[int]:
        """Returns 1 for each clear position of the first version whose likeliest token is the same here, else 0."""
        return [same and clear for same, clear in zip(self.same(first), first.clear(), strict=True)]

    def clear_agreement(self, first: Predictions) -> float | None:
        """Returns the share of the first version's clear positions; None where it has none."""
        clear = sum(first.clear())
        return sum(self.clear_same(first)) / clear if clear else None

    def losses(self) -> list[float]:
        """Returns the sum of -ln p of each text, in nats."""
        return [
            min(-sum, LARGEST_EXPONENT * size)
            for sum, size in zip(self.by_text(self.logprobs), self.sizes, strict=True)
        ]

    def by_text(self, values: Sequence[float]) -> list[float]:
        """Returns the sum over each text's positions of one value a position."""
        left = iter(values)
        return [math.fsum(islice(left, size)) for size in self.sizes]


def predict(
    versions: Sequence[Loaded], texts: Iterable[Text], on_text: Callable[[], object] = lambda: None
) -> list[Predictions]:
    """Predicts all `texts` with every version, text by text, and compares each version with the first. Raises
    GenerationFailed for a version with a logprob or a divergence that is not finite."""
    from service.engine.runner.scoring import Scorer, score

    scorers = [Scorer(each.runner, each.config.decoder_start, each.adapter) for each in versions]
    predictions = [Predictions() for _ in versions]
    for text in texts:
        scored = score(scorers, text.token_ids, text.positions)
        for version, taken, scores in zip(versions, predictions, scored, strict=True):
            _check_finite(version.reference, scores)
            taken.logprobs.extend(scores.logprobs)
            taken.likeliest.extend(scores.likeliest)
            taken.kl.extend(scores.kl)
            taken.margins.extend(scores.margins)
            taken.sizes.append(len(scores.logprobs))
        on_text()
    return predictions


def _check_finite(reference: str, scores: Scores) -> None:
    numbers = zip(scores.logprobs, scores.kl, strict=True) if scores.kl else zip(scores.logprobs, strict=True)
    unusable = sum(not all(map(math.isfinite, each)) for each in numbers)
    if unusable:
        raise GenerationFailed(
            f"{reference} predicts no usable numbers at {unusable} of {len(scores.logprobs)} positions of a text: its "
            "weights overflow its precision or are damaged. Import or quantize it again, in another precision"
        )
