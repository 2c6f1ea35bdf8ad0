"""The cost line says what a step costs on this machine: seconds as a linear function of its work, learned from steps.

It is arithmetic on numbers. It knows no contents of sequences, no blocks and no clocks. Times are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from service.engine.sequences.batch import Batch


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a step, as far as its cost depends on it."""

    tokens: int
    """All scheduled tokens."""
    kv_tokens: int = 0
    """Context that the decoding sequences read, for the newest token of each and for each draft behind it."""
    attention: float = 0.0
    """Query-key pairs of the prefill chunks: tokens · mean context."""

    @classmethod
    def of(cls, batch: Batch) -> StepWork:
        """Returns the work of a batch. Call before the step's tokens count as computed."""
        kv_tokens, attention = 0, 0.0
        for item in batch.scheduled:
            if item.num_tokens == 1:
                kv_tokens += item.sequence.num_computed_tokens + 1
            elif item.draft_token_ids:
                kv_tokens += round(chunk_attention(item.sequence.num_computed_tokens, item.num_tokens))
            else:
                attention += chunk_attention(item.sequence.num_computed_tokens, item.num_tokens)
        return cls(batch.num_tokens, kv_tokens, attention)


def chunk_attention(num_computed: int, num_tokens: int) -> float:
    """Returns the query-key pairs of a causal chunk: the token at position p attends to p + 1.

    sum of (p + 1) over p in [num_computed, num_computed + n) = n · (num_computed + (n + 1) / 2), n = num_tokens
    """
    return num_tokens * (num_computed + (num_tokens + 1) / 2)


# Features are scaled to comparable coefficients. The prior is a slow machine, so that the first budgets err towards
# short steps. Its weight is so small that a few steps can move it anywhere. It holds what no step has shown yet.
_SCALE: Final = (1.0, 1e-2, 1e-4, 1e-6)
_PRIOR: Final = (0.01, 0.05, 0.001, 0.05)
_PRIOR_WEIGHT: Final = tuple(1 / (100 * value) ** 2 for value in _PRIOR)
_FORGETTING: Final = 0.995
_SWEEPS: Final = 4
_ERROR_RATE: Final = 0.05
_WARM_UP: Final = 16
_FIRST_TOKENS: Final = 64  # of the first step on an unknown machine: seconds on the slowest one that serves
_GROWTH: Final = 4
_LOST: Final = 0.5  # a larger mean error is no noise: the machine has changed


def decode_ratio(cost: tuple[float, ...], context: int) -> float:
    """Returns how many times as long a token of an answer takes as one more token of a prompt. The answer's token is
    alone in its step, behind `context` tokens. The result is the nearest power of two, so that decisions based on it
    stay the same. `cost` holds a line's coefficients."""
    a, b, c, d = cost
    ratio = (a + b + c * context) / max(b + d * context, 1e-12)
    return 2.0 ** round(math.log2(min(max(ratio, 1.0), 4096.0)))


class CostLine:
    """Step seconds = a + b·tokens + c·kv_tokens + d·attention, fitted online with forgetting, no coefficient negative.

    The fit is least squares on relative errors. Every observation is divided by its seconds, so short steps count as
    much as long ones. A delayed step counts little: its weight falls with the square of the delay. The normal equations
    H θ = r are updated recursively and solved for θ >= 0 by coordinate descent from the last solution. Unlike a clamped
    gain update, this cannot diverge, whatever is observed.
    Source: Franc, Hlaváč, Navara, Sequential Coordinate-Wise Algorithm for Non-negative Least Squares, CAIP 2005.
    """

    def __init__(self) -> None:
        self._theta = list(_PRIOR)
        self._hessian, self._right = _no_observations()
        self.last_prediction = 0.0
        """The prediction of the last observed step, made before the line learned from that step."""
        self._observations = 0
        self._error = 0.0
        self._most_tokens = 0

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """(a, b, c, d): seconds per step, per token, per token of context, per pair."""
        a, b, c, d = (value * scale for value, scale in zip(self._theta, _SCALE, strict=True))
        return a, b, c, d

    def prefill_seconds(self, tokens: int, attention: float) -> float:
        """Returns the seconds that a prefill of these tokens adds to a step: the line without its constant."""
        return self._theta[1] * _SCALE[1] * tokens + self._theta[3] * _SCALE[3] * attention

    @property
    def is_measured(self) -> bool:
        """Whether enough steps were observed for drafts, waits and refusals, which a guess must not decide."""
        return self._observations >= _WARM_UP

    @property
    def trusted_tokens(self) -> int:
        """The most tokens of a step that the line is trusted for: four times the largest observed step. So the first
        steps are small, whatever the prior says, and grow quickly if they turn out to be short."""
        return max(_FIRST_TOKENS, _GROWTH * self._most_tokens)

    @property
    def error(self) -> float:
        """Mean absolute relative error of the predictions; recent ones count most. 0 before the first prediction."""
        return self._error

    def predict(self, work: StepWork) -> float:
        a, b, c, d = self._theta
        _, tokens, kv_tokens, attention = _features(work)
        return a + b * tokens + c * kv_tokens + d * attention

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learns from one step. Ignores seconds that no step takes (under a microsecond, or not a number)."""
        self.last_prediction = self.predict(work)
        if not 1e-6 <= seconds < math.inf:
            return
        self._most_tokens = max(self._most_tokens, work.tokens)
        self._note_error(abs(self.last_prediction - seconds) / seconds)
        x = [value / seconds for value in _features(work)]
        x0, x1, x2, x3 = x
        for i, (h0, h1, h2, h3) in enumerate(self._hessian):  # unrolled, because every step runs it
            xi, keep = x[i], _FORGETTING
            self._hessian[i] = (keep * h0 + xi * x0, keep * h1 + xi * x1, keep * h2 + xi * x2, keep * h3 + xi * x3)
            self._right[i] = keep * self._right[i] + xi
        self._solve()

    def _note_error(self, error: float) -> None:
        self._observations += 1
        self._error += max(_ERROR_RATE, 1 / self._observations) * (error - self._error)
        if self._error > _LOST and self._observations > _WARM_UP:
            self._hessian, self._right = _no_observations()
            self._observations = self._most_tokens = 0

    def _solve(self) -> None:
        """Sets every coordinate in turn to its optimum given the others. The objective only falls."""
        theta = self._theta
        for _ in range(_SWEEPS):
            for i, row in enumerate(self._hessian):
                h0, h1, h2, h3 = row
                gradient = h0 * theta[0] + h1 * theta[1] + h2 * theta[2] + h3 * theta[3] - self._right[i]
                gradient += _PRIOR_WEIGHT[i] * (theta[i] - _PRIOR[i])
                theta[i] = max(0.0, theta[i] - gradient / (row[i] + _PRIOR_WEIGHT[i]))


def _features(work: StepWork) -> tuple[float, float, float, float]:
    return 1.0, work.tokens * _SCALE[1], work.kv_tokens * _SCALE[2], work.attention * _SCALE[3]


def _no_observations() -> tuple[list[tuple[float, float, float, float]], list[float]]:
    return [(0.0, 0.0, 0.0, 0.0)] * 4, [0.0] * 4
