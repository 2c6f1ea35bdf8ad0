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
from typing import TYPE_CHECKING

from service.evaluation.offline import Loaded
from service.evaluation.texts import Text

if TYPE_CHECKING:
    from service.runner.scoring import Distributions

_LARGEST_EXPONENT = 700.0  # exp of more overflows a double


@dataclass(frozen=True, slots=True)
class Predictions:
    """Of every scored position: the true token's logprob, the likeliest token, and the KL divergence from the first
    version (none for the first version itself)."""

    logprobs: Sequence[float]
    likeliest: Sequence[int]
    kl: Sequence[float] = ()

    @property
    def perplexity(self) -> float:
        return math.exp(min(_LARGEST_EXPONENT, -sum(self.logprobs) / len(self.logprobs)))

    @property
    def mean_kl(self) -> float:
        return max(0.0, sum(self.kl) / len(self.kl)) if self.kl else 0.0  # below 0 is rounding

    def agreement(self, other: Predictions) -> float:
        same = sum(mine == theirs for mine, theirs in zip(self.likeliest, other.likeliest, strict=True))
        return same / len(self.likeliest)


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
    for text in texts:
        start, adapter = loaded.config.decoder_start, loaded.adapter
        scores = score(loaded.runner, text.token_ids, text.positions, kept, is_first, start, adapter)
        logprobs += scores.logprobs
        likeliest += scores.likeliest
        kl += scores.kl
        on_text()
    return Predictions(logprobs, likeliest, kl)
