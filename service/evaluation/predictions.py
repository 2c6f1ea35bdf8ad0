"""This module measures several versions' predictions on the same text, and their distance from the first version's,
with the engine that serves.

The measurement is teacher-forced: every position is predicted from the true tokens before it. A difference is therefore
the version's own at that position, and no sum of earlier ones.

    perplexity = exp(-mean ln p(token)) over the positions that count
    agreement  = share of positions whose likeliest token is the first version's
    kl         = mean Σ p·ln(p/q) in nats, p the first version's distribution
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from models.intervals import LARGEST_EXPONENT
from service.evaluation.offline import Loaded
from service.evaluation.texts import Text

if TYPE_CHECKING:
    from service.runner.scoring import Distributions


@dataclass(frozen=True, slots=True)
class Predictions:
    """Of every scored position: the true token's logprob, the likeliest token, and the KL divergence from the first
    version (none for the first version itself)."""

    logprobs: Sequence[float]
    likeliest: Sequence[int]
    kl: Sequence[float] = ()
    sizes: Sequence[int] = ()
    """The number of scored positions of each text."""

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
    loaded: Loaded,
    texts: Iterable[Text],
    kept: Distributions,
    is_first: bool,
    on_text: Callable[[], object] = lambda: None,
) -> Predictions:
    """Predicts all `texts`. The first version's distributions go to `kept`; the other versions read them for the same
    texts."""
    from service.runner.scoring import score

    kept.rewind()
    logprobs: list[float] = []
    likeliest: list[int] = []
    kl: list[float] = []
    sizes: list[int] = []
    for text in texts:
        start, adapter = loaded.config.decoder_start, loaded.adapter
        scores = score(loaded.runner, text.token_ids, text.positions, kept, is_first, start, adapter)
        logprobs += scores.logprobs
        likeliest += scores.likeliest
        kl += scores.kl
        sizes.append(len(scores.logprobs))
        on_text()
    return Predictions(logprobs, likeliest, kl, sizes)
