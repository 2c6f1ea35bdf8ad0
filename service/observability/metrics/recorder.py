"""The recorder of one version turns its answers and its engine's steps into observations. It knows no text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from service.engine.protocol.messages import EngineInfo, EngineStats, FinishReason
from service.observability.metrics.engine_recorder import EngineRecorder
from service.observability.metrics.families import AnswerFamilies, EngineFamilies
from service.observability.metrics.recent import Recent

Abort = Literal["client", "deadline", "drain", "engine"]
"""Why an answer did not come to its end: its client left, its time was over, its version or the server was drained, or
its engine failed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one ended answer, in seconds; None where it ended before that phase."""

    prompt_tokens: int
    dropped_tokens: int
    cached_tokens: int
    generation_tokens: int
    queue_seconds: float | None
    prefill_seconds: float | None
    decode_seconds: float | None
    total_seconds: float
    guard_matches: tuple[tuple[str, str, int], ...] = ()
    """(rule, action, count)"""
    window: int = 0
    """Token positions of the prompt's window; 0 where it is not known."""


class ModelMetrics:
    """Observations of one version. Its series exist from the start, so that rates begin at 0. `recent` is set while
    somebody listens to the live figures."""

    def __init__(
        self,
        answers: AnswerFamilies,
        engine: EngineFamilies,
        labels: tuple[str, str],
        guard_rules: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """`guard_rules` are the guard's (rule, action)."""
        self.recent: Recent | None = None
        self._engine = EngineRecorder(engine, labels)
        self._time_to_first_token = answers.time_to_first_token.labels(*labels)
        self._gen_ai_first = answers.gen_ai_first.labels(*labels)
        self._inter_token = answers.inter_token.labels(*labels)
        self._answers, self._labels = answers, labels
        for family in answers.of_versions:
            family.labels(*labels)
        for reason in FinishReason:
            answers.success.labels(*labels, reason.value)
        for cause in get_args(Abort):
            answers.aborted.labels(*labels, cause)
        for rule in guard_rules:
            answers.guard_matches.labels(*labels, *rule)

    def handed_out(self, at: float, tokens: int, first: float | None, gap: float | None) -> None:
        """Records that `tokens` went out `at` this time of `time.monotonic()`. `gap`: the seconds since the sequence's
        token before; None for its first. `first`: the seconds since the request's arrival, for an answer's first."""
        if gap is not None:
            self._inter_token.observe(gap)
        elif first is not None:
            self._time_to_first_token.observe(first)
            self._gen_ai_first.observe(first)
        if self.recent is not None:
            self.recent.add(at, tokens, first, gap)

    def answered(
        self, reason: FinishReason, measured: Measured, cause: Abort | None = None, *, is_timed: bool = True
    ) -> None:
        """Records that one answer ended; `abort` is a client that disconnected, `error` a failure. `cause` says why it
        did not come to its end, None where it did. Without `is_timed` its times are no client's, and not counted."""
        families, labels = self._answers, self._labels
        families.success.labels(*labels, reason.value).inc()
        if cause is not None:
            families.aborted.labels(*labels, cause).inc()
        families.prompt_tokens.labels(*labels).inc(measured.prompt_tokens)
        families.cached_prompt_tokens.labels(*labels).inc(measured.cached_tokens)
        families.dropped_tokens.labels(*labels).inc(measured.dropped_tokens)
        families.truncated.labels(*labels).inc(measured.dropped_tokens > 0)
        families.generation_tokens.labels(*labels).inc(measured.generation_tokens)
        families.request_prompt_tokens.labels(*labels).observe(measured.prompt_tokens)
        families.request_generation_tokens.labels(*labels).observe(measured.generation_tokens)
        if measured.window:
            families.window_used.labels(*labels).observe(measured.prompt_tokens / measured.window)
        for rule, action, count in measured.guard_matches:
            families.guard_matches.labels(*labels, rule, action).inc(count)
        if is_timed:
            self._observe_times(measured)

    def _observe_times(self, measured: Measured) -> None:
        families, labels = self._answers, self._labels
        per_token = None
        if measured.decode_seconds is not None and measured.generation_tokens > 1:
            per_token = measured.decode_seconds / (measured.generation_tokens - 1)
        for family, seconds in (
            (families.e2e, measured.total_seconds),
            (families.gen_ai_duration, measured.total_seconds),
            (families.queue, measured.queue_seconds),
            (families.prefill, measured.prefill_seconds),
            (families.decode, measured.decode_seconds),
            (families.time_per_output_token, per_token),
            (families.gen_ai_per_token, per_token),
        ):
            if seconds is not None:
                family.labels(*labels).observe(seconds)

    def begin_engine(self) -> None:
        """Records that the version gets a new engine. Its counters go on."""
        self._engine.begin()

    def end_engine(self) -> None:
        """Records that the version's engine has stopped."""
        self._engine.end()

    def on_ready(self, info: EngineInfo, replica: int = 0) -> None:
        """Records the facts of an engine process that is ready."""
        self._engine.on_ready(info, replica)

    def on_queue(self, waiting: int) -> None:
        """Records how many requests wait in front of the engine's replicas."""
        self._engine.on_queue(waiting)

    def on_step(self, stats: EngineStats, replica: int = 0) -> None:
        """Records one engine step, or empty stats when the process died: totals then start again at 0."""
        self._engine.on_step(stats, replica)
