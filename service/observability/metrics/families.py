"""The families are the metrics of one registry by subject: name, help, type, labels and buckets. They observe nothing
themselves. `inventory` declares those that are read when a scrape asks."""

from __future__ import annotations

from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from service.observability.metrics import histograms
from service.observability.metrics.histograms import SwiftHistogram

PREFIX: Final = "dosirak_"
MODEL: Final = ("model", "version")
PHASE: Final = (*MODEL, "phase")


Observed = TypeVar("Observed", Counter, Histogram, SwiftHistogram)


class _Families:
    """Declares families of one registry under the prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.of_versions: list[Counter | Histogram | SwiftHistogram] = []
        """Counters and histograms whose only labels are a version's."""
        self._by_version: list[Counter | Gauge | Histogram | SwiftHistogram] = []

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return self._noted(Counter(PREFIX + name, text, labels, registry=self._registry), labels)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        made = Gauge(PREFIX + name, text, labels, registry=self._registry)
        if labels[:2] == MODEL:
            self._by_version.append(made)
        return made

    def histogram(
        self, name: str, text: str, bounds: tuple[float, ...], labels: tuple[str, ...] = MODEL, prefix: str = PREFIX
    ) -> Histogram:
        return self._noted(Histogram(prefix + name, text, labels, buckets=bounds, registry=self._registry), labels)

    def swift(self, name: str, text: str, bounds: tuple[float, ...]) -> SwiftHistogram:
        return self._noted(SwiftHistogram(PREFIX + name, text, MODEL, bounds, self._registry), MODEL)

    def _noted(self, made: Observed, labels: tuple[str, ...]) -> Observed:
        if labels == MODEL:
            self.of_versions.append(made)
        if labels[:2] == MODEL:
            self._by_version.append(made)
        return made

    def forget(self, model: str, version: str) -> None:
        """Takes a version's series away."""
        for family in self._by_version:
            family.remove_by_labels({"model": model, "version": version})


class AnswerFamilies(_Families):
    """What answers are observed for, by version."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._declare_latencies()
        self._declare_gen_ai()
        histogram, counter = self.histogram, self.counter
        self.request_prompt_tokens = histogram(
            "request_prompt_tokens", "Prompt tokens of an answer.", histograms.PROMPT_TOKENS
        )
        self.request_generation_tokens = histogram(
            "request_generation_tokens", "Tokens sampled for it.", histograms.ANSWER_TOKENS
        )
        self.window_used = histogram(
            "context_window_used_ratio", "Prompt tokens of an answer, of the window.", histograms.WINDOW_USED
        )
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens, cached ones included.", *MODEL)
        self.cached_prompt_tokens = counter("cached_prompt_tokens", "Those found in the prefix cache.", *MODEL)
        self.dropped_tokens = counter("context_dropped_tokens", "Tokens of chats that were left out.", *MODEL)
        self.truncated = counter("context_truncated_requests", "Answers to chats of which some were.", *MODEL)
        self.generation_tokens = counter("generation_tokens", "Sampled tokens, as `completion_tokens`.", *MODEL)
        self.guard_matches = counter("guard_matches", "What the guard found in answers.", *MODEL, "rule", "action")
        self.success = counter("request_success", "Answers by the reason for their end.", *MODEL, "finish_reason")
        self.aborted = counter("requests_aborted", "Answers that did not come to their end, by cause.", *MODEL, "cause")

    def _declare_latencies(self) -> None:
        histogram = self.histogram
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to its first token being handed out.",
            histograms.FELT,
        )
        self.inter_token = self.swift(
            "inter_token_latency_seconds", "Between two tokens of one sequence, as they are handed out.", histograms.GAP
        )
        self.time_per_output_token = histogram(
            "request_time_per_output_token_seconds",
            "Decode time of an answer over its tokens after the first.",
            histograms.STEP,
        )
        self.e2e = histogram(
            "e2e_request_latency_seconds", "From a request's arrival to its last token.", histograms.ANSWER
        )
        self.queue = histogram(
            "request_queue_time_seconds", "Waiting in the engine before the first step.", histograms.PART
        )
        self.prefill = histogram(
            "request_prefill_time_seconds", "From the first step to the first token.", histograms.PART
        )
        self.decode = histogram("request_decode_time_seconds", "From the first token to the last.", histograms.ANSWER)

    def _declare_gen_ai(self) -> None:
        """OpenTelemetry's names for the same observations, as its exporter to Prometheus spells them."""

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return self.histogram(name, text, bounds, prefix="gen_ai_server_")

        self.gen_ai_duration = histogram(
            "request_duration_seconds", "As dosirak_e2e_request_latency_seconds.", histograms.GEN_AI_DURATION
        )
        self.gen_ai_per_token = histogram(
            "time_per_output_token_seconds",
            "As dosirak_request_time_per_output_token_seconds.",
            histograms.GEN_AI_PER_TOKEN,
        )
        self.gen_ai_first = histogram(
            "time_to_first_token_seconds", "As dosirak_time_to_first_token_seconds.", histograms.GEN_AI_FIRST
        )


