"""Adaptive micro-batching: how many tokens one step may take, from what steps have cost on this machine so far.

A page of arithmetic: nothing here knows sequences' contents, blocks or clocks. Times are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from service.engine.request import Batch


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes, as far as its cost goes."""

    tokens: int
    """All scheduled tokens."""
    kv_tokens: int = 0
    """Context read by the sequences that decode (one token each)."""
    attention: float = 0.0
    """Query-key pairs of the prefill chunks: tokens · mean context."""

    @classmethod
    def of(cls, batch: Batch) -> Work:
        """Call before the step's tokens count as computed."""
        kv_tokens, attention = 0, 0.0
        for item in batch.scheduled:
            if item.num_tokens == 1:
                kv_tokens += item.sequence.num_computed_tokens + 1
            else:
                attention += chunk_attention(item.sequence.num_computed_tokens, item.num_tokens)
        return cls(batch.num_tokens, kv_tokens, attention)


def chunk_attention(num_computed: int, num_tokens: int) -> float:
    """Pairs of a causal chunk: the token at position p attends to p + 1.

    sum of (p + 1) over p in [num_computed, num_computed + n) = n · (num_computed + (n + 1) / 2), n = num_tokens
    """
    return num_tokens * (num_computed + (num_tokens + 1) / 2)


# Features are scaled to comparable coefficients; the prior is a slow machine, so that first budgets err towards short
# steps; its spread lets the first dozen steps move it anywhere.
_SCALE: Final = (1.0, 1e-2, 1e-4, 1e-6)
_PRIOR: Final = (0.01, 0.05, 0.001, 0.05)
_SPREAD: Final = tuple((100 * value) ** 2 for value in _PRIOR)
_FORGETTING: Final = 0.995
_ERROR_RATE: Final = 0.05
_WARM_UP: Final = 16
_LOST: Final = 0.5  # a mean error past this is no noise: the machine is another one than it was


class CostLine:
    """Step seconds = a + b·tokens + c·kv_tokens + d·attention, fitted online with forgetting, no coefficient negative.

    Recursive least squares on relative errors: every observation is divided by its seconds, so that short steps count
    as much as long ones and a step that was disturbed (long) counts little. Residuals far beyond the usual error are
    cut down (Huber's weights) after a warm-up; when the usual error itself is large, it warms up anew.
    Source: Ljung, System Identification, 2nd ed., section 11.2.
    """

    def __init__(self) -> None:
        self._theta = list(_PRIOR)
        self._covariance = _diagonal(_SPREAD)
        self._observations = 0
        self._error = 0.0

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """(a, b, c, d) in seconds, per token, per token of context, per pair."""
        a, b, c, d = (value * scale for value, scale in zip(self._theta, _SCALE, strict=True))
        return a, b, c, d

    @property
    def error(self) -> float:
        """Mean absolute relative error of the predictions, recent ones counting most; 0 before any."""
        return self._error

    def predict(self, work: Work) -> float:
        return sum(value * x for value, x in zip(self._theta, _features(work), strict=True))

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from one step. Seconds that no step takes (under a microsecond, not a number) are ignored."""
        if not 1e-6 <= seconds < math.inf:
            return
        residual = (seconds - self.predict(work)) / seconds
        weight = self._weight(abs(residual))
        self._update([x / seconds for x in _features(work)], residual, weight)
        self._observations += 1
        rate = max(_ERROR_RATE, 1 / self._observations)
        self._error += rate * (abs(residual) - self._error)
        if self._error > _LOST and self._observations > _WARM_UP:
            self._covariance, self._observations = _diagonal(_SPREAD), 0

    def _weight(self, size: float) -> float:
        bound = 3 * max(self._error, 0.05)
        return 1.0 if self._observations < _WARM_UP or size <= bound else bound / size

    def _update(self, x: list[float], residual: float, weight: float) -> None:
        covariance = self._covariance
        px = [sum(p * value for p, value in zip(row, x, strict=True)) for row in covariance]
        gain = 1 / (_FORGETTING / weight + sum(p * value for p, value in zip(px, x, strict=True)))
        self._theta = [max(0.0, value + gain * p * residual) for value, p in zip(self._theta, px, strict=True)]
        updated = [[value - gain * px[i] * px[j] for j, value in enumerate(row)] for i, row in enumerate(covariance)]
        self._covariance = _bounded(updated)


class BatchingPolicy:
    """The token budget of every step. Owns the cost line."""

    def __init__(self, max_num_batched_tokens: int, min_prefill_tokens: int, inter_token_latency_target: float) -> None:
        self.max_num_batched_tokens = max_num_batched_tokens
        self.min_prefill_tokens = min_prefill_tokens
        self.inter_token_latency_target = inter_token_latency_target
        self.cost = CostLine()

    def token_budget(self, decodes: int, kv_tokens: int, context: int) -> int:
        """The most tokens a step may take beside `decodes` sequences with `kv_tokens` of context in all, when the
        next prefill continues at position `context`, so that the step is predicted to end within the target.

        Never under decodes + min_prefill_tokens (a prefill always advances), never over the configured maximum;
        that maximum when nobody waits for a next token. Monotone in the target.
        """
        if decodes == 0:
            return self.max_num_batched_tokens
        room = self.max_num_batched_tokens - decodes
        low, high = min(self.min_prefill_tokens, room), room
        while low < high:
            tokens = (low + high + 1) // 2
            work = Work(decodes + tokens, kv_tokens, chunk_attention(context, tokens))
            if self.cost.predict(work) <= self.inter_token_latency_target:
                low = tokens
            else:
                high = tokens - 1
        return decodes + max(low, 0)

    def observe(self, work: Work, seconds: float) -> None:
        """One step took so long."""
        self.cost.observe(work, seconds)


def _features(work: Work) -> tuple[float, float, float, float]:
    return 1.0, work.tokens * _SCALE[1], work.kv_tokens * _SCALE[2], work.attention * _SCALE[3]


def _diagonal(values: tuple[float, ...]) -> list[list[float]]:
    return [[value if i == j else 0.0 for j in range(len(values))] for i, value in enumerate(values)]


def _bounded(covariance: list[list[float]]) -> list[list[float]]:
    """Forget a little, unless that would pass the prior's spread (steps that are all alike teach nothing, and
    forgetting would then grow without bound); start over when rounding has left no covariance at all."""
    diagonal = [row[i] for i, row in enumerate(covariance)]
    if not all(math.isfinite(value) and value > 0 for value in diagonal):
        return _diagonal(_SPREAD)
    if any(value > _FORGETTING * spread for value, spread in zip(diagonal, _SPREAD, strict=True)):
        return covariance
    symmetric = range(len(covariance))
    return [[(covariance[i][j] + covariance[j][i]) / (2 * _FORGETTING) for j in symmetric] for i in symmetric]
