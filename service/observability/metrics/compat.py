"""This module shows our observations under the names that vLLM gives them, for autoscalers, routers and dashboards that
read those: `?compat=vllm`.

`model` and `version` become `model_name` ("demo:2"). Values and buckets are ours. vLLM's names that nothing of ours
stands for are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from service.observability.metrics.families import PREFIX

VLLM: Final = "vllm"
NAMES: Final = {
    "num_requests_running": "num_requests_running",
    "num_requests_waiting": "num_requests_waiting",
    "kv_cache_usage_ratio": "kv_cache_usage_perc",
    "prefix_cache_queries": "prefix_cache_queries",
    "prefix_cache_hits": "prefix_cache_hits",
    "num_preemptions": "num_preemptions",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "iteration_tokens": "iteration_tokens_total",
    "request_success": "request_success",
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_latency_seconds": "inter_token_latency_seconds",
    "request_time_per_output_token_seconds": "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds": "e2e_request_latency_seconds",
    "request_queue_time_seconds": "request_queue_time_seconds",
    "request_prefill_time_seconds": "request_prefill_time_seconds",
    "request_decode_time_seconds": "request_decode_time_seconds",
    "request_prompt_tokens": "request_prompt_tokens",
    "request_generation_tokens": "request_generation_tokens",
    "spec_decode_num_draft_tokens": "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens": "spec_decode_num_accepted_tokens",
}
"""Ours without the prefix, and vLLM's without its own; without `_total`, which the format adds to counters."""
_LABELS: Final = {"finish_reason": "finished_reason"}


class Renamed(Collector):
    """Gives another registry's families under vLLM's names, as they are when asked."""

    def __init__(self, source: CollectorRegistry) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        for family in self._source.collect():
            name = NAMES.get(family.name.removeprefix(PREFIX))
            if name is not None:
                yield _renamed(family, f"{VLLM}:{name}")


def _renamed(family: Metric, name: str) -> Metric:
    renamed = Metric(name, family.documentation, family.type)
    renamed.samples = [
        Sample(name + sample.name.removeprefix(family.name), _labels(sample.labels), sample.value)
        for sample in family.samples
    ]
    return renamed


def _labels(ours: dict[str, str]) -> dict[str, str]:
    rest = {_LABELS.get(name, name): value for name, value in ours.items() if name not in ("model", "version")}
    return {"model_name": f"{ours['model']}:{ours['version']}", **rest}
