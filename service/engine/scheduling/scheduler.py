"""The scheduler decides which sequences compute how many tokens in the next step. It owns every live sequence.

There are no prefill and decode modes: a batch is (sequence, number of tokens) pairs. The scheduler knows no tensors,
text or sockets, and time is an argument. Order of rank: higher priority first, then preempted sequences, then earlier
arrival; who waits for long gains a priority. Where several owners have sequences of one priority, they take turns
(`FairShares`).

    waiting --admission: blocks promised for all known tokens--> running --token, deadline, abort, error--> finished
       ^                                                           |
       +----------- preempted: blocks freed, tokens kept ----------+
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from service.engine.kv_cache.block_manager import BlockManager, BrokenBlocks
from service.engine.protocol.messages import FinishReason, Request, StepOutput, aged
from service.engine.scheduling.background import BackgroundShare, clients_wait, is_background, is_batch_line, of_clients
from service.engine.scheduling.backlog import backlog_of, num_streams
from service.engine.scheduling.batching import Backlog, BatchingPolicy
from service.engine.scheduling.budget import StepBudget
from service.engine.scheduling.deadlines import Deadlines
from service.engine.scheduling.draft_model import DraftModel
from service.engine.scheduling.fair_shares import FairShares
from service.engine.scheduling.output_processor import NOTHING_SAMPLED, OutputProcessor
from service.engine.scheduling.prefill import Prefill
from service.engine.scheduling.speculation import Drafts, Speculation
from service.engine.scheduling.turnover import Turnover
from service.engine.sequences.batch import Batch, BlockCopy, SampledToken, Scheduled
from service.engine.sequences.constraint import Constraint
from service.engine.sequences.sequence import Sequence, SequenceStatus


class Scheduler:
    """Owns every live sequence, the block manager and the batching policy. One thread calls it.

    There is no livelock. The running sequence of the highest rank is never preempted while another runs. Alone it
    always fits, because `add` refuses longer prompts and no sequence grows past the pool. So it advances in every step.
    """

    speculation_type: type[Speculation] = Speculation
    prefill_type: type[Prefill] = Prefill
    outputs_type: type[OutputProcessor] = OutputProcessor

    def __init__(
        self,
        blocks: BlockManager,
        policy: BatchingPolicy,
        max_num_seqs: int,
        max_model_len: int,
        speculation: bool = False,
        decoder_start: tuple[int, ...] = (),
        draft_model: DraftModel | None = None,
    ) -> None:
        """`speculation` says whether the runner gives the same tokens behind drafts as without; `draft_model` makes
        drafts beside the n-grams. `decoder_start` holds the first tokens of an encoder-decoder model's decoder. Raises
        ValueError unless every step has room for the least prefill beside a full batch of decodes. So a prefill always
        advances and no decode is ever left out."""
        least = policy.min_prefill_tokens
        if max_num_seqs < 1 or least < 1 or policy.max_num_batched_tokens - max_num_seqs < least:
            raise ValueError(f"no room for {least} tokens of prefill beside {max_num_seqs} sequences")
        self.blocks = blocks
        self.policy = policy
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.token_budget = policy.max_num_batched_tokens
        self.num_preemptions = 0
        """For want of blocks."""
        self.num_hopeless = 0
        self.turnover = Turnover()
        self._max_num_seqs = max_num_seqs
        self._speculation = speculation
        self._decoder_start = decoder_start
        self._max_tokens = min(max_model_len, blocks.num_blocks * blocks.block_size)
        self.speculation = self.speculation_type(blocks, policy, self._max_tokens, draft_model)
        self._live: dict[str, Sequence] = {}
        self._num_adapted = 0
        self._num_background = 0
        self._yields = False
        self._lines_share: BackgroundShare | None = None
        self._background = BackgroundShare()
        self._shares = FairShares()
        self._deadlines = Deadlines(policy)
        self.prefill = self.prefill_type(blocks, policy.min_prefill_tokens)
        self.outputs = self.outputs_type(blocks, self._remove)

    @property
    def has_work(self) -> bool:
        """Whether `schedule` and `update` have work or outputs."""
        return bool(self._live or self.outputs.pending)

    @property
    def adapters_in_use(self) -> set[str]:
        """Adapters of all live sequences."""
        return {sequence.request.adapter for sequence in self._live.values()}

    def add(self, request: Request, constraint: Constraint | None = None) -> None:
        """Queues a request, with the constraint of its grammar. Raises ValueError if its id is alive, or its prompt is
        empty or can never fit."""
        sequence = Sequence.of(request, self._decoder_start, self.blocks.block_size)
        if constraint is not None:
            constraint.follow(request.emitted)
            sequence.constraint = constraint
        if request.id in self._live:
            raise ValueError(f"request {request.id} is alive already")
        if not request.token_ids or sequence.num_tokens + min(1, request.params.max_tokens) > self._max_tokens:
            raise ValueError(f"a prompt of {sequence.num_tokens} tokens; {self._max_tokens} with one answered fit")
        sequence.max_num_tokens = min(sequence.num_prompt_tokens + request.params.max_tokens, self._max_tokens)
        self._live[request.id] = sequence
        self._num_adapted += request.adapter != ""
        self._num_background += is_background(sequence)
        self._shares.enter(request.owner)
        self._shares.wait(request.owner, self.waiting)
        self._deadlines.enter(sequence)
        self.prefill.expect(sequence)
        insort(self.waiting, sequence, key=_rank)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends these requests with ABORT; their blocks are free at return. Ids that are not alive are ignored, because
        a request may end just before its client aborts it."""
        for request_id in request_ids:
            if request_id in self._live:
                self.outputs.end(self._live[request_id], FinishReason.ABORT)

    def schedule(self, now: float) -> Batch:
        """Returns the next step's work, with blocks allocated. It is empty only when nothing is alive.

        First, sequences end whose deadline has passed or cannot be met. Then decodes (all of them), running prefills
        and admissions share the step's budget, in this order, each in order of rank. In a step of decodes only, drafts
        may ride behind them. If restored blocks fill the step, it has copies only. The caller must call `update` next.
        Background sequences take part only in steps in which no client's prompt waits, and lines have a small
        share of the steps in which clients decode.
        """
        self._end_late(now)
        self._yields = self._num_background > 0 and clients_wait(self.running, self.waiting)
        self._admit_background(now)
        decodes = self._decodes()
        budget = self._step_budget(decodes)
        seconds = budget.seconds
        plan = self._plan_decodes(decodes)
        if len(plan) < len(self.running):
            self._plan_prefills(plan, budget)
        self._admit(plan, budget, now)
        if self._lines_share is not None:
            self._lines_share.seconds -= seconds - budget.seconds
        certain = self.speculation.certain(plan, reserve=len(self.running)) if self._speculation else {}
        scheduled = self._scheduled(plan, self._draft(plan, budget, certain), certain)
        self._shares.charge(scheduled)
        return Batch(tuple(scheduled), self.blocks.take_copies())

    def without(self, batch: Batch, failed: Iterable[BlockCopy]) -> Batch:
        """Returns the rest of a batch of which copies failed. Sequences that wait for a content that did not come back
        compute it instead, from the next step on."""
        lost = self.blocks.lose(failed)
        for sequence in [each for each in self.running if not lost.isdisjoint(each.block_table)]:
            if not sequence.num_steps:  # its admission assumed the lost content
                sequence.scheduled_at, sequence.num_cached_tokens = None, 0
            self._preempt(sequence)
        return Batch(tuple(each for each in batch.scheduled if each.sequence.status is SequenceStatus.RUNNING))

    def update(self, batch: Batch, sampled: SequenceOf[SampledToken | None], now: float) -> list[StepOutput]:
        """Takes in the step's results; `sampled` is parallel to `batch.scheduled`.

        Returns the outputs of all sequences, including those that ended since the last call. The blocks of ended
        sequences are free at return. A sequence that should sample and got no token ends with ERROR; its blocks are
        never shared again.
        """
        batch_size, take_in = len(batch.scheduled), self.outputs.take_in
        for item, result in zip(batch.scheduled, sampled, strict=True):
            take_in(item, result or NOTHING_SAMPLED, batch_size, now)
        return self.outputs.take_outputs()

    def backlog(self) -> Backlog:
        """Returns the backlog ahead of a client's request that arrives now."""
        running, waiting = (of_clients(each) if self._num_background else each for each in (self.running, self.waiting))
        return self._backlog_of(running, waiting)

    def _backlog_of(self, running: SequenceOf[Sequence], waiting: SequenceOf[Sequence]) -> Backlog:
        return backlog_of(running, waiting, self.blocks, self._max_num_seqs, self.seat_seconds)

    @property
    def num_seats(self) -> int:
        """How many sequences can run at once: fewer than the configured maximum where those that run hold so many
        blocks each that the pool is full before."""
        used = self.blocks.num_blocks - self.blocks.num_free - self.blocks.num_cached
        if not used or not self.running:
            return self._max_num_seqs
        return max(1, min(self._max_num_seqs, self.blocks.num_blocks * len(self.running) // used))

    @property
    def seat_seconds(self) -> float:
        """The forecast seconds between two ends in a full batch."""
        return self.turnover.seat_seconds(self.num_seats, self.policy.cost.coefficients[0], self.running)

    def check_integrity(self) -> None:
        """Raises BrokenBlocks unless the blocks are conserved, both lists are in order of rank and disjoint and
        together hold all live sequences, and only running sequences hold blocks."""
        self.blocks.check_integrity()
        listed = [*self.running, *self.waiting]
        if {s.request.id: s for s in listed} != self._live or len(listed) != len(self._live):
            raise BrokenBlocks("waiting and running are not what is alive")
        if self.running != sorted(self.running, key=_rank) or self.waiting != sorted(self.waiting, key=_rank):
            raise BrokenBlocks("out of order of rank")
        if any(s.block_table for s in self.waiting) or not all(s.block_table for s in self.running):
            raise BrokenBlocks("blocks held by other than the running sequences")

    def _admit_background(self, now: float) -> None:
        """Finds out what lines may take of this step: `_lines_share` is None where no client is beside them."""
        beside_clients = bool(self.running) and not is_background(self.running[0])
        if self._num_background:
            self._background.earn(now, self.policy.background_seconds, beside_clients=beside_clients)
        self._lines_share = self._background if beside_clients and self._num_background and not self._yields else None

    def _decodes(self) -> list[Sequence]:
        """Returns the sequences that decode in this step, in order of rank."""
        taking_part = of_clients(self.running) if self._yields else self.running
        decodes = [each for each in taking_part if each.num_computed_tokens + 1 == len(each.token_ids)]
        if self._lines_share is None:
            return decodes
        others = [each for each in decodes if not is_batch_line(each)]
        lines = decodes[len(others) :]
        riding = self._lines_share.decodes([self.policy.row_seconds(len(each.token_ids)) for each in lines])
        return others + lines[:riding]

    def _rests(self, sequence: Sequence) -> bool:
        """Whether a sequence has no prefill in this step because it is background work."""
        if self._lines_share is not None:
            return is_batch_line(sequence) and self._lines_share.seconds <= 0
        return self._yields and is_background(sequence)

    def _step_budget(self, decodes: SequenceOf[Sequence]) -> StepBudget:
        kv_tokens = sum([len(sequence.token_ids) for sequence in decodes])
        live = [*self.running, *self.waiting]
        taking_part = len(of_clients(live)) if self._yields else len(live)
        prefills = min(taking_part, self._max_num_seqs) - len(decodes)
        budget = self.policy.step_budget(len(decodes), kv_tokens, prefills, num_streams(decodes))
        if self._num_background and not self._yields:
            budget.seconds = min(budget.seconds, self.policy.background_seconds)
            if self._lines_share is not None and self._lines_share.seconds > 0:
                budget.seconds = min(budget.seconds, self._lines_share.seconds)
        if prefills:
            context = next((each.num_computed_tokens for each in self.running if each.num_remaining_tokens > 1), 0)
            self.token_budget = len(decodes) + budget.chunk(context)
        self.blocks.offload.max_copies = budget.copies(self.blocks.offload.copy_seconds, 0.0)
        return budget

    def _plan_decodes(self, decodes: SequenceOf[Sequence]) -> dict[Sequence, int]:
        plan: dict[Sequence, int] = {}
        block_size = self.blocks.block_size
        for sequence in decodes:
            if sequence.num_computed_tokens < len(sequence.block_table) * block_size:
                plan[sequence] = 1
            else:
                self._plan_decode(sequence, plan)
        return plan

    def _plan_decode(self, sequence: Sequence, plan: dict[Sequence, int]) -> None:
        """Plans a decode that needs a block; preempts for it. No-op if the sequence no longer runs."""
        while sequence.status is SequenceStatus.RUNNING and sequence not in plan:
            if self.blocks.allocate(sequence, 1):
                plan[sequence] = 1
            else:
                self._unseat(self._victim(), plan)
                self.num_preemptions += 1

    def _plan_prefills(self, plan: dict[Sequence, int], budget: StepBudget) -> None:
        for sequence in self.running:
            if sequence in plan or sequence.num_remaining_tokens == 1 or self._rests(sequence):
                continue
            if num_tokens := self.prefill.advance(sequence, budget):
                plan[sequence] = num_tokens

    def _admit(self, plan: dict[Sequence, int], budget: StepBudget, now: float) -> None:
        """Admits waiting sequences. Leaves one block over for each running sequence, so that the next few steps do not
        preempt the admitted ones."""
        while self.waiting:
            is_full = len(self.running) >= self._max_num_seqs
            if is_full and not (self._yields or self._shares.is_shared):
                return
            sequence = self._shares.first(self.waiting, now)
            if is_full and self._gives_way(sequence) is None:
                sequence = self._shares.first_without_place(self.waiting, self.running, now) or sequence
            if self._rests(sequence):
                return
            if self._deadlines.is_too_late(sequence, now, self._alone, self.prefill.expect):
                self._give_up(sequence)
                continue
            if is_full and not self._made_way(sequence, plan):
                return
            num_tokens = self.prefill.admit(sequence, budget, reserve=len(self.running))
            while num_tokens is None and budget.is_whole and self._made_way(sequence, plan):
                num_tokens = self.prefill.admit(sequence, budget, reserve=len(self.running))
            if num_tokens is None:
                return
            self._start(sequence, now)
            if num_tokens:
                plan[sequence] = num_tokens

    def _made_way(self, sequence: Sequence, plan: dict[Sequence, int]) -> bool:
        """Preempts a sequence for the seat or the blocks of a waiting one. Returns whether there was one."""
        victim = self._gives_way(sequence)
        if victim is not None:
            self._unseat(victim, plan)
        return victim is not None

    def _gives_way(self, sequence: Sequence) -> Sequence | None:
        """Returns who gives way to a waiting one: background work to a client, or one of an owner who has too many."""
        yields = self._yields and self.running and is_background(self.running[-1]) and not is_background(sequence)
        return self.running[-1] if yields else self._shares.makes_way(self.running, sequence)

    def _start(self, sequence: Sequence, now: float) -> None:
        sequence.priority = min(self.waiting[0].priority, int(aged(sequence.priority, now - sequence.request.arrival)))
        self.waiting.remove(sequence)
        self._shares.seat(sequence.request.owner)
        sequence.status = SequenceStatus.RUNNING
        insort(self.running, sequence, key=_rank)
        if sequence.scheduled_at is None:
            sequence.scheduled_at = now

    def _draft(self, plan: dict[Sequence, int], budget: StepBudget, certain: Drafts) -> Drafts:
        """Returns drafts for sequences without certain tokens, only in a step of decodes only."""
        if not self._speculation or not plan or not budget.is_whole:
            return {}
        return self.speculation.draft(plan, certain, reserve=len(self.running))

    def _scheduled(self, plan: dict[Sequence, int], drafts: Drafts, certain: Drafts) -> list[Scheduled]:
        """Returns the items so that rows of one adapter lie side by side in a step and share its reads."""
        items = [Scheduled(sequence, num_tokens) for sequence, num_tokens in plan.items()]
        if drafts or certain:
            behind = {**drafts, **certain}
            extended = [(item.sequence, item.num_tokens, behind.get(item.sequence, ())) for item in items]
            items = [Scheduled(each, count + len(draft), draft, each in certain) for each, count, draft in extended]
        return sorted(items, key=_adapter) if self._num_adapted else items

    def _victim(self) -> Sequence:
        """Returns the sequence to preempt: of the lowest running priority, never the highest rank of all, the cheapest
        one to compute again whose end frees a block. Of equals it returns the lowest rank."""
        lowest = self.running[-1].priority
        others = [each for each in reversed(self.running[1:]) if each.priority == lowest]
        blocks = self.blocks
        frees = [each for each in others if blocks.num_exclusive(each) or blocks.num_promised(each)]
        costs = {each: self._recompute_seconds(each) for each in frees}
        return min(costs, key=costs.__getitem__, default=self.running[-1])

    def _recompute_seconds(self, sequence: Sequence) -> float:
        """Returns the seconds to compute a sequence again. Blocks that other sequences use stay and cost nothing."""
        num_tokens = self.blocks.num_exclusive(sequence) * self.blocks.block_size
        return self.policy.recompute_seconds(min(num_tokens, sequence.num_computed_tokens))

    def _unseat(self, sequence: Sequence, plan: dict[Sequence, int]) -> None:
        plan.pop(sequence, None)
        self._preempt(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.num_expected_cached_tokens = min(sequence.num_computed_tokens, sequence.num_tokens - 1)
        sequence.num_expected_offloaded_blocks = 0
        self.blocks.free(sequence)
        sequence.status = SequenceStatus.PREEMPTED
        sequence.num_preemptions += 1
        sequence.num_prompt_logprobs = sequence.num_read_tokens = 0
        sequence.state_sum = None
        self._shares.wait(sequence.request.owner, self.waiting)
        insort(self.waiting, sequence, key=_rank)

    def _end_late(self, now: float) -> None:
        for sequence in self._deadlines.passed(self._live, now):
            self.outputs.end(sequence, FinishReason.DEADLINE)
        for sequence in self._deadlines.hopeless(now, self._ahead_of, self.backlog):
            self._give_up(sequence)

    def _ahead_of(self, sequence: Sequence) -> Backlog:
        running = self.running if is_background(sequence) else of_clients(self.running)
        return self._backlog_of(running, self._shares.ahead(self.waiting, sequence))

    def _alone(self, sequence: Sequence) -> Backlog:
        return self._backlog_of((), [sequence])

    def _give_up(self, sequence: Sequence) -> None:
        self.outputs.end(sequence, FinishReason.DEADLINE)
        self.num_hopeless += 1

    def _remove(self, sequence: Sequence) -> None:
        (self.running if sequence.status is SequenceStatus.RUNNING else self.waiting).remove(sequence)
        del self._live[sequence.request.id]
        self._num_adapted -= sequence.request.adapter != ""
        self._num_background -= is_background(sequence)
        self._shares.leave(sequence.request.owner)
        self.blocks.free(sequence)
        sequence.status = SequenceStatus.FINISHED
        self.turnover.end(sequence)


def _rank(sequence: Sequence) -> tuple[int, bool, float]:
    return -sequence.priority, sequence.status is not SequenceStatus.PREEMPTED, sequence.request.arrival


def _adapter(item: Scheduled) -> str:
    return item.sequence.request.adapter
