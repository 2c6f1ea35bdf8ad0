"""A draft model is a small model of the same tokenizer that guesses draft tokens. This is its interface to the
scheduler.

The model that serves verifies every draft. So the draft model changes how many tokens a step gives, never which tokens.
Source: Leviathan, Kalman and Matias, Fast Inference from Transformers via Speculative Decoding, 2023. That paper
accepts a draft by chance; here a draft is right only if it is the very token that the serving model samples.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

from service.engine.scheduling.cost import CostLine
from service.engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class DraftOrder:
    """`count` drafts are wanted behind the last known token of `sequence`, which has slots for them."""

    sequence: Sequence
    count: int


class DraftModel(Protocol):
    """The draft model of a runner. Its keys and values lie in blocks of its own with the numbers of the serving
    model's, so a sequence has one block table for both."""

    max_num_tokens: int
    """It reads no position from this one on."""

    @property
    def cost(self) -> CostLine:
        """The seconds of its passes."""
        ...

    def num_unread(self, sequence: Sequence) -> int:
        """Returns how many known tokens it must read before its first draft: at least 1, the last known token."""
        ...

    def draft(self, orders: SequenceOf[DraftOrder]) -> tuple[list[tuple[int, ...]], float]:
        """Returns drafts, parallel to `orders`, and the seconds that they took. Where much text is unread, it reads a
        part and gives no drafts yet."""
        ...
