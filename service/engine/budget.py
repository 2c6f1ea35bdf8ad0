"""The budget of one step: how many tokens of prefill and how many copies it still has room for, in predicted seconds.

A page of arithmetic: nothing here knows sequences, blocks or clocks. Times are seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from service.engine.cost import CostLine, chunk_attention

Extra = Callable[[int], float]
"""Seconds of a step that are no computing, with a chunk of so many tokens in it: those of its copies."""


def no_extra(num_tokens: int) -> float:
    return 0.0


@dataclass(slots=True)
class StepBudget:
    """What is left of a step. The first prefill gets `least` tokens, or one copy, whatever that takes: so every step
    advances the prompt of the highest rank."""

    cost: CostLine
    seconds: float
    tokens: int
    least: int

    @property
    def is_whole(self) -> bool:
        """Whether no prefill has had any of it."""
        return self.least > 0

    def chunk(self, context: int, extra: Extra = no_extra) -> int:
        """The most tokens that a chunk of prefill behind `context` may have."""
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
        """How many more copies of so many seconds each, beside those that are pending."""
        if not copy_seconds:
            return sys.maxsize
        return max(int((self.seconds - pending_seconds) / copy_seconds), 1 if self.least else 0)

    def spend(self, num_tokens: int, context: int) -> None:
        """A chunk of `num_tokens` behind `context`, none for copies alone, is part of the step."""
        self.seconds -= self.cost.prefill_seconds(num_tokens, chunk_attention(context, num_tokens))
        self.tokens -= num_tokens
        self.least = 0

    def _fits(self, num_tokens: int, context: int, extra: Extra) -> bool:
        computing = self.cost.prefill_seconds(num_tokens, chunk_attention(context, num_tokens))
        return computing + extra(num_tokens) <= self.seconds
