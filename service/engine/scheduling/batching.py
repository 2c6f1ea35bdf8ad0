"""The batching policy says what the next step may hold and how long a new request waits, by the fitted cost line.

It is arithmetic on numbers. It knows no contents of sequences, no blocks and no clocks. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from service.engine.protocol.config import Preference
from service.engine.scheduling.budget import StepBudget
from service.engine.scheduling.cost import CostLine, StepWork, chunk_attention

_LONGEST: Final = 1.0  # seconds of a step; a new request waits for its end
_LONGEST_OF_ALL: Final = 2.0  # seconds of a step with a long constant
_CONSTANTS: Final = 40  # a step lasts this many times its constant: so 2.5 % of a prefill goes into constants
_MARGIN: Final = 2.0  # times the line's mean error: few steps exceed their prediction by more
_MOST_MARGIN: Final = 0.15
_STRETCH: Final = 1.75  # a step may always take this multiple of its decodes alone; twice, with the line's error
_PROMISE: Final = 1.1  # what a draft model's passes must promise, as a multiple of the tokens a second without them
_CROWD: Final = 4  # from a waiting prompt for so many decodes on, prompts get more of a step
_BACKGROUND_SHARE: Final = 0.05  # of the latency target: the prefill of background work in a step
_BEHIND_CONSTANTS: Final = 4  # the same as a multiple of the constant of a step, on a slower machine
_PAUSE: Final = 0.4  # seconds between two tokens that a crowd of prompts may make
_LONGEST_PAUSE: Final = 4  # the same as a multiple of a step of the decodes alone, on a slower machine


@dataclass(frozen=True, slots=True)
class Offer:
    """The drafts that one decoding sequence could verify: `most` of them. Each is right with `probability` if the
    drafts before it are right."""

    probability: float
    context: int
    most: int

    def gain(self, count: int) -> float:
        """Returns the expected number of right drafts among `count` of them: p + p² + .. + p^count."""
        return sum(self.probability**i for i in range(1, min(count, self.most) + 1))


@dataclass(frozen=True, slots=True)
class ModelOffer(Offer):
    """The same of a draft model, which must read `unread` known tokens first. That is worth it over `steps` steps."""

    unread: int = 1
    steps: int = 1

    def reading_seconds(self, drafting: CostLine) -> float:
        """Returns the seconds, for each of the steps, of reading all unread tokens but the last. `drafting` is the
        draft model's cost line."""
        count = self.unread - 1
        return drafting.prefill_seconds(count, chunk_attention(self.context - self.unread, count)) / self.steps


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work ahead of a first token, its own prompt included. `prefills` sequences have `tokens` of prefill left.
    `decodes` run beside them, `streams` of which are streamed. `unseated` sequences must end before the batch has a
    free seat, and one ends every `seat_seconds`. `copy_seconds` is the time of copies to and from the offload file.
    Cached prefixes cost only their copies."""

    decodes: int = 0
    kv_tokens: int = 0
    streams: int = 0
    prefills: int = 0
    tokens: int = 0
    attention: float = 0.0
    unseated: int = 0
    seat_seconds: float = 0.0
    copy_seconds: float = 0.0


class BatchingPolicy:
    """Makes budgets, numbers of drafts, and forecasts. Owns the cost line."""

    def __init__(
        self,
        max_num_batched_tokens: int,
        min_prefill_tokens: int,
        inter_token_latency_target: float,
        prefer: Preference = "streams",
    ) -> None:
        self.max_num_batched_tokens = max_num_batched_tokens
        self.min_prefill_tokens = min_prefill_tokens
        self.inter_token_latency_target = inter_token_latency_target
        self._prefers_streams = prefer == "streams"
        self.cost = CostLine()

    def step_budget(self, decodes: int, kv_tokens: int, prefills: int, streams: int) -> StepBudget:
        """Returns what a step may take, so that it is predicted to end in time. The step has `decodes` sequences with
        `kv_tokens` of context in all, and `prefills` sequences wait for their first token. The clients of `streams`
        decodes read along.

        The budget is at least min_prefill_tokens, so that a prefill advances. It is at most what the configured maximum
        leaves, and at most what the cost line is trusted for. It is monotone in `prefills`, and in a target that the
        machine can keep.
        """
        room = self.max_num_batched_tokens - decodes
        least = min(self.min_prefill_tokens, room)
        tokens = max(least, min(room, self.cost.trusted_tokens - decodes))
        longest = self._longest_step(decodes, kv_tokens, prefills, streams)
        seconds = longest - self.cost.predict(StepWork(decodes, kv_tokens))
        return StepBudget(self.cost, seconds, tokens, least)

    def _longest_step(self, decodes: int, kv_tokens: int, prefills: int, streams: int) -> float:
        """Returns the seconds that a step may take.

        Beside streams it is the latency target less a margin for the line's error, however many prompts wait. If the
        machine cannot keep the target, it is 1.75 times the seconds of the decodes alone.

        Where no client reads along, or prompts are preferred, a crowd of prompts comes first: beside it the decodes
        would go on at the pace of few, and their step reads all weights. So from a prompt for four decodes on the
        prefill's share grows with the cube of prompts by decodes (a prompt for two decodes: six times the decodes' own
        seconds), up to a pause of 0.4 seconds, or four times the decodes alone.

        No step is planned for more than one second, or two if its constant is long, except for these 1.75 times.
        """
        constants = _CONSTANTS * self.cost.coefficients[0]
        limit = max(_LONGEST, min(constants, _LONGEST_OF_ALL), self.inter_token_latency_target)
        if decodes == 0:
            return limit
        alone = self.cost.predict(StepWork(decodes, kv_tokens))
        calm = max(self._planned_target, alone * _STRETCH)
        if streams and self._prefers_streams:
            return calm
        crowd = max(1.0, _CROWD * prefills / decodes) ** 3
        pause = max(_PAUSE, alone * _LONGEST_PAUSE)
        return max(calm, min(alone * (1 + (_STRETCH - 1) * crowd), pause, limit))

    @property
    def _planned_target(self) -> float:
        """The seconds that a step is planned for, so that nearly every step ends within the latency target: predictions
        err to both sides, and planned for the target itself every second step would miss it."""
        return self.inter_token_latency_target / (1 + min(_MARGIN * self.cost.error, _MOST_MARGIN))

    @property
    def background_seconds(self) -> float:
        """The seconds of prefill in a step that computes prompts of background work: the next client's request
        waits for its end. So it is short, but not so short that it is spent on constants."""
        return max(_BACKGROUND_SHARE * self.inter_token_latency_target, _BEHIND_CONSTANTS * self.cost.coefficients[0])

    def pays(self, work: StepWork) -> bool:
        """Returns whether a draft that is surely right would raise the tokens per second of a step of decodes only. If
        not, no draft does."""
        row = self.row_seconds(work.kv_tokens // work.tokens)
        return self.cost.is_measured and self.cost.predict(work) > work.tokens * row

    def draft_lengths(self, work: StepWork, offers: SequenceOf[Offer], room: int) -> list[int]:
        """Returns how many drafts each offer gets, at most `room` in all, in a step of `work` without drafts.

        The likeliest next draft is added while it raises the step's expected tokens per second. That holds while its
        probability over its seconds is above tokens over seconds so far. The step stays within the latency target, or
        within 1.75 times its seconds without drafts. The gain is discounted by the line's error: in doubt, no draft.
        """
        lengths = [0] * len(offers)
        seconds, tokens = self.cost.predict(work), float(work.tokens)
        longest, trust = self._longest_with_drafts(seconds), self._trust
        chances = [(-offer.probability, index) for index, offer in enumerate(offers) if offer.most > 0]
        heapify(chances)
        while chances and sum(lengths) < room:
            chance, index = heappop(chances)
            row = self.row_seconds(offers[index].context)
            if -chance * seconds * trust <= tokens * row or seconds + row > longest:
                break
            seconds, tokens = seconds + row, tokens - chance
            lengths[index] += 1
            if lengths[index] < offers[index].most:
                heappush(chances, (chance * offers[index].probability, index))
        return lengths

    def model_draft_lengths(
        self, work: StepWork, tokens: float, offers: SequenceOf[ModelOffer], drafting: CostLine, room: int
    ) -> list[int]:
        """Returns how many drafts of a draft model each offer gets, at most `room` in all. `drafting` is the draft
        model's cost line. Without them the step has `work` and is expected to give `tokens`.

        One pass of the draft model gives a draft to each of its sequences, so these get the same number. Of all numbers
        of drafts and of sequences, likeliest first, it is the pair with the most expected tokens per second, passes
        included. It must promise a tenth more than without. The bounds are those of `draft_lengths`.
        """
        order = sorted(range(len(offers)), key=lambda index: -offers[index].probability)
        seconds = self.cost.predict(work)
        longest, best, chosen = self._longest_with_drafts(seconds), _PROMISE * tokens / seconds, (0, 0)
        for depth in range(1, max((offer.most for offer in offers), default=0) + 1):
            gained, step, reading, kv_tokens, rows = 0.0, seconds, 0.0, 0, 0
            for count, offer in enumerate((offers[index] for index in order), 1):
                drafts = max(0, min(depth, offer.most))
                rows += drafts
                gained += offer.gain(depth)
                step += drafts * self.row_seconds(offer.context)
                reading += offer.reading_seconds(drafting)
                kv_tokens += offer.context
                in_all = step + reading + depth * drafting.predict(StepWork(count, kv_tokens))
                if rows > room or in_all > longest:
                    break
                if (rate := (tokens + gained * self._trust) / in_all) > best:
                    best, chosen = rate, (depth, count)
        lengths = [0] * len(offers)
        for index in order[: chosen[1]]:
            lengths[index] = max(0, min(chosen[0], offers[index].most))
        return lengths

    @property
    def _trust(self) -> float:
        return max(0.0, 1 - self.cost.error)

    def _longest_with_drafts(self, seconds: float) -> float:
        """Returns the longest that a step may take with drafts. Its decodes alone take `seconds`."""
        return max(self._planned_target, seconds * _STRETCH)

    def first_token_seconds(self, backlog: Backlog) -> float:
        """Forecasts the seconds until the whole backlog is prefilled, so until the last request's first token. Returns
        0 while too few steps are measured.

        Prefill goes in chunks that the budget leaves beside the decodes. A request without a seat waits for other
        sequences to end.
        """
        if not backlog.tokens or not self.cost.is_measured:
            return 0.0
        beside = StepWork(backlog.decodes, backlog.kv_tokens)
        budget = self.step_budget(backlog.decodes, backlog.kv_tokens, backlog.prefills, backlog.streams)
        steps = -(-backlog.tokens // max(1, budget.chunk(0)))
        if budget.seconds > 0:
            steps += int(backlog.copy_seconds / budget.seconds)
        prefill = self.cost.prefill_seconds(backlog.tokens, backlog.attention) + backlog.copy_seconds
        prefill += steps * self.cost.predict(beside)
        return max(prefill, backlog.unseated * backlog.seat_seconds)

    def is_hopeless(self, backlog: Backlog, seconds: float) -> bool:
        """Returns whether the first token cannot come within `seconds`, even if the line is wrong by its usual
        error."""
        return self.first_token_seconds(backlog) * self._trust > seconds

    def recompute_seconds(self, num_tokens: int) -> float:
        """Returns the cost of a preemption after which `num_tokens` must be computed again."""
        return self.cost.prefill_seconds(num_tokens, chunk_attention(0, num_tokens))

    def block_seconds(self, index: int, block_size: int) -> float:
        """Returns the cost of the block at `index` of a sequence in a prefill. A later block costs more."""
        return self.cost.prefill_seconds(block_size, chunk_attention(index * block_size, block_size))

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learns that one step took `seconds`."""
        self.cost.observe(work, seconds)

    def row_seconds(self, context: int) -> float:
        """Returns the seconds of one more decode row over `context` tokens."""
        _, tokens, kv_tokens, _ = self.cost.coefficients
        return tokens + kv_tokens * context
