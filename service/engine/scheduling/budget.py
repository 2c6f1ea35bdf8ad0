"""A step budget says how many prefill tokens and how many copies one step still has room for, in predicted seconds.

It is arithmetic on numbers. It knows no sequences, blocks or clocks. Times are seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from service.engine.scheduling.cost import CostLine, chunk_attention

Extra = Callable[[int], float]
"""Returns the seconds of a step's copies if the step has a chunk of that many tokens."""


def no_extra(num_tokens: int) -> float:
    return 0.0


@dataclass(slots=True)
class StepBudget:
    """The room left in a step. The first prefill gets `least` tokens or one copy, however long that takes. So every
    step advances the prompt of the highest rank."""

    cost: CostLine
    seconds: float
    tokens: int
    least: int

    @property
    def is_whole(self) -> bool:
        """Whether no prefill has spent any of it."""
        return self.least > 0

    def chunk(self, context: int, extra: Extra = no_extra) -> int:
        """Returns the most tokens of a prefill chunk behind `context`."""
        low, high = min(self.least, self.tokens), self.tokens
        if high > low and self._fits(high, context, extra):
            return high
        while low < high - 1:
            middle = (low + high) // 2
            if self._fits(middle, context, extra):
                low = middle
            else:
                high = middle
        return low

    def copies(self, copy_seconds: float, pending_seconds: float) -> int:
        """Returns how many more copies of `copy_seconds` each have room beside the pending ones."""
        if not copy_seconds:
            return sys.maxsize
        return max(int((self.seconds - pending_seconds) / copy_seconds), 1 if self.least else 0)

    def spend(self, num_tokens: int, context: int) -> None:
        """Takes the cost of a chunk of `num_tokens` behind `context`; 0 tokens for copies alone."""
        self.seconds -= self.cost.prefill_seconds(num_tokens, chunk_attention(context, num_tokens))
        self.tokens -= num_tokens
        self.least = 0

    def _fits(self, num_tokens: int, context: int, extra: Extra) -> bool:
        computing = self.cost.prefill_seconds(num_tokens, chunk_attention(context, num_tokens))
        return computing + extra(num_tokens) <= self.seconds
