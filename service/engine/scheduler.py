"""Which sequences compute how many tokens in the next step, and what the sampled tokens mean for them.

No prefill and decode modes: a batch is (sequence, number of tokens) pairs. Nothing here knows tensors, text or sockets,
and time is an argument. Order of rank: higher priority, then earlier arrival; of one priority, preempted ones go first.

    waiting --admission: blocks for all known tokens--> running --token, deadline, abort, error--> finished
       ^                                                  |
       +------ preempted: blocks freed, tokens kept ------+
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from service.engine.batch import Batch, BlockCopy, SampledToken, Scheduled
from service.engine.batching import Backlog, BatchingPolicy
from service.engine.block_manager import BlockManager, BrokenBlocks, Prefix
from service.engine.budget import StepBudget
from service.engine.cost import chunk_attention
from service.engine.messages import FinishReason, Request, StepOutput
from service.engine.outputs import NO_TIMES, NOTHING_SAMPLED, first_token_times, output_of, unseen
from service.engine.sequence import Sequence, SequenceStatus
from service.engine.speculation import Speculation


class Scheduler:
    """Owns every live sequence, the block manager and the batching policy. One thread.

    No livelock: the running sequence of the highest rank is never preempted while another runs, and alone it always
    fits, because `add` refuses longer prompts and no sequence grows past the pool. So it advances in every step.
    """

    speculation_type: type[Speculation] = Speculation

    def __init__(
        self,
        blocks: BlockManager,
        policy: BatchingPolicy,
        max_num_seqs: int,
        max_model_len: int,
        speculation: bool = False,
        decoder_start: tuple[int, ...] = (),
    ) -> None:
        """`speculation`: whether the runner gives the same tokens behind drafts as without. `decoder_start`: what an
        encoder-decoder model's decoder starts with. Raises ValueError unless every step has room for the least of a
        prefill beside a full batch of decodes: then a prefill always advances and no decode is ever left out."""
        least = policy.min_prefill_tokens
        if max_num_seqs < 1 or least < 1 or policy.max_num_batched_tokens - max_num_seqs < least:
            raise ValueError(f"no room for {least} tokens of prefill beside {max_num_seqs} sequences")
        self.blocks = blocks
        self.policy = policy
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.token_budget = policy.max_num_batched_tokens
        self.num_preemptions = 0
        self.prefix_queried_tokens = 0
        self.prefix_hit_tokens = 0
        self.num_accepted_tokens = 0
        self.num_hopeless = 0
        self.num_ended = 0
        self._max_num_seqs = max_num_seqs
        self._speculation = speculation
        self._decoder_start = decoder_start
        self._max_tokens = min(max_model_len, blocks.num_blocks * blocks.block_size)
        self.speculation = self.speculation_type(blocks, policy, self._max_tokens)
        self._live: dict[str, Sequence] = {}
        self._newcomers: list[Sequence] = []
        self._outputs: list[StepOutput] = []

    @property
    def has_work(self) -> bool:
        """Whether `schedule` and `update` would do or tell anything."""
        return bool(self._live or self._outputs)

    @property
    def adapters_in_use(self) -> set[str]:
        """Of everything alive."""
        return {sequence.request.adapter for sequence in self._live.values()}

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError when its id is alive or its prompt is empty or cannot fit, ever."""
        sequence = Sequence.of(request, self._decoder_start, self.blocks.block_size)
        if request.id in self._live:
            raise ValueError(f"request {request.id} is alive already")
        if not request.token_ids or sequence.num_tokens + min(1, request.params.max_tokens) > self._max_tokens:
            raise ValueError(f"a prompt of {sequence.num_tokens} tokens; {self._max_tokens} with one answered fit")
        self._live[request.id] = sequence
        known = self._prefix(sequence)
        sequence.num_expected_cached_tokens = len(known) * self.blocks.block_size
        sequence.num_expected_offloaded_blocks = sum(1 for block in known if block is None)
        self._newcomers.append(sequence)
        insort(self.waiting, sequence, key=_rank)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these with ABORT; their blocks are free at return. Ids that are not alive are ignored: the end of a
        request and the client's wish to end it cross each other."""
        for request_id in request_ids:
            if request_id in self._live:
                self._end(self._live[request_id], FinishReason.ABORT)

    def schedule(self, now: float) -> Batch:
        """The next step's work, blocks allocated. Empty only when nothing is alive.

        Sequences whose deadline has passed, or cannot be met, end first; then decodes (all of them), then running
        prefills, then admissions share the step's budget, each in order of rank. In a step of nothing but decodes,
        drafts may ride behind them. Nothing but copies where what comes back fills the step. Must be followed by
        `update`.
        """
        self._end_expired(now)
        self._end_hopeless(now)
        plan: dict[Sequence, int] = {}
        budget = self._step_budget()
        self._plan_decodes(plan)
        for sequence in self.running:
            if sequence not in plan:
                self._advance(sequence, plan, budget)
        self._admit(plan, budget, now)
        drafts = self._draft(plan)
        return Batch(
            tuple(
                Scheduled(sequence, num_tokens + len(draft), draft)
                for sequence, num_tokens in sorted(plan.items(), key=_adapter)
                for draft in (drafts.get(sequence, ()),)
            ),
            self.blocks.take_copies(),
        )

    def without(self, batch: Batch, failed: Iterable[BlockCopy]) -> Batch:
        """What is left of a batch whose copies could not all be made: who waits for what did not come back computes it
        instead, from the next step on."""
        lost = self.blocks.lose(failed)
        for sequence in [each for each in self.running if not lost.isdisjoint(each.block_table)]:
            if not sequence.num_steps:  # what it was admitted with is not true
                sequence.scheduled_at, sequence.num_cached_tokens = None, 0
            self._preempt(sequence)
        return Batch(tuple(each for each in batch.scheduled if each.sequence.status is SequenceStatus.RUNNING))

    def update(self, batch: Batch, sampled: SequenceOf[SampledToken | None], now: float) -> list[StepOutput]:
        """Take in what the step has computed: `sampled` is parallel to `batch.scheduled`.

        Returns the news of every sequence that has any, those ended since the last call included. Ended sequences'
        blocks are free at return. A sequence that was to sample and got no token ends with ERROR, and its blocks
        are never shared again.
        """
        for item, result in zip(batch.scheduled, sampled, strict=True):
            self._take_in(item, result or NOTHING_SAMPLED, len(batch.scheduled), now)
        outputs, self._outputs = self._outputs, []
        return outputs

    def backlog(self) -> Backlog:
        """What a request that arrives now would find ahead of it."""
        return self._backlog(self.waiting)

    def check_integrity(self) -> None:
        """Raises BrokenBlocks unless the blocks are conserved, both lists are in order of rank and disjoint, together
        they are what is alive, and only running sequences hold blocks."""
        self.blocks.check_integrity()
        listed = [*self.running, *self.waiting]
        if {s.request.id: s for s in listed} != self._live or len(listed) != len(self._live):
            raise BrokenBlocks("waiting and running are not what is alive")
        if self.running != sorted(self.running, key=_rank) or self.waiting != sorted(self.waiting, key=_rank):
            raise BrokenBlocks("out of order of rank")
        if any(s.block_table for s in self.waiting) or not all(s.block_table for s in self.running):
            raise BrokenBlocks("blocks held by other than the running sequences")

    def _plan_decodes(self, plan: dict[Sequence, int]) -> None:
        for sequence in [s for s in self.running if s.num_remaining_tokens == 1]:
            while sequence.status is SequenceStatus.RUNNING and sequence not in plan:
                if self.blocks.allocate(sequence, 1):
                    plan[sequence] = 1
                else:
                    victim = self._victim()
                    plan.pop(victim, None)
                    self._preempt(victim)

    def _step_budget(self) -> StepBudget:
        decodes = [sequence for sequence in self.running if sequence.num_remaining_tokens == 1]
        kv_tokens = sum(sequence.num_tokens for sequence in decodes)
        prefills = min(len(self.running) + len(self.waiting), self._max_num_seqs) - len(decodes)
        budget = self.policy.step_budget(len(decodes), kv_tokens, prefills)
        context = next((each.num_computed_tokens for each in self.running if each.num_remaining_tokens > 1), 0)
        self.token_budget = len(decodes) + budget.chunk(context)
        self.blocks.offload.max_copies = budget.copies(self.blocks.offload.copy_seconds, 0.0)
        return budget

    def _advance(self, sequence: Sequence, plan: dict[Sequence, int], budget: StepBudget, reserve: int = 0) -> bool:
        """Give it what is known of its next tokens, as far as the step has room for the copies, and then a chunk of
        the others. False when there is room for neither.

        Its blocks are promised to it when it is admitted and taken chunk by chunk: so what they hold is copied chunk by
        chunk, and a prefill under way never has to be preempted for its own sake.
        """
        known = self._prefix(sequence)
        prefix = self._restorable(sequence, known, budget)
        start = sequence.num_computed_tokens + len(prefix) * self.blocks.block_size
        num_tokens = self._chunk(sequence, start, prefix, budget) if len(prefix) == len(known) else 0
        ahead = sequence.num_tokens - start - num_tokens
        if not (num_tokens or prefix) or not self.blocks.allocate(sequence, num_tokens, prefix, reserve, ahead):
            return False
        if num_tokens:
            plan[sequence] = num_tokens
        budget.spend(num_tokens, start)
        self._count_cached(sequence, len(prefix) * self.blocks.block_size)
        return True

    def _restorable(self, sequence: Sequence, known: Prefix, budget: StepBudget) -> Prefix:
        """As much of it as the step has time to copy, if each block that comes back presses another one out. An
        encoder's input comes back whole, as it is computed whole."""
        if None not in known or sequence.num_computed_tokens < sequence.num_encoder_slots:
            return known
        each = self.blocks.offload.copy_seconds
        room = budget.copies(2 * each, self.blocks.copy_seconds(0, 0))
        offloaded = [index for index, block in enumerate(known) if block is None]
        return known[: offloaded[room]] if room < len(offloaded) else known

    def _chunk(self, sequence: Sequence, start: int, prefix: Prefix, budget: StepBudget) -> int:
        """All that remains behind `start` if the budget allows, else what is left of it; nothing rather than a scrap.
        An encoder's input is computed whole, whatever is left, where no other prefill shares the step."""
        restored, held = sum(1 for block in prefix if block is None), len(sequence.block_table) + len(prefix)
        blocks = self.blocks

        def copying(num_tokens: int) -> float:
            return blocks.copy_seconds(restored, blocks.blocks_for(start + num_tokens) - held)

        is_first, remaining = budget.least > 0, sequence.num_tokens - start
        left = budget.chunk(start, copying)
        whole = sequence.num_encoder_slots + 1 if start < sequence.num_encoder_slots else 0
        if whole and is_first:
            left = max(left, whole)
        enough = max(min(remaining, self.policy.min_prefill_tokens), whole)
        return min(remaining, left) if left >= enough else 0

    def _count_cached(self, sequence: Sequence, num_tokens: int) -> None:
        """Tokens that it has computed itself and finds again after a preemption are no news to its client."""
        self.prefix_hit_tokens += num_tokens
        if sequence.first_token_at is None and not (sequence.num_preemptions and sequence.num_steps):
            found = sequence.num_cached_tokens + num_tokens
            sequence.num_cached_tokens = min(found, len(sequence.request.token_ids))

    def _admit(self, plan: dict[Sequence, int], budget: StepBudget, now: float) -> None:
        """One block is left over for each running sequence, so that the next few steps do not preempt what was
        admitted."""
        while self.waiting and len(self.running) < self._max_num_seqs:
            sequence = self.waiting[0]
            if not self._advance(sequence, plan, budget, reserve=len(self.running)):
                return
            self._start(sequence, now)

    def _start(self, sequence: Sequence, now: float) -> None:
        del self.waiting[0]
        sequence.status = SequenceStatus.RUNNING
        insort(self.running, sequence, key=_rank)
        self.prefix_queried_tokens += sequence.num_tokens if _shares(sequence) else 0
        if sequence.scheduled_at is None:
            sequence.scheduled_at = now

    def _prefix(self, sequence: Sequence) -> Prefix:
        return self.blocks.match(sequence) if _shares(sequence) else ()

    def _draft(self, plan: dict[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        """Only in a step of nothing but decodes."""
        if not self._speculation or not plan or any(sequence.num_remaining_tokens > 1 for sequence in plan):
            return {}
        return self.speculation.draft(list(plan), reserve=len(self.running))

    def _victim(self) -> Sequence:
        """Of the lowest priority that runs, never the highest rank of all: the cheapest to compute again of those whose
        end frees a block; of equals the lowest rank."""
        lowest = self.running[-1].request.priority
        others = [each for each in reversed(self.running[1:]) if each.request.priority == lowest]
        blocks = self.blocks
        frees = [each for each in others if blocks.num_exclusive(each) or blocks.num_promised(each)]
        costs = {each: self._recompute_seconds(each) for each in frees}
        return min(costs, key=costs.__getitem__, default=self.running[-1])

    def _recompute_seconds(self, sequence: Sequence) -> float:
        """Blocks that others use as well stay, and cost nothing."""
        num_tokens = self.blocks.num_exclusive(sequence) * self.blocks.block_size
        return self.policy.recompute_seconds(min(num_tokens, sequence.num_computed_tokens))

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.num_expected_cached_tokens = min(sequence.num_computed_tokens, sequence.num_tokens - 1)
        sequence.num_expected_offloaded_blocks = 0
        self.blocks.free(sequence)
        sequence.status = SequenceStatus.PREEMPTED
        sequence.num_preemptions += 1
        sequence.num_prompt_logprobs = 0
        self.num_preemptions += 1
        insort(self.waiting, sequence, key=_rank)

    def _take_in(self, item: Scheduled, result: SampledToken, batch_size: int, now: float) -> None:
        sequence, samples = item.sequence, item.samples
        self.blocks.mark_computed(sequence, item.num_known_tokens)
        sequence.num_steps += 1
        sequence.batch_size_sum += batch_size
        if result.prompt_logprobs:
            result = unseen(sequence, result)
        if samples:
            self._sample(sequence, result, now)
            self._sample_following(item, result, now)
        elif result.prompt_logprobs:
            self._outputs.append(output_of(sequence, result))

    def _sample_following(self, item: Scheduled, result: SampledToken, now: float) -> None:
        """Each of these was sampled behind a draft that is the token before it, whose slot is thereby written."""
        sequence = item.sequence
        for token in result.following:
            if sequence.status is not SequenceStatus.RUNNING:
                return
            self.num_accepted_tokens += 1
            self.blocks.mark_computed(sequence, 1)
            self._sample(sequence, token, now)
        if item.draft_token_ids and sequence.status is SequenceStatus.RUNNING:
            self.blocks.trim(sequence)

    def _sample(self, sequence: Sequence, result: SampledToken, now: float) -> None:
        token_ids, reason = self._append(sequence, result.token_id)
        is_first = token_ids and sequence.first_token_at is None
        times = first_token_times(sequence, now) if is_first else NO_TIMES
        if reason is not None:
            self._remove(sequence)
        self._outputs.append(output_of(sequence, result, token_ids, reason, times))

    def _append(self, sequence: Sequence, token_id: int | None) -> tuple[tuple[int, ...], FinishReason | None]:
        if sequence.num_output_tokens >= sequence.request.params.max_tokens:  # it is 0, or this a replay at its end
            return (), FinishReason.LENGTH
        if token_id is None:
            self.blocks.forget(sequence)
            return (), FinishReason.ERROR
        sequence.token_ids.append(token_id)
        return (token_id,), self._finish_reason(sequence, token_id)

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        """The runner bans stop tokens from the first `min_tokens` outputs; here they would just not stop."""
        params = sequence.request.params
        if token_id in params.stop_token_ids and sequence.num_output_tokens > params.min_tokens:
            return FinishReason.STOP
        if sequence.num_output_tokens >= params.max_tokens or sequence.num_tokens >= self._max_tokens:
            return FinishReason.LENGTH
        return None

    def _end_expired(self, now: float) -> None:
        for sequence in [*self.running, *self.waiting]:
            if sequence.request.deadline is not None and sequence.request.deadline <= now:
                self._end(sequence, FinishReason.DEADLINE)

    def _end_hopeless(self, now: float) -> None:
        """End the newcomers whose first token the forecast sees behind their deadline: they would delay the others in
        vain."""
        newcomers, self._newcomers = self._newcomers, []
        for sequence in newcomers:
            deadline = sequence.request.deadline
            if deadline is None or sequence.status is not SequenceStatus.WAITING:
                continue
            ahead = self._backlog(self.waiting[: self.waiting.index(sequence) + 1])
            if self.policy.is_hopeless(ahead, deadline - now):
                self._end(sequence, FinishReason.DEADLINE)
                self.num_hopeless += 1

    def _backlog(self, waiting: SequenceOf[Sequence]) -> Backlog:
        decodes = [each for each in self.running if each.num_remaining_tokens == 1]
        prefills = [(each.num_computed_tokens, each.num_remaining_tokens) for each in self.running]
        prefills = [(computed, left) for computed, left in prefills if left > 1]
        prefills += [(each.num_expected_cached_tokens, _uncached(each)) for each in waiting]
        tokens = sum(left for _, left in prefills)
        offloaded = sum(each.num_expected_offloaded_blocks for each in waiting)
        return Backlog(
            len(decodes),
            sum(each.num_tokens for each in decodes),
            len(prefills),
            tokens,
            sum(chunk_attention(computed, left) for computed, left in prefills),
            max(0, len(self.running) + len(waiting) - self._max_num_seqs),
            self.blocks.copy_seconds(offloaded, self.blocks.blocks_for(tokens)) if prefills else 0.0,
        )

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        self._remove(sequence)
        self._outputs.append(output_of(sequence, reason=reason))

    def _remove(self, sequence: Sequence) -> None:
        (self.running if sequence.status is SequenceStatus.RUNNING else self.waiting).remove(sequence)
        del self._live[sequence.request.id]
        self.blocks.free(sequence)
        sequence.status = SequenceStatus.FINISHED
        self.num_ended += 1


def _rank(sequence: Sequence) -> tuple[int, bool, float]:
    request = sequence.request
    return -request.priority, sequence.status is not SequenceStatus.PREEMPTED, request.arrival


def _adapter(item: tuple[Sequence, int]) -> str:
    """Rows of one adapter lie side by side in a step, and share what is read of it; without adapters nothing moves."""
    return item[0].request.adapter


def _shares(sequence: Sequence) -> bool:
    """Prompt logprobs need every row of the prompt."""
    return sequence.request.params.prompt_logprobs is None


def _uncached(sequence: Sequence) -> int:
    """Tokens that a waiting sequence is expected to compute, by what was cached when it came."""
    return sequence.num_tokens - sequence.num_expected_cached_tokens
