"""The batch: what one step computes, and what the model runner gives back for it.

Token ids and block numbers only: nothing here knows tensors, files or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from service.engine.messages import TokenLogprobs
from service.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What the runner gives for one scheduled sequence. `token_id` is None where the logits held no usable number."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """A step over prompt positions [a, b) tells those of tokens a+1 .. b: all chunks together, each position once."""
    following: tuple[SampledToken, ...] = ()
    """The tokens after it, sampled in the same step behind drafts that came true: one for each of these."""


class Scheduled(msgspec.Struct, frozen=True):
    """`sequence` computes its next `num_tokens` tokens in this step; blocks for them are already in its table.

    The last of them may be drafts, guesses at what follows its last known token. Every row from that token on samples;
    what was sampled behind a draft that is not the token sampled before it is dropped, and its slot written again.
    """

    sequence: Sequence
    num_tokens: int
    draft_token_ids: tuple[int, ...] = ()

    @property
    def num_known_tokens(self) -> int:
        """Those that are no drafts."""
        return self.num_tokens - len(self.draft_token_ids)

    @property
    def samples(self) -> bool:
        """True when the step reaches the sequence's last known token, so that a new one is sampled."""
        sequence = self.sequence
        known = self.num_tokens - len(self.draft_token_ids)
        return sequence.num_computed_tokens + known == len(sequence.token_ids)

    @property
    def token_ids(self) -> list[int]:
        """What is computed, drafts last."""
        start = self.sequence.num_computed_tokens
        if self.num_tokens == 1:
            return [self.sequence.token_ids[start]]
        return [*self.sequence.token_ids[start : start + self.num_known_tokens], *self.draft_token_ids]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A block's content goes to a disk block of the offload file; or, `restores`, comes back from there."""

    block: int
    disk_block: int
    restores: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work: no prefill and decode modes, only numbers of tokens. `copies` come before all else, one after
    the other: a block may be in several of them."""

    scheduled: tuple[Scheduled, ...]
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum([item.num_tokens for item in self.scheduled])
