"""The alerts as data. Each has a rule test in which it fires and one in which it stays quiet, and a section of the same
name in docs/operations.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from docker.monitoring.expressions import OF_CLIENTS

JOB: Final = "dosirak"
"""The name of the scrape job, as in docker/compose.yaml."""
DEMO: Final = {"model": "demo", "version": "2"}
VERSION: Final = 'model="demo", version="2"'
NAMED: Final = "{{ $labels.model }}:{{ $labels.version }}"
OTHER: Final = 'model="demo", version="3"'
AVAILABILITY: Final = 0.995


@dataclass(frozen=True)
class Case:
    """Series as promtool writes them, one value a minute; the alert is asked for at `minute`. Where it fires it has the
    labels and says the sentence."""

    series: dict[str, str]
    minute: int
    labels: dict[str, str] = field(default_factory=dict)
    says: str | None = None
    """None: the summary as it is."""


@dataclass(frozen=True)
class Alert:
    """`wait`: how long the expression holds before the alert fires, in Prometheus' units."""

    name: str
    expression: str
    wait: str
    severity: Literal["page", "ticket"]
    summary: str
    fires: Case
    quiet: Case

    @property
    def runbook(self) -> str:
        """Where docs/operations.md says what to do."""
        return f"docs/operations.md#{self.name.lower()}"


def _p95(metric: str, window: str) -> str:
    return f"histogram_quantile(0.95, sum by (le, model, version) (rate(dosirak_{metric}_bucket[{window}])))"


def _requests(window: str, *matchers: str) -> str:
    """The rate of the HTTP requests of clients."""
    return f"sum(rate(dosirak_http_requests_total{{{', '.join((OF_CLIENTS, *matchers))}}}[{window}]))"


def _errors(window: str) -> str:
    failed = _requests(window, 'status=~"5.."')
    return f"{failed} / {_requests(window)}"


def _burn(factor: float, long: str, short: str) -> str:
    limit = f"{factor * (1 - AVAILABILITY):.4g}"
    return f"{_errors(long)} > {limit} and {_errors(short)} > {limit}"


def _failed(window: str) -> str:
    """The share of answers that ended with an error, by version."""
    failed = f'sum by (model, version) (rate(dosirak_request_success_total{{finish_reason="error"}}[{window}]))'
    return f"{failed} / sum by (model, version) (rate(dosirak_request_success_total[{window}]))"


def _worse(figure: str, factor: float, plus: float) -> str:
    """The candidate of a rollout against the model's other versions."""
    candidates = "on (model, version) (dosirak_canary_weight > 0)"
    return (
        f"max by (model) ({figure} and {candidates})"
        f" > {plus:g} + {factor:g} * max by (model) ({figure} unless {candidates})"
    )


def _growing(a_minute: float, minutes: int) -> str:
    return f"0+{a_minute:g}x{minutes}"


def _buckets(metric: str, labels: str, slow: float, fast: float, minutes: int) -> dict[str, str]:
    """A histogram of `fast` observations a minute up to 0.5 s, and `slow` ones up to 5 s."""
    name = f"dosirak_{metric}_bucket"
    return {
        f'{name}{{{labels}, le="0.5"}}': _growing(fast, minutes),
        f'{name}{{{labels}, le="2.0"}}': _growing(fast, minutes),
        f'{name}{{{labels}, le="5.0"}}': _growing(fast + slow, minutes),
        f'{name}{{{labels}, le="+Inf"}}': _growing(fast + slow, minutes),
    }


def _statuses(failed: float, good: float, minutes: int) -> dict[str, str]:
    """Requests of clients, beside Prometheus' own and those of a probe that finds no model: these two do not count."""
    a_minute = {
        'route="/generate", method="POST", status="500"': failed,
        'route="/generate", method="POST", status="200"': good,
        'route="/metrics", method="GET", status="200"': 900,
        'route="/readyz", method="GET", status="503"': 60,
    }
    return {f"dosirak_http_requests_total{{{labels}}}": _growing(count, minutes) for labels, count in a_minute.items()}


