"""Prefill decides how much of a prompt the next step takes: its known prefix, and the chunk that must be computed.

It knows sequences, blocks and the rest of the step's budget. It knows no queues or clocks.
"""

from __future__ import annotations

from service.engine.kv_cache.block_manager import BlockManager, Prefix
from service.engine.protocol.messages import Pooling
from service.engine.scheduling.budget import StepBudget
from service.engine.sequences.sequence import Sequence


class Prefill:
    """Takes blocks for prompts, chunk by chunk. It counts the tokens of the chunks, and those that it finds in the
    prefix cache."""

    def __init__(self, blocks: BlockManager, min_tokens: int) -> None:
        """`min_tokens` is the least size of a chunk that is not a prompt's last."""
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self.num_prefill_tokens = 0
        self._blocks = blocks
        self._min_tokens = min_tokens

    def known(self, sequence: Sequence) -> Prefix:
        """Returns the cached part of its next tokens, as far as the request does not want their rows."""
        unwanted = _num_unwanted(sequence)
        if unwanted <= sequence.num_computed_tokens:
            return ()
        size = self._blocks.block_size
        return self._blocks.match(sequence, unwanted // size - sequence.num_computed_tokens // size)

    def expect(self, sequence: Sequence) -> None:
        """Notes how much of a waiting sequence is known now."""
        known = self.known(sequence)
        sequence.num_expected_cached_tokens = len(known) * self._blocks.block_size
        sequence.num_expected_offloaded_blocks = sum(1 for block in known if block is None)

    def admit(self, sequence: Sequence, budget: StepBudget, reserve: int) -> int | None:
        """Works as `advance`, for a sequence without blocks. It leaves `reserve` available blocks over."""
        num_tokens = self.advance(sequence, budget, reserve)
        if num_tokens is not None and _num_unwanted(sequence):
            self.num_queried_tokens += sequence.num_tokens
        return num_tokens

    def advance(self, sequence: Sequence, budget: StepBudget, reserve: int = 0) -> int | None:
        """Gives a sequence the known part of its next tokens, as far as the step has room for the copies, and then
        slots for a chunk of the others. Returns the tokens of the chunk: 0 if the restored part fills the step, None if
        nothing fits.

        A sequence's blocks are promised at its admission and taken chunk by chunk. So their old content is copied chunk
        by chunk, and a prefill under way never has to be preempted for its own sake.
        """
        known = self.known(sequence)
        prefix = self._restorable(sequence, known, budget)
        start = sequence.num_computed_tokens + len(prefix) * self._blocks.block_size
        num_tokens = self._chunk(sequence, start, prefix, budget) if len(prefix) == len(known) else 0
        ahead = sequence.num_tokens - start - num_tokens
        if not (num_tokens or prefix) or not self._blocks.allocate(sequence, num_tokens, prefix, reserve, ahead):
            return None
        budget.spend(num_tokens, start)
        self.num_prefill_tokens += num_tokens
        self._count_hits(sequence, len(prefix) * self._blocks.block_size)
        return num_tokens

    def _restorable(self, sequence: Sequence, known: Prefix, budget: StepBudget) -> Prefix:
        """Returns as much of `known` as the step has time to copy, if each restored block evicts another block. An
        encoder's input comes back whole, because it is computed whole. Where only the whole can be used, because of
        what a sliding window sees, it comes back in a step without another prefill."""
        if None not in known or sequence.num_computed_tokens < sequence.num_encoder_slots:
            return known
        room = budget.copies(2 * self._blocks.offload.copy_seconds, self._blocks.copy_seconds(0, 0))
        offloaded = [index for index, block in enumerate(known) if block is None]
        if room >= len(offloaded):
            return known
        part = self._blocks.usable(sequence, known, offloaded[room])
        return known if not part and offloaded[room] and budget.is_whole else part

    def _chunk(self, sequence: Sequence, start: int, prefix: Prefix, budget: StepBudget) -> int:
        """Returns the chunk's tokens: all that remain behind `start` if the budget allows, else the budget's rest, or 0
        if that is too small. An encoder's input is computed whole, whatever is left, if no other prefill shares the
        step."""
        blocks, held = self._blocks, len(sequence.block_table) + len(prefix)
        restored = sum(1 for block in prefix if block is None)

        def copying(num_tokens: int) -> float:
            return blocks.copy_seconds(restored, blocks.blocks_for(start + num_tokens) - held)

        remaining, left = sequence.num_tokens - start, budget.chunk(start, copying)
        whole = sequence.num_encoder_slots + 1 if start < sequence.num_encoder_slots else 0
        if budget.is_whole:
            left = max(left, whole)
        return min(remaining, left) if left >= max(min(remaining, self._min_tokens), whole) else 0

    def _count_hits(self, sequence: Sequence, num_tokens: int) -> None:
        """Counts tokens found in the cache. Tokens that the sequence computed itself and finds again after a preemption
        are not reported to its client."""
        self.num_hit_tokens += num_tokens
        if sequence.first_token_at is None and not (sequence.num_preemptions and sequence.num_steps):
            found = sequence.num_cached_tokens + num_tokens
            sequence.num_cached_tokens = min(found, len(sequence.request.token_ids))


def _num_unwanted(sequence: Sequence) -> int:
    """Returns how many of its first tokens may come from the cache, because the request wants nothing of their rows.
    Prompt logprobs want each row from the one before their start on; a mean wants every row."""
    params = sequence.request.params
    if params.pooling in (Pooling.MEAN, Pooling.CLS):
        return 0
    return sequence.num_tokens if params.prompt_logprobs is None else params.prompt_logprobs_start - 1
