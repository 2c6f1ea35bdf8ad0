"""Speculative decoding chooses the drafts that ride behind a step's decodes, as long as they pay and have slots.

It knows no queues or clocks. Drafts come from a sequence's own n-grams, which cost nothing, or from a draft model. A
sequence takes those of the source whose guesses for it were right more often.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Final

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.scheduling.batching import BatchingPolicy, ModelOffer, Offer
from service.engine.scheduling.cost import StepWork
from service.engine.scheduling.draft_model import DraftModel, DraftOrder
from service.engine.sequences.acceptance import Acceptance, OverallAcceptance
from service.engine.sequences.constraint import MOST_CERTAIN
from service.engine.sequences.ngram import MAX_DRAFT_TOKENS, NgramProposer
from service.engine.sequences.sequence import Sequence

_STEPS: Final = 64
"""Reading a text is worth it if it pays over so many steps, or over the tokens that the sequence may still give."""

Drafts = dict[Sequence, tuple[int, ...]]


class Speculation:
    """Makes drafts for the sequences of a scheduler, with the scheduler's blocks and policy."""

    def __init__(
        self, blocks: BlockManager, policy: BatchingPolicy, max_tokens: int, model: DraftModel | None = None
    ) -> None:
        """`max_tokens` is the greatest length of a sequence."""
        self.num_draft_tokens = 0
        self._model_seconds = 0.0
        self._blocks = blocks
        self._policy = policy
        self._max_tokens = max_tokens
        self._model = model
        self._acceptance = OverallAcceptance()

    def certain(self, plan: Mapping[Sequence, int], reserve: int) -> Drafts:
        """Returns the tokens that grammars leave behind the last known ones of decodes, as far as they have slots. They
        cost a step's rows, but no steps of their own. It never preempts, and `reserve` blocks stay free."""
        room = self._policy.max_num_batched_tokens - sum(plan.values())
        drafts: Drafts = {}
        for sequence in plan:
            if sequence.constraint is None or sequence.num_remaining_tokens != 1 or not sequence.num_output_tokens:
                continue
            tokens = sequence.constraint.certain(min(MOST_CERTAIN, self._left(sequence) - 1, room))
            tokens = tokens[: self._room(sequence, len(tokens), reserve)] if tokens else ()
            if tokens:
                drafts[sequence] = tokens
                room -= len(tokens)
        return drafts

    def draft(self, plan: Iterable[Sequence], certain: Drafts, reserve: int) -> Drafts:
        """Returns drafts that have slots, for the decodes of a step without `certain` tokens. The step's rows, those of
        `certain` included, keep to the configured maximum. It never preempts, and `reserve` blocks stay free."""
        drafts: Drafts = {}
        decodes = [sequence for sequence in plan if sequence not in certain]
        if not decodes:
            return drafts
        room = self._policy.max_num_batched_tokens - len(decodes) - sum(1 + len(each) for each in certain.values())
        for sequence, draft in self.proposals(decodes):
            draft = _admissible(sequence, draft)[:room]
            draft = draft[: self._room(sequence, len(draft), reserve)]
            if draft:
                drafts[sequence] = draft
                room -= len(draft)
        if self._model is not None:
            drafts |= self._model_drafts(self._model, decodes, drafts, room, reserve)
        self.num_draft_tokens += sum(map(len, drafts.values()))
        return drafts

    def proposals(self, decodes: SequenceOf[Sequence]) -> Iterable[tuple[Sequence, tuple[int, ...]]]:
        """Yields drafts by n-gram, as many for each sequence as pay by the cost line."""
        work = _work(decodes)
        if not self._policy.pays(work):
            return
        proposers = [
            (sequence, proposer)
            for sequence in decodes
            if (proposer := _proposer(sequence)).follow(sequence.token_ids)
            and proposer.acceptance >= self._model_probability(sequence)
        ]
        offers = [Offer(proposer.acceptance, each.num_tokens, self.most(each)) for each, proposer in proposers]
        room = self._policy.max_num_batched_tokens - len(decodes)
        for (sequence, proposer), length in zip(proposers, self._policy.draft_lengths(work, offers, room), strict=True):
            if length:
                yield sequence, proposer.draft(sequence.token_ids, length)

    def take_model_seconds(self) -> float:
        """Returns the seconds of the draft model since the last call, which are a part of one step."""
        seconds, self._model_seconds = self._model_seconds, 0.0
        return seconds

    def most(self, sequence: Sequence) -> int:
        """Returns the most drafts of a sequence: the tokens that it can still give, less the one that it samples
        anyway."""
        return min(MAX_DRAFT_TOKENS, self._left(sequence) - 1)

    def _left(self, sequence: Sequence) -> int:
        left = sequence.request.params.max_tokens - sequence.num_output_tokens
        return min(left, self._max_tokens - sequence.num_tokens)

    def _room(self, sequence: Sequence, count: int, reserve: int) -> int:
        """Allocates slots for `count` drafts, if that leaves `reserve` blocks. Returns how many drafts have slots."""
        if self._blocks.allocate(sequence, 1 + count, reserve=reserve):
            return count
        return len(sequence.block_table) * self._blocks.block_size - sequence.num_tokens

    def _model_probability(self, sequence: Sequence) -> float:
        """Returns how likely a draft of the model is right; 0 where it gives none."""
        if self._model is None or sequence.num_tokens >= self._model.max_num_tokens:
            return 0.0
        return _acceptance(sequence, self._acceptance).probability

    def _model_drafts(
        self, model: DraftModel, decodes: SequenceOf[Sequence], others: Drafts, room: int, reserve: int
    ) -> Drafts:
        """Returns drafts of the model, at most `room` in all, for sequences that have none."""
        work = _work(decodes)
        if not self._policy.pays(work):
            return {}
        for sequence in decodes:
            _acceptance(sequence, self._acceptance).judge(sequence.token_ids)
        members = [each for each in decodes if each not in others and each.num_tokens < model.max_num_tokens]
        orders = []
        for sequence, length in zip(members, self._model_lengths(model, members, work, others, room), strict=True):
            count = self._room(sequence, length, reserve) if length else 0
            if count > 0:
                orders.append(DraftOrder(sequence, min(count, length)))
        if not orders:
            return {}
        drafts, self._model_seconds = model.draft(orders)
        right = (
            (order.sequence, _admissible(order.sequence, draft)) for order, draft in zip(orders, drafts, strict=True)
        )
        admissible = {sequence: draft for sequence, draft in right if draft}
        for sequence, draft in admissible.items():
            _acceptance(sequence, self._acceptance).expect(draft, sequence.num_tokens)
        return admissible

    def _model_lengths(
        self, model: DraftModel, members: SequenceOf[Sequence], work: StepWork, others: Drafts, room: int
    ) -> SequenceOf[int]:
        """Returns how many drafts of the model each member gets in a step of `work` and the drafts of `others`, at most
        `room` in all."""
        rows = sum(map(len, others.values()))
        kv_tokens = sum(sequence.num_tokens * len(draft) for sequence, draft in others.items())
        expected = work.tokens + sum(_expected(sequence, draft) for sequence, draft in others.items())
        offers = [self._model_offer(model, sequence) for sequence in members]
        beside = StepWork(work.tokens + rows, work.kv_tokens + kv_tokens)
        return self._policy.model_draft_lengths(beside, expected, offers, model.cost, room)

    def _model_offer(self, model: DraftModel, sequence: Sequence) -> ModelOffer:
        most = min(self.most(sequence), model.max_num_tokens - sequence.num_tokens)
        unread = model.num_unread(sequence)
        steps = 1 if unread <= MAX_DRAFT_TOKENS else max(1, min(_STEPS, self._left(sequence)))
        return ModelOffer(self._model_probability(sequence), sequence.num_tokens, most, unread, steps)


def _admissible(sequence: Sequence, draft: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the drafts up to the first one that the sequence's grammar does not allow."""
    constraint = sequence.constraint
    return draft if constraint is None or not draft else draft[: constraint.admissible(draft)]


def _work(decodes: SequenceOf[Sequence]) -> StepWork:
    return StepWork(len(decodes), sum(sequence.num_tokens for sequence in decodes))


def _proposer(sequence: Sequence) -> NgramProposer:
    if sequence.proposer is None:
        sequence.proposer = NgramProposer()
    return sequence.proposer


def _acceptance(sequence: Sequence, overall: OverallAcceptance) -> Acceptance:
    if sequence.acceptance is None:
        sequence.acceptance = Acceptance(overall)
    return sequence.acceptance


def _expected(sequence: Sequence, draft: tuple[int, ...]) -> float:
    """Returns the expected number of right drafts by n-gram."""
    return Offer(_proposer(sequence).acceptance, 0, len(draft)).gain(len(draft))
