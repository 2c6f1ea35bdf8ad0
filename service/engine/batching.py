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


# Features are scaled to comparable coefficients. The prior is a slow machine, so that first budgets err towards short
# steps; it weighs so little that the first few steps move it anywhere, and holds what no step has told yet.
_SCALE: Final = (1.0, 1e-2, 1e-4, 1e-6)
_PRIOR: Final = (0.01, 0.05, 0.001, 0.05)
_PRIOR_WEIGHT: Final = tuple(1 / (100 * value) ** 2 for value in _PRIOR)
_FORGETTING: Final = 0.995
_SWEEPS: Final = 4
_ERROR_RATE: Final = 0.05
_WARM_UP: Final = 16
_LOST: Final = 0.5  # a mean error past this is no noise: the machine is another one than it was


class CostLine:
    """Step seconds = a + b·tokens + c·kv_tokens + d·attention, fitted online with forgetting, no coefficient negative.

    Least squares on relative errors: every observation is divided by its seconds, so that short steps count as much as
    long ones, and a step that something else has delayed counts little (its weight falls with the square of the delay).
    Recursive in the normal equations, H θ = r, which are then solved for θ >= 0 by coordinate descent from the last
    solution: unlike a clamped gain update this cannot diverge, whatever is observed.
    Source: Franc, Hlaváč, Navara, Sequential Coordinate-Wise Algorithm for Non-negative Least Squares, CAIP 2005.
    """

    def __init__(self) -> None:
        self._theta = list(_PRIOR)
        self._hessian, self._right = _no_observations()
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
        a, b, c, d = self._theta
        _, tokens, kv_tokens, attention = _features(work)
        return a + b * tokens + c * kv_tokens + d * attention

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from one step. Seconds that no step takes (under a microsecond, not a number) are ignored."""
        if not 1e-6 <= seconds < math.inf:
            return
        self._note_error(abs(self.predict(work) - seconds) / seconds)
        x = [value / seconds for value in _features(work)]
        for i, row in enumerate(self._hessian):
            row[:] = [_FORGETTING * h + x[i] * value for h, value in zip(row, x, strict=True)]
            self._right[i] = _FORGETTING * self._right[i] + x[i]
        self._solve()

    def _note_error(self, error: float) -> None:
        self._observations += 1
        self._error += max(_ERROR_RATE, 1 / self._observations) * (error - self._error)
        if self._error > _LOST and self._observations > _WARM_UP:
            self._hessian, self._right = _no_observations()
            self._observations = 0

    def _solve(self) -> None:
        """Every coordinate in turn at its optimum given the others: the objective only falls."""
        theta = self._theta
        for _ in range(_SWEEPS):
            for i, (row, right) in enumerate(zip(self._hessian, self._right, strict=True)):
                weight, prior = _PRIOR_WEIGHT[i], _PRIOR[i]
                gradient = sum(h * value for h, value in zip(row, theta, strict=True)) - right
                gradient += weight * (theta[i] - prior)
                theta[i] = max(0.0, theta[i] - gradient / (row[i] + weight))


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


def _no_observations() -> tuple[list[list[float]], list[float]]:
    return [[0.0] * 4 for _ in range(4)], [0.0] * 4
