"""Speculative decoding chooses the drafts that ride behind a step's decodes, as long as they pay and have slots.

It knows no queues or clocks, and not whether a draft is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from service.engine.blocks.block_manager import BlockManager
from service.engine.ngram import MAX_DRAFT_TOKENS, NgramProposer
from service.engine.scheduling.batching import BatchingPolicy, Offer
from service.engine.scheduling.cost import Work
from service.engine.sequence import Sequence


class Speculation:
    """Makes drafts for the sequences of a scheduler, with the scheduler's blocks and policy."""

    def __init__(self, blocks: BlockManager, policy: BatchingPolicy, max_tokens: int) -> None:
        """`max_tokens` is the greatest length of a sequence."""
        self.num_draft_tokens = 0
        self._blocks = blocks
        self._policy = policy
        self._max_tokens = max_tokens

    def draft(self, decodes: SequenceOf[Sequence], reserve: int) -> dict[Sequence, tuple[int, ...]]:
        """Returns drafts that have slots. It never preempts, and `reserve` blocks stay free."""
        drafts: dict[Sequence, tuple[int, ...]] = {}
        for sequence, draft in self.proposals(decodes):
            if not self._blocks.allocate(sequence, 1 + len(draft), reserve=reserve):
                draft = draft[: len(sequence.block_table) * self._blocks.block_size - sequence.num_tokens]
            if draft:
                drafts[sequence] = draft
                self.num_draft_tokens += len(draft)
        return drafts

    def proposals(self, decodes: SequenceOf[Sequence]) -> Iterable[tuple[Sequence, tuple[int, ...]]]:
        """Yields drafts by n-gram, as many for each sequence as pay by the cost line."""
        work = Work(len(decodes), sum(sequence.num_tokens for sequence in decodes))
        if not self._policy.pays(work):
            return
        found = [
            (sequence, proposer) for sequence in decodes if (proposer := _proposer(sequence)).follow(sequence.token_ids)
        ]
        offers = [Offer(proposer.acceptance, each.num_tokens, self.most(each)) for each, proposer in found]
        room = self._policy.max_num_batched_tokens - len(decodes)
        for (sequence, proposer), length in zip(found, self._policy.draft_lengths(work, offers, room), strict=True):
            if length:
                yield sequence, proposer.draft(sequence.token_ids, length)

    def most(self, sequence: Sequence) -> int:
        """Returns the most drafts of a sequence: the tokens that it can still give, less the one that it samples
        anyway."""
        left = min(
            sequence.request.params.max_tokens - sequence.num_output_tokens, self._max_tokens - sequence.num_tokens
        )
        return min(MAX_DRAFT_TOKENS, left - 1)


def _proposer(sequence: Sequence) -> NgramProposer:
    if sequence.proposer is None:
        sequence.proposer = NgramProposer()
    return sequence.proposer
