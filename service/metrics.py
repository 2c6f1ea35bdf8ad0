"""This module declares every Prometheus metric once, and turns answers, requests and engine steps into observations. It
knows no HTTP and no text.

Names follow vLLM's stems under the prefix `dosirak_`, so that dashboards carry over. Labels are bounded: models and
versions that were served, route templates (never raw paths), status codes, error codes.

Buckets: latencies that users notice (time to first token, inter-token) are spaced by 1.1 from 1 ms, so that a quantile
read from them is within 5 % of a stopwatch (half a bucket); the other durations by 1.3. That is about 500 series a
version. `_sum` and `_count` are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from service.engine.messages import EngineStats, FinishReason
from service.live.recent import Recent

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
MODEL: Final = ("model", "version")
PREFIX: Final = "dosirak_"
OTHER: Final = "other"
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
COST_TERMS: Final = ("constant", "tokens", "kv_tokens", "prefill_context")


def spaced(first: float, last: float, ratio: float) -> tuple[float, ...]:
    """Returns bucket bounds from `first` to beyond `last`, each `ratio` times the one before, rounded to 3 digits."""
    bounds = [first]
    while bounds[-1] < last:
        bounds.append(bounds[-1] * ratio)
    return tuple(float(f"{bound:.3g}") for bound in bounds)


FELT: Final = spaced(0.001, 60, 1.1)
DURATION: Final = spaced(0.001, 600, 1.3)
TOKENS: Final = tuple(float(2**power) for power in range(18))
SEQUENCES: Final = (1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0)


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


class Metrics:
    """It owns its registry, so that several apps can live in one process. `model` returns the recorder of one
    version."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._answers = _AnswerFamilies(self.registry)
        self._engine = _EngineFamilies(self.registry)
        self._http = _HttpFamilies(self.registry)
        self._tasks = _TaskFamilies(self.registry)
        self._traces = _TraceFamilies(self.registry)
        self.summaries = self._answers.summaries
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self._keeps_recent = False

    def model(self, name: str, version: str) -> ModelMetrics:
        """Returns the recorder of one served version, made at its first use."""
        key = (name, version)
        if key not in self._models:
            made = self._models[key] = ModelMetrics(self._answers, self._engine, name, version)
            made.recent = Recent() if self._keeps_recent else None
        return self._models[key]

    def keep_recent(self, wanted: bool) -> None:
        """Begins to keep each version's recent observations, or forgets them."""
        self._keeps_recent = wanted
        for each in self._models.values():
            each.recent = Recent() if wanted else None

    def http_request(self, route: str | None, method: str, status: int) -> None:
        """Counts a request. `route` is the template (`/v1/models/{id}`), None for a path that no route has."""
        known = method if method in METHODS else OTHER
        self._http.requests.labels(route or OTHER, known, str(status)).inc()

    def error(self, code: str) -> None:
        self._http.errors.labels(code).inc()

    def background_task(self, task: str, failures: int) -> None:
        """Records that a background task began or goes on (0), or the number of its failures in a row."""
        self._tasks.failures.labels(task).inc(failures > 0)
        self._tasks.failing.labels(task).set(failures > 0)

    def export_failed(self) -> None:
        """Counts an export that the collector of traces did not take. Any thread may call this."""
        self._traces.failures.inc()

    def spans_dropped(self, spans: int) -> None:
        """Counts spans that no collector gets. Any thread may call this."""
        self._traces.dropped.inc(spans)

    def serving(self, server_version: str) -> None:
        self._http.build_info.labels(server_version).set(1)

    def exposition(self) -> bytes:
        """Returns the text format that `CONTENT_TYPE` names."""
        return generate_latest(self.registry)


