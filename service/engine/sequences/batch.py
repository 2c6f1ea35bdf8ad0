"""A batch holds what one step computes, and `SampledToken` holds what the model runner returns for it.

It holds token ids and block numbers only. It knows no tensors, files or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from service.engine.protocol.messages import TokenLogprobs
from service.engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The runner's result for one scheduled sequence. `token_id` is None if the logits held no usable number."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """A step over prompt positions [a, b) gives the logprobs of tokens a+1 .. b. All chunks give each position once."""
    pooled: bytes = b""
    """With a prompt's last chunk, if the request wants its hidden states."""
    following: tuple[SampledToken, ...] = ()
    """Tokens after it from the same step, one for each draft that was right."""


class Scheduled(msgspec.Struct, frozen=True):
    """`sequence` computes its next `num_tokens` tokens in this step. Its table already has the blocks for them.

    The last tokens may be drafts: guesses at the tokens behind the last known one. Every row from the last known token
    on samples. A token sampled behind a wrong draft is dropped, and its slot is written again.
    """

    sequence: Sequence
    num_tokens: int
    draft_token_ids: tuple[int, ...] = ()
    are_certain: bool = False
    """Whether the drafts are the tokens that its grammar leaves; then the rows before them need no sampling."""

    @property
    def num_known_tokens(self) -> int:
        """Scheduled tokens without the drafts."""
        return self.num_tokens - len(self.draft_token_ids)

    @property
    def samples(self) -> bool:
        """Whether the step reaches the sequence's last known token, so that a new token is sampled: always, unless the
        request wants none."""
        sequence = self.sequence
        known = self.num_tokens - len(self.draft_token_ids)
        return (
            sequence.num_computed_tokens + known == len(sequence.token_ids) and sequence.request.params.max_tokens > 0
        )

    @property
    def token_ids(self) -> list[int]:
        """The tokens that are computed, drafts last."""
        start = self.sequence.num_computed_tokens
        if self.num_tokens == 1:
            return [self.sequence.token_ids[start]]
        return [*self.sequence.token_ids[start : start + self.num_known_tokens], *self.draft_token_ids]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One copy of a block's content to a disk block of the offload file; back from there if `restores`. The content
    of its window block is part of the copy if it has one."""

    block: int
    disk_block: int
    restores: bool = False
    window_block: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The work of one step, as numbers of tokens; there are no prefill and decode modes. The runner makes `copies`
    first and one after the other, because a block may be in several copies."""

    scheduled: tuple[Scheduled, ...]
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum([item.num_tokens for item in self.scheduled])