def _answers(labels: str, failed: float, good: float, minutes: int) -> dict[str, str]:
    name = "dosirak_request_success_total"
    return {
        f'{name}{{{labels}, finish_reason="error"}}': _growing(failed, minutes),
        f'{name}{{{labels}, finish_reason="stop"}}': _growing(good, minutes),
    }


def _gauge(name: str, labels: str, value: float, minutes: int) -> dict[str, str]:
    return {f"dosirak_{name}{{{labels}}}": f"{value:g}x{minutes}"}


CANARY: Final = _gauge("canary_weight", f'{OTHER}, alias="production"', 10, 60)

ALERTS: Final = (
    Alert(
        "DosirakDown",
        f'up{{job="{JOB}"}} == 0',
        "1m",
        "page",
        "Prometheus cannot scrape {{ $labels.instance }}.",
        Case(
            {f'up{{job="{JOB}", instance="a"}}': "0x5"}, 3, {"instance": "a", "job": JOB}, "Prometheus cannot scrape a."
        ),
        Case({f'up{{job="{JOB}", instance="a"}}': "1x5"}, 3),
    ),
    Alert(
        "DosirakNoReadyDeployment",
        'sum by (instance) (dosirak_deployments{state="ready"}) == 0 and sum by (instance) (dosirak_deployments) > 0',
        "1m",
        "page",
        "{{ $labels.instance }} has versions to serve, and none of them is ready.",
        Case(
            _gauge("deployments", 'instance="a", state="ready"', 0, 9)
            | _gauge("deployments", 'instance="a", state="failed"', 1, 9),
            5,
            {"instance": "a"},
            "a has versions to serve, and none of them is ready.",
        ),
        Case(
            _gauge("deployments", 'instance="a", state="ready"', 0, 9)
            | _gauge("deployments", 'instance="a", state="failed"', 0, 9),
            5,
        ),
    ),
    Alert(
        "DosirakErrorBudgetBurnsFast",
        _burn(14.4, "1h", "5m"),
        "2m",
        "page",
        "HTTP requests fail so often that a month's error budget is gone in two days.",
        Case(_statuses(10, 90, 90), 80),
        Case(_statuses(0.1, 99.9, 90), 80),
    ),
    Alert(
        "DosirakErrorBudgetBurnsSlowly",
        _burn(6, "6h", "30m"),
        "15m",
        "ticket",
        "HTTP requests fail so often that a month's error budget is gone in five days.",
        Case(_statuses(5, 95, 500), 480),
        Case(_statuses(1, 99, 500), 480),
    ),
    Alert(
        "DosirakFirstTokenSlow",
        f"{_p95('time_to_first_token_seconds', '5m')} > 2",
        "10m",
        "page",
        "p95 of the time to the first token of " + NAMED + " is {{ $value | humanizeDuration }}.",
        Case(
            _buckets("time_to_first_token_seconds", VERSION, 10, 10, 40),
            30,
            DEMO,
            "p95 of the time to the first token of demo:2 is 4.7s.",
        ),
        Case(_buckets("time_to_first_token_seconds", VERSION, 0.1, 20, 40), 30),
    ),
    Alert(
        "DosirakTokensSlow",
        f"{_p95('inter_token_latency_seconds', '5m')} > 0.2",
        "10m",
        "ticket",
        "p95 of the time between two tokens of " + NAMED + " is {{ $value | humanizeDuration }}.",
        Case(
            _buckets("inter_token_latency_seconds", VERSION, 100, 100, 40),
            30,
            DEMO,
            "p95 of the time between two tokens of demo:2 is 4.7s.",
        ),
        Case(
            {
                f'dosirak_inter_token_latency_seconds_bucket{{{VERSION}, le="{le}"}}': "0+100x40"
                for le in ("0.1", "+Inf")
            },
            30,
        ),
    ),
    Alert(
        "DosirakQueueLong",
        "sum by (model, version) (dosirak_num_requests_waiting) > 32",
        "5m",
        "ticket",
        "{{ $value }} sequences of " + NAMED + " wait for their first step.",
        Case(
            _gauge("num_requests_waiting", VERSION, 64, 20),
            10,
            DEMO,
            "64 sequences of demo:2 wait for their first step.",
        ),
        Case(_gauge("num_requests_waiting", VERSION, 8, 20), 10),
    ),
    Alert(
        "DosirakRequestsRefused",
        f"sum(rate(dosirak_admission_rejected_total[5m])) / {_requests('5m')} > 0.01",
        "5m",
        "ticket",
        "{{ $value | humanizePercentage }} of the requests are refused at admission.",
        Case(
            {'dosirak_admission_rejected_total{reason="queue_full"}': "0+10x30"} | _statuses(0, 100, 30),
            20,
            {},
            "10% of the requests are refused at admission.",
        ),
        Case({'dosirak_admission_rejected_total{reason="queue_full"}': "0+0.1x30"} | _statuses(0, 100, 30), 20),
    ),
    Alert(
        "DosirakKVCacheFull",
        "max by (model, version) (dosirak_kv_cache_usage_ratio) > 0.95",
        "10m",
        "ticket",
        "Sequences of " + NAMED + " hold {{ $value | humanizePercentage }} of the KV blocks.",
        Case(
            _gauge("kv_cache_usage_ratio", VERSION, 0.99, 30),
            20,
            DEMO,
            "Sequences of demo:2 hold 99% of the KV blocks.",
        ),
        Case(_gauge("kv_cache_usage_ratio", VERSION, 0.9, 30), 20),
    ),
    Alert(
        "DosirakPreemptions",
        "sum by (model, version) (rate(dosirak_num_preemptions_total[5m])) > 0.1",
        "10m",
        "ticket",
        NAMED + " computes sequences twice, {{ $value | humanize }} a second.",
        Case(
            {f"dosirak_num_preemptions_total{{{VERSION}}}": "0+60x40"},
            30,
            DEMO,
            "demo:2 computes sequences twice, 1 a second.",
        ),
        Case({f"dosirak_num_preemptions_total{{{VERSION}}}": "0+1x40"}, 30),
    ),
    Alert(
        "DosirakEngineRestarts",
        "sum by (model, version) (increase(dosirak_engine_restarts_total[15m])) > 2",
        "0m",
        "page",
        "The engine of " + NAMED + " died {{ $value | humanize }} times in 15 minutes.",
        Case(
            {f"dosirak_engine_restarts_total{{{VERSION}}}": "0+1x20"},
            15,
            DEMO,
            "The engine of demo:2 died 15 times in 15 minutes.",
        ),
        Case({f"dosirak_engine_restarts_total{{{VERSION}}}": "0x10 1x10"}, 15),
    ),
    Alert(
        "DosirakCandidateFails",
        _worse(_failed("10m"), 2, 0.01),
        "5m",
        "page",
        "The candidate of a rollout of {{ $labels.model }} fails more often than the other versions.",
        Case(
            CANARY | _answers(OTHER, 10, 90, 40) | _answers(VERSION, 1, 99, 40),
            30,
            {"model": "demo"},
            "The candidate of a rollout of demo fails more often than the other versions.",
        ),
        Case(CANARY | _answers(OTHER, 1, 99, 40) | _answers(VERSION, 1, 99, 40), 30),
    ),
    Alert(
        "DosirakCandidateSlow",
        _worse(_p95("time_to_first_token_seconds", "10m"), 1.5, 0.05),
        "5m",
        "ticket",
        "The first tokens of a rollout's candidate of {{ $labels.model }} come later than the other versions'.",
        Case(
            CANARY
            | _buckets("time_to_first_token_seconds", OTHER, 20, 20, 40)
            | _buckets("time_to_first_token_seconds", VERSION, 0, 20, 40),
            30,
            {"model": "demo"},
            "The first tokens of a rollout's candidate of demo come later than the other versions'.",
        ),
        Case(
            CANARY
            | _buckets("time_to_first_token_seconds", OTHER, 0, 20, 40)
            | _buckets("time_to_first_token_seconds", VERSION, 0, 20, 40),
            30,
        ),
    ),
    Alert(
        "DosirakChatsLoseMessages",
        "sum by (model, version) (rate(dosirak_context_truncated_requests_total[30m]))"
        " / sum by (model, version) (rate(dosirak_request_success_total[30m])) > 0.2",
        "30m",
        "ticket",
        "{{ $value | humanizePercentage }} of the answers of " + NAMED + " did not see the whole chat.",
        Case(
            {f"dosirak_context_truncated_requests_total{{{VERSION}}}": "0+50x90"} | _answers(VERSION, 0, 100, 90),
            80,
            DEMO,
            "50% of the answers of demo:2 did not see the whole chat.",
        ),
        Case({f"dosirak_context_truncated_requests_total{{{VERSION}}}": "0+5x90"} | _answers(VERSION, 0, 100, 90), 80),
    ),
    Alert(
        "DosirakSlowPath",
        "max by (model, version) (dosirak_engine_slowdown_ratio) > 1.5",
        "5m",
        "ticket",
        NAMED + " is served by a slow path: a decode step takes up to {{ $value | humanize }} times the fastest way's.",
        Case(
            _gauge("engine_slowdown_ratio", VERSION, 4, 30),
            20,
            DEMO,
            "demo:2 is served by a slow path: a decode step takes up to 4 times the fastest way's.",
        ),
        Case(_gauge("engine_slowdown_ratio", VERSION, 1, 30), 20),
    ),
    Alert(
        "DosirakGateBroken",
        "max by (model, version, alias) (dosirak_gate_broken_limits) > 0",
        "5m",
        "ticket",
        "{{ $labels.model }}@{{ $labels.alias }} points to version {{ $labels.version }}, which breaks {{ $value }} "
        "limits of its gate.",
        Case(
            _gauge("gate_broken_limits", f'{VERSION}, alias="production"', 3, 30),
            20,
            {**DEMO, "alias": "production"},
            "demo@production points to version 2, which breaks 3 limits of its gate.",
        ),
        Case(_gauge("gate_broken_limits", f'{VERSION}, alias="production"', 0, 30), 20),
    ),
    Alert(
        "DosirakDiskLow",
        "min by (instance) (dosirak_data_dir_free_bytes) < 2e9",
        "10m",
        "page",
        "The data directory of {{ $labels.instance }} has {{ $value | humanize1024 }}B left.",
        Case(
            _gauge("data_dir_free_bytes", 'instance="a"', 5e8, 30),
            20,
            {"instance": "a"},
            "The data directory of a has 476.8MiB left.",
        ),
        Case(_gauge("data_dir_free_bytes", 'instance="a"', 5e10, 30), 20),
    ),
    Alert(
        "DosirakBackgroundTaskFails",
        "max by (instance, task) (dosirak_background_task_failing) > 0",
        "10m",
        "ticket",
        "The background task {{ $labels.task }} of {{ $labels.instance }} fails.",
        Case(
            _gauge("background_task_failing", 'instance="a", task="retention"', 1, 30),
            20,
            {"instance": "a", "task": "retention"},
            "The background task retention of a fails.",
        ),
        Case(_gauge("background_task_failing", 'instance="a", task="retention"', 0, 30), 20),
    ),
    Alert(
        "DosirakSpansLost",
        "sum by (instance) (rate(dosirak_trace_spans_dropped_total[10m])) > 0",
        "15m",
        "ticket",
        "{{ $labels.instance }} loses {{ $value | humanize }} spans a second: its collector does not take them.",
        Case(
            {'dosirak_trace_spans_dropped_total{instance="a"}': "0+60x60"},
            40,
            {"instance": "a"},
            "a loses 1 spans a second: its collector does not take them.",
        ),
        Case({'dosirak_trace_spans_dropped_total{instance="a"}': "0x60"}, 40),
    ),
)