class ModelMetrics:
    """Observations of one version. Its series exist from the start, so that rates begin at 0. `recent` is set while
    somebody listens to the live figures."""

    def __init__(self, answers: _AnswerFamilies, engine: _EngineFamilies, name: str, version: str) -> None:
        labels = (name, version)
        self.recent: Recent | None = None
        self._time_to_first_token = answers.time_to_first_token.labels(*labels)
        self._inter_token = answers.inter_token.labels(*labels)
        self._answers, self._engine, self._labels = answers, engine, labels
        self._last: dict[int, EngineStats] = {}
        for reason in FinishReason:
            answers.success.labels(*labels, reason.value)

    def handed_out(self, at: float, tokens: int, first: float | None, gap: float | None) -> None:
        """Records that `tokens` went out `at` this time of `time.monotonic()`. `gap`: the seconds since the sequence's
        token before; None for its first. `first`: the seconds since the request's arrival, for an answer's first."""
        if gap is not None:
            self._inter_token.observe(gap)
        elif first is not None:
            self._time_to_first_token.observe(first)
        if self.recent is not None:
            self.recent.add(at, tokens, first, gap)

    def answered(self, reason: FinishReason, measured: Measured) -> None:
        """Records that one answer ended; `abort` is a client that disconnected, `error` a failure."""
        families, labels = self._answers, self._labels
        families.success.labels(*labels, reason.value).inc()
        families.prompt_tokens.labels(*labels).inc(measured.prompt_tokens)
        families.cached_prompt_tokens.labels(*labels).inc(measured.cached_tokens)
        families.dropped_tokens.labels(*labels).inc(measured.dropped_tokens)
        families.truncated.labels(*labels).inc(measured.dropped_tokens > 0)
        families.generation_tokens.labels(*labels).inc(measured.generation_tokens)
        families.request_prompt_tokens.labels(*labels).observe(measured.prompt_tokens)
        families.request_generation_tokens.labels(*labels).observe(measured.generation_tokens)
        families.e2e.labels(*labels).observe(measured.total_seconds)
        for family, seconds in (
            (families.queue, measured.queue_seconds),
            (families.prefill, measured.prefill_seconds),
            (families.decode, measured.decode_seconds),
        ):
            if seconds is not None:
                family.labels(*labels).observe(seconds)
        for rule, action, count in measured.guard_matches:
            families.guard_matches.labels(*labels, rule, action).inc(count)
        if measured.decode_seconds is not None and measured.generation_tokens > 1:
            rate = measured.decode_seconds / (measured.generation_tokens - 1)
            families.time_per_output_token.labels(*labels).observe(rate)

    def on_step(self, stats: EngineStats, replica: int = 0) -> None:
        """Records one engine step, or empty stats when the process died: totals then start again at 0. Gauges are sums
        over the replicas."""
        engine, labels = self._engine, self._labels
        before = self._last.get(replica, EngineStats())
        self._last[replica] = stats
        for counter, now, then in (
            (engine.preemptions, stats.preemptions_total, before.preemptions_total),
            (engine.prefix_queries, stats.prefix_queried_tokens_total, before.prefix_queried_tokens_total),
            (engine.prefix_hits, stats.prefix_hit_tokens_total, before.prefix_hit_tokens_total),
            (engine.draft_tokens, stats.draft_tokens_total, before.draft_tokens_total),
            (engine.accepted_tokens, stats.accepted_tokens_total, before.accepted_tokens_total),
            (engine.restored_tokens, stats.restored_tokens_total, before.restored_tokens_total),
            (engine.hopeless, stats.hopeless_total, before.hopeless_total),
        ):
            counter.labels(*labels).inc(now - then if now >= then else now)
        if before.blocks_total and not stats.blocks_total:
            engine.restarts.labels(*labels).inc()
        if stats.steps_total != before.steps_total and stats.step_sequences:
            engine.step_seconds.labels(*labels).observe(stats.step_seconds)
            engine.iteration_tokens.labels(*labels).observe(stats.step_tokens)
            engine.batch_size.labels(*labels).observe(stats.step_sequences)
        self._set_gauges(stats)

    def _set_gauges(self, newest: EngineStats) -> None:
        engine, labels, known = self._engine, self._labels, self._last.values()
        total = sum(stats.blocks_total for stats in known)
        used = sum(stats.blocks_total - stats.blocks_free - stats.blocks_cached for stats in known)
        engine.running.labels(*labels).set(sum(stats.running for stats in known))
        engine.waiting.labels(*labels).set(sum(stats.waiting for stats in known))
        engine.kv_usage.labels(*labels).set(used / total if total else 0.0)
        engine.kv_offloaded.labels(*labels).set(sum(stats.blocks_offloaded for stats in known))
        engine.token_budget.labels(*labels).set(newest.token_budget)
        engine.cost_error.labels(*labels).set(newest.cost_error)
        engine.backlog.labels(*labels).set(newest.backlog_seconds)
        for term, value in zip(COST_TERMS, newest.cost, strict=False):
            engine.cost.labels(*labels, term).set(value)


