"""The tally turns what vLLM tells of its steps into the figures of an engine: the cost line, stats and step records.

It knows numbers only, and no vLLM: the cost line and the turnover learn from vLLM's steps and ends as they do from our
own, so that forecasts, deadlines and `Retry-After` go on. vLLM tells its figures to the step logger, in place of a
logger of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from service.engine.protocol.messages import MAX_STEPS, EngineStats, StepRecord
from service.engine.scheduling.cost import CostLine, StepWork, chunk_attention
from service.engine.scheduling.turnover import Answer, Turnover


@dataclass(slots=True)
class StepFacts:
    """What vLLM tells of one step: scheduled tokens and sequences by phase, and its scheduler's state after it."""

    prefill_tokens: int = 0
    prefill_sequences: int = 0
    decode_tokens: int = 0
    decode_sequences: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    queried: int = 0
    hits: int = 0
    preempted: int = 0

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens

    @property
    def sequences(self) -> int:
        return self.prefill_sequences + self.decode_sequences


class Tally:
    """Learns from every step. Prompts that several steps compute are taken for one prompt after the other: vLLM does
    not tell which tokens are whose."""

    def __init__(self, blocks_total: int, token_budget: int, max_num_seqs: int) -> None:
        self._blocks_total = blocks_total
        self._token_budget = token_budget
        self._max_num_seqs = max_num_seqs
        self._cost = CostLine()
        self._turnover = Turnover()
        self._token_seconds = 0.0
        """Of the last step, past its constant."""
        self._untold = deque[StepRecord](maxlen=MAX_STEPS)
        self._last = StepFacts()
        self._last_seconds = 0.0
        self._prefilled = 0
        self._steps = self._prefill_tokens = self._queried = self._hits = self._preemptions = 0

    def observe(self, facts: StepFacts, kv_tokens: int, has_first_token: bool, seconds: float) -> None:
        """Takes a step that computed something. `kv_tokens` is the context of the sequences that decode;
        `has_first_token` says whether a prompt has come to its end."""
        self._last, self._last_seconds = facts, seconds
        self._token_seconds = max(0.0, seconds - self._cost.coefficients[0]) / max(1, facts.tokens)
        self._queried += facts.queried
        self._hits += facts.hits
        self._preemptions += facts.preempted
        if not facts.tokens:
            return
        self._steps += 1
        self._prefill_tokens += facts.prefill_tokens
        attention = chunk_attention(self._prefilled, facts.prefill_tokens) if facts.prefill_tokens else 0.0
        self._prefilled = 0 if has_first_token else self._prefilled + facts.prefill_tokens
        self._cost.observe(StepWork(facts.tokens, kv_tokens, attention), seconds)
        self._untold.append(StepRecord(facts.tokens, facts.sequences, self._cost.last_prediction, seconds))

    def charge(self, answer: Answer, num_tokens: int) -> None:
        """Counts the last step as one of an answer, for which it computed `num_tokens`."""
        answer.num_steps += 1
        answer.own_seconds += self._token_seconds * num_tokens

    def end(self, answer: Answer) -> None:
        """Learns what an answer took that ends."""
        self._turnover.end(answer)

    def rest(self) -> None:
        """Notes that no request is left: vLLM tells nothing of a step that only ends them. The last step's size
        stays."""
        self._last = replace(self._last, running=0, waiting=0, kv_usage=0.0)

    def take_steps(self) -> tuple[StepRecord, ...]:
        untold = tuple(self._untold)
        self._untold.clear()
        return untold

    def forecast_seconds(self, kv_tokens: int, waiting: Iterable[int]) -> float | None:
        """Returns a forecast of a step that decodes behind `kv_tokens`, with as much of the `waiting` prompts as it may
        hold; None while too few steps were measured, or none was so large."""
        prefill = min(sum(waiting), self._token_budget)
        if not self._cost.is_measured or prefill > self._cost.trusted_tokens:
            return None
        return self._cost.predict(
            StepWork(prefill + self._last.decode_sequences, kv_tokens, chunk_attention(0, prefill))
        )

    @property
    def _seats(self) -> int:
        """How many sequences can run at once: fewer than the configured maximum where those that run fill the cache
        before."""
        running, usage = self._last.running, self._last.kv_usage
        return max(1, min(self._max_num_seqs, int(running / usage))) if running and usage else self._max_num_seqs

    def stats(self, waiting: Collection[int], running: Collection[Answer] = ()) -> EngineStats:
        """Returns a snapshot. `waiting` are the lengths of the prompts without a first token, `running` the answers
        that have one. A prompt without a seat waits for ends."""
        last, used, seats = self._last, round(self._last.kv_usage * self._blocks_total), self._seats
        prefill = sum(self._cost.prefill_seconds(each, chunk_attention(0, each)) for each in waiting)
        seat_seconds = self._turnover.seat_seconds(seats, self._cost.coefficients[0], running)
        unseated = max(0, len(waiting) + len(running) - seats)
        return EngineStats(
            running=last.running,
            waiting=last.waiting,
            blocks_total=self._blocks_total,
            blocks_free=self._blocks_total - used,
            preemptions_total=self._preemptions,
            steps_total=self._steps,
            prefix_queried_tokens_total=self._queried,
            prefix_hit_tokens_total=self._hits,
            step_seconds=self._last_seconds,
            step_tokens=last.tokens,
            step_sequences=last.sequences,
            token_budget=self._token_budget,
            cost=self._cost.coefficients,
            cost_error=self._cost.error,
            backlog_seconds=max(prefill, unseated * seat_seconds),
            seats=seats,
            seat_seconds=seat_seconds,
            prefill_tokens_total=self._prefill_tokens,
        )


@dataclass(slots=True)
class StepLogger:
    """vLLM's stat logger of this engine: it keeps what was told of the last step."""

    facts: StepFacts = field(default_factory=StepFacts)

    def record(self, scheduler_stats: Any, iteration_stats: Any, **_: object) -> None:
        facts = self.facts = StepFacts()
        if scheduler_stats is not None:
            facts.running = scheduler_stats.num_running_reqs
            facts.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            facts.kv_usage = scheduler_stats.kv_cache_usage
            facts.queried = scheduler_stats.prefix_cache_stats.queries
            facts.hits = scheduler_stats.prefix_cache_stats.hits
            if (details := scheduler_stats.iteration_details) is not None:
                facts.prefill_tokens, facts.prefill_sequences = details.num_ctx_tokens, details.num_ctx_requests
                facts.decode_tokens = details.num_generation_tokens
                facts.decode_sequences = details.num_generation_requests
        if iteration_stats is not None:
            facts.preempted = iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None: ...

    def log(self) -> None: ...

    def record_sleep_state(self, *_: object) -> None: ...
