"""The step logger is what vLLM tells its figures to, in place of a logger of its own. It knows no vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from service.engine.vllm.tally import StepFacts


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