class _Families:
    """Declares families of one registry under the prefix; all but HTTP's carry the model's labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self._registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, text, MODEL, buckets=buckets, registry=self._registry)


class _AnswerFamilies(_Families):
    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        histogram, counter = self.histogram, self.counter
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token being handed out.", FELT
        )
        self.inter_token = histogram(
            "inter_token_latency_seconds", "Between two tokens of one sequence, as they are handed out.", FELT
        )
        self.time_per_output_token = histogram(
            "request_time_per_output_token_seconds",
            "Decode time of an answer over its tokens after the first.",
            DURATION,
        )
        self.e2e = histogram("e2e_request_latency_seconds", "From a request's arrival to its last token.", DURATION)
        self.queue = histogram("request_queue_time_seconds", "Waiting in the engine before the first step.", DURATION)
        self.prefill = histogram("request_prefill_time_seconds", "From the first step to the first token.", DURATION)
        self.decode = histogram("request_decode_time_seconds", "From the first token to the last.", DURATION)
        self.request_prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of an answer.", TOKENS)
        self.request_generation_tokens = histogram("request_generation_tokens", "Tokens sampled for it.", TOKENS)
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens, cached ones included.", *MODEL)
        self.cached_prompt_tokens = counter("cached_prompt_tokens", "Those found in the prefix cache.", *MODEL)
        self.dropped_tokens = counter("context_dropped_tokens", "Tokens of chats that were left out.", *MODEL)
        self.truncated = counter("context_truncated_requests", "Answers to chats of which some were.", *MODEL)
        self.generation_tokens = counter("generation_tokens", "Sampled tokens, as `completion_tokens`.", *MODEL)
        self.summaries = counter("summaries", "Summaries of chats, by `made` or `failed`.", "outcome")
        self.guard_matches = counter("guard_matches", "What the guard found in answers.", *MODEL, "rule", "action")
        self.success = counter("request_success", "Answers by the reason for their end.", *MODEL, "finish_reason")


class _EngineFamilies(_Families):
    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        gauge, counter = self.gauge, self.counter
        self.running = gauge("num_requests_running", "Sequences in the running set.", *MODEL)
        self.waiting = gauge("num_requests_waiting", "Sequences waiting for their first step.", *MODEL)
        self.kv_usage = gauge("kv_cache_usage_ratio", "KV blocks referenced by sequences, of all.", *MODEL)
        self.preemptions = counter("num_preemptions", "Sequences put back to waiting for want of blocks.", *MODEL)
        self.prefix_queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", *MODEL)
        self.prefix_hits = counter("prefix_cache_hits", "Prompt tokens found there.", *MODEL)
        self.kv_offloaded = gauge("kv_offloaded_blocks", "KV blocks kept on disk.", *MODEL)
        self.restored_tokens = counter("kv_restored_tokens", "Of the prefix hits, those read back from there.", *MODEL)
        self.iteration_tokens = self.histogram("iteration_tokens", "Tokens computed in one step.", TOKENS)
        self.batch_size = self.histogram("iteration_sequences", "Sequences in one step.", SEQUENCES)
        self.step_seconds = self.histogram("step_duration_seconds", "Duration of one engine step.", DURATION)
        self.token_budget = gauge("token_budget_tokens", "Most tokens of the last step with prefill.", *MODEL)
        self.cost = gauge("step_cost_coefficient", "The fitted cost line of a step, by term.", *MODEL, "term")
        self.cost_error = gauge("step_cost_error_ratio", "Mean relative error of its last predictions.", *MODEL)
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Draft tokens verified.", *MODEL)
        self.accepted_tokens = counter("spec_decode_num_accepted_tokens", "Those that came true.", *MODEL)
        self.hopeless = counter("deadlines_out_of_reach", "Requests ended by the forecast.", *MODEL)
        self.backlog = gauge("backlog_seconds", "Forecast until every known prompt has its first token.", *MODEL)
        self.restarts = counter("engine_restarts", "Engine processes that died while serving.", *MODEL)


class _HttpFamilies(_Families):
    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.requests = self.counter("http_requests", "By route template and status.", "route", "method", "status")
        self.errors = self.counter("errors", "Error answers by their code.", "code")
        self.build_info = self.gauge("build_info", "Always 1; its label says what runs.", "server_version")


class _TaskFamilies(_Families):
    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.failures = self.counter("background_task_failures", "Failures of background tasks, by task.", "task")
        self.failing = self.gauge("background_task_failing", "1 while its last pass failed, else 0.", "task")


class _TraceFamilies(_Families):
    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.failures = self.counter("trace_export_failures", "Exports that the collector of traces did not take.")
        self.dropped = self.counter("trace_spans_dropped", "Spans lost with them, or because too many waited.")
