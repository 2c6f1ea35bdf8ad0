"""Adaptive batching: what the next step may hold, and how long a newcomer waits for its turn, by the fitted cost line.

A page of arithmetic: nothing here knows what sequences hold, blocks or clocks. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from service.engine.budget import StepBudget
from service.engine.cost import CostLine, Work, chunk_attention

_MEMORY: Final = 0.99
_LONGEST: Final = 1.0  # seconds of a step: whoever arrives meanwhile waits for its end
_STRETCH: Final = 1.75  # a step may always take so many times what its decodes would alone; twice, with its error


@dataclass(frozen=True, slots=True)
class Offer:
    """What one decoding sequence could verify: `most` drafts, each right with `probability` if those before it are."""

    probability: float
    context: int
    most: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is ahead of a first token, its own prompt included: prefill that is not computed yet, of how many sequences,
    the decodes beside it, how many must end before there is a seat in the batch, and the seconds of copies to and from
    the offload file. Cached prefixes are no work but for their copies."""

    decodes: int = 0
    kv_tokens: int = 0
    prefills: int = 0
    tokens: int = 0
    attention: float = 0.0
    unseated: int = 0
    copy_seconds: float = 0.0


class BatchingPolicy:
    """Budgets, drafts and forecasts. Owns the cost line and what it has seen of ends."""

    def __init__(self, max_num_batched_tokens: int, min_prefill_tokens: int, inter_token_latency_target: float) -> None:
        self.max_num_batched_tokens = max_num_batched_tokens
        self.min_prefill_tokens = min_prefill_tokens
        self.inter_token_latency_target = inter_token_latency_target
        self.cost = CostLine()
        self._busy_seconds = 0.0
        self._ends = 0.0

    def step_budget(self, decodes: int, kv_tokens: int, prefills: int) -> StepBudget:
        """What a step may take beside `decodes` sequences with `kv_tokens` of context in all, when `prefills` wait for
        their first token, so that it is predicted to end in time.

        Always: at least min_prefill_tokens, so that a prefill advances; at most what the configured maximum leaves,
        and what the cost line can be trusted for.
        """
        room = self.max_num_batched_tokens - decodes
        least = min(self.min_prefill_tokens, room)
        tokens = max(least, min(room, self.cost.trusted_tokens - decodes))
        seconds = self._longest_step(decodes, kv_tokens, prefills) - self.cost.predict(Work(decodes, kv_tokens))
        return StepBudget(self.cost, seconds, tokens, least)

    def token_budget(self, decodes: int, kv_tokens: int, context: int, prefills: int) -> int:
        """The most tokens of such a step, when its prefill continues at position `context`. Monotone in the target and
        in `prefills`."""
        return decodes + self.step_budget(decodes, kv_tokens, prefills).chunk(context)

    def _longest_step(self, decodes: int, kv_tokens: int, prefills: int) -> float:
        """The target where somebody waits for a next token. Where that cannot be kept, 1.75 times what the decodes
        would take alone; or prefill takes the share of the step that those who wait for a first token are of all who
        wait: one decode does not hold up seven prompts on a slow machine. Neither that nor a step without decodes is
        planned to take more than a second."""
        limit = max(_LONGEST, self.inter_token_latency_target)
        if decodes == 0:
            return limit
        alone = self.cost.predict(Work(decodes, kv_tokens))
        shared = min(alone * (1 + prefills / decodes), limit)
        return max(self.inter_token_latency_target, alone * _STRETCH, shared)

    def pays(self, work: Work) -> bool:
        """Whether a draft that is sure to be right would raise the tokens per second of a step of nothing but decodes:
        if not, no draft does."""
        return self.cost.is_measured and self.cost.predict(work) > work.tokens * self._row(
            work.kv_tokens // work.tokens
        )

    def draft_lengths(self, work: Work, offers: SequenceOf[Offer], room: int) -> list[int]:
        """How many drafts each offer gets, at most `room` in all, in a step of `work` without them.

        The likeliest next draft is added while that raises the step's expected tokens per second, which is while its
        probability over its seconds is above tokens over seconds so far, and while a step that was within the latency
        target stays there. What it gains is discounted by the line's error: in doubt, no draft.
        """
        lengths = [0] * len(offers)
        seconds, tokens = self.cost.predict(work), float(work.tokens)
        longest = max(seconds, self.inter_token_latency_target)
        trust = max(0.0, 1 - self.cost.error)
        chances = [(-offer.probability, index) for index, offer in enumerate(offers) if offer.most > 0]
        heapify(chances)
        while chances and sum(lengths) < room:
            chance, index = heappop(chances)
            row = self._row(offers[index].context)
            if -chance * seconds * trust <= tokens * row or seconds + row > longest:
                break
            seconds, tokens = seconds + row, tokens - chance
            lengths[index] += 1
            if lengths[index] < offers[index].most:
                heappush(chances, (chance * offers[index].probability, index))
        return lengths

    def first_token_seconds(self, backlog: Backlog) -> float:
        """Forecast: until all of the backlog's prefill is done, hence until the last one's first token. 0 as long as
        too few steps are known.

        Prefill goes in chunks of what the budget leaves beside the decodes; whoever has no seat waits for ends, at the
        rate of ends per second of computing so far.
        """
        if not backlog.tokens or not self.cost.is_measured:
            return 0.0
        beside = Work(backlog.decodes, backlog.kv_tokens)
        budget = self.step_budget(backlog.decodes, backlog.kv_tokens, backlog.prefills)
        steps = -(-backlog.tokens // max(1, budget.chunk(0)))
        if budget.seconds > 0:
            steps += int(backlog.copy_seconds / budget.seconds)
        prefill = self.cost.prefill_seconds(backlog.tokens, backlog.attention) + backlog.copy_seconds
        prefill += steps * self.cost.predict(beside)
        seats = backlog.unseated * self._busy_seconds / self._ends if self._ends else 0.0
        return max(prefill, seats)

    def is_hopeless(self, backlog: Backlog, seconds: float) -> bool:
        """Whether the first token cannot be had within `seconds`, even if the line is wrong by its usual error."""
        doubt = max(0.0, 1 - self.cost.error)
        return self.first_token_seconds(backlog) * doubt > seconds

    def recompute_seconds(self, num_tokens: int) -> float:
        """What preempting a sequence costs of which so many tokens would have to be computed again."""
        return self.cost.prefill_seconds(num_tokens, chunk_attention(0, num_tokens))

    def block_seconds(self, index: int, block_size: int) -> float:
        """What the block at that place of a sequence costs in a prefill: more, the further behind it lies."""
        return self.cost.prefill_seconds(block_size, chunk_attention(index * block_size, block_size))

    def observe(self, work: Work, seconds: float, ends: int = 0) -> None:
        """One step took so long, and so many sequences ended with it."""
        self.cost.observe(work, seconds)
        self._busy_seconds = _MEMORY * self._busy_seconds + seconds
        self._ends = _MEMORY * self._ends + ends

    def _row(self, context: int) -> float:
        """Seconds of one more decode row over so much context."""
        _, tokens, kv_tokens, _ = self.cost.coefficients
        return tokens + kv_tokens * context