class EngineFamilies(_Families):
    """What engine steps tell, by the version that started the engine."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._declare_work()
        gauge, counter = self.gauge, self.counter
        self.running = gauge("num_requests_running", "Sequences in the running set.", *MODEL)
        self.waiting = gauge("num_requests_waiting", "Sequences waiting for their first step.", *MODEL)
        self.kv_usage = gauge("kv_cache_usage_ratio", "KV blocks referenced by sequences, of all.", *MODEL)
        self.preemptions = counter("num_preemptions", "Sequences put back to waiting for want of blocks.", *MODEL)
        self.prefix_queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", *MODEL)
        self.prefix_hits = counter("prefix_cache_hits", "Prompt tokens found there.", *MODEL)
        self.kv_offloaded = gauge("kv_offloaded_blocks", "KV blocks kept on disk.", *MODEL)
        self.restored_tokens = counter("kv_restored_tokens", "Of the prefix hits, those read back from there.", *MODEL)
        self.token_budget = gauge("token_budget_tokens", "Most tokens of the last step with prefill.", *MODEL)
        self.cost = gauge("step_cost_coefficient", "The fitted cost line of a step, by term.", *MODEL, "term")
        self.cost_error = gauge("step_cost_error_ratio", "Mean relative error of its last predictions.", *MODEL)
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Draft tokens verified.", *MODEL)
        self.accepted_tokens = counter("spec_decode_num_accepted_tokens", "Those that came true.", *MODEL)
        self.hopeless = counter("deadlines_out_of_reach", "Requests ended by the forecast.", *MODEL)
        self.backlog = gauge("backlog_seconds", "Forecast until every known prompt has its first token.", *MODEL)
        self.restarts = counter("engine_restarts", "Engine processes that died while serving.", *MODEL)
        self.slowdown = gauge("engine_slowdown_ratio", "Decode step's time by the fastest way's; 1: it serves.", *MODEL)
        self.shared = gauge("shared_weights_bytes", "Bytes of weights in memory once for all replicas.", *MODEL)

    def _declare_work(self) -> None:
        histogram, counter, gauge = self.histogram, self.counter, self.gauge
        self.iteration_tokens = histogram("iteration_tokens", "Tokens computed in one step.", histograms.ANSWER_TOKENS)
        self.batch_size = histogram("iteration_sequences", "Sequences in one step.", histograms.SEQUENCES)
        self.step_duration = histogram("step_duration_seconds", "Duration of one engine step.", histograms.STEP)
        self.flops = counter("model_flops", "Useful floating-point operations of the model, by phase.", *PHASE)
        self.bytes = counter("model_bytes", "Weights, keys and values read and written, by phase.", *PHASE)
        self.step_seconds = counter("step_seconds", "Time of engine steps, by phase.", *PHASE)
        self.peak_flops = gauge("peak_flops", "Most operations a second that this host does.", *MODEL, "dtype")
        self.peak_bytes = gauge("peak_bytes_per_second", "Most bytes a second from its memory.", *MODEL)
        self.mfu = gauge("mfu_ratio", "Useful operations a second in the last 256 steps, of the peak.", *PHASE)
        self.bandwidth = gauge("bandwidth_ratio", "Bytes a second in the last 256 steps, of the peak.", *PHASE)


class HttpFamilies(_Families):
    """Requests at the edge, before a model is known."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.requests = self.counter("http_requests", "By route template and status.", "route", "method", "status")
        self.errors = self.counter("errors", "Error answers by their code.", "code")
        self.build_info = self.gauge("build_info", "Always 1; its label says what runs.", "server_version")
        self.rejected = self.counter("admission_rejected", "Requests refused before an engine had them.", "reason")
        self.connections = self.gauge("http_connections", "Open connections.")
        self.closed = self.counter("http_connections_closed", "Connections that the server ended.", "reason")
        self.wrong_keys = self.counter("wrong_keys", "Wrong keys, by the status that answered them.", "status")
        self.wrong_key_peers = self.gauge("wrong_key_peers", "Peers whose next wrong key gets 429.")


class SupportFamilies(_Families):
    """What goes on beside answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.failures = self.counter("background_task_failures", "Failures of background tasks, by task.", "task")
        self.failing = self.gauge("background_task_failing", "1 while its last pass failed, else 0.", "task")
        self.export_failures = self.counter("trace_export_failures", "Exports that no collector took.")
        self.spans_dropped = self.counter("trace_spans_dropped", "Spans lost with them, or because too many waited.")
        self.summaries = self.counter("summaries", "Summaries of chats, by `made` or `failed`.", "outcome")
        self.turns_waiting = self.gauge("session_turns_waiting", "Turns that wait for their session's other turns.")
        self.batch_lines = self.counter("batch_lines", "Lines of batches, by `completed` or `failed`.", "result")
        self.batches = self.gauge("batches", "Batches of the database that are not forgotten, by status.", "status")
        self.stores_failing = self.gauge("store_failing", "1 while calls of a store fail, else 0.", "store")
        self.audit_row = self.gauge("audit_last_row", "Number of the last row of the audit that this server wrote.")
        self.audit_waiting = self.gauge("audit_waiting_rows", "Rows of the audit that wait for the database.")
        self.store_seconds = self.histogram(
            "session_store_seconds", "Calls of the session database, by kind.", histograms.STORE, ("op",)
        )
