"""The dashboard's panels by row. Each has a question for its title's help, and the metric names of docs/metrics.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from docker.monitoring.expressions import (
    BY_VERSION,
    HERE,
    OF_CLIENTS,
    chosen,
    filled,
    filled_once,
    mean,
    quantile,
    rate,
)

VERSION: Final = "{{model}}:{{version}}"
SLOW_FIRST_TOKEN: Final = "2.0"  # seconds; an edge of the histogram


@dataclass(frozen=True)
class Line:
    """One query of a panel; `legend` in Grafana's template language."""

    expression: str
    legend: str = VERSION


@dataclass(frozen=True)
class Panel:
    """`unit` is one of Grafana's. Example: percentunit. `kind`: timeseries, stat or table."""

    title: str
    help: str
    lines: tuple[Line, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def _quantiles(metric: str) -> tuple[Line, ...]:
    return tuple(Line(filled(quantile(share, metric)), f"{VERSION} p{100 * share:g}") for share in (0.5, 0.95, 0.99))


def _phases(metric: str, counter: bool) -> tuple[Line, ...]:
    by = f"{BY_VERSION}, phase"
    expression = rate(metric, by=by) if counter else f"max by ({by}) ({chosen(metric)})"
    return (Line(filled_once(expression), f"{VERSION} {{{{phase}}}}"),)


def _ended_badly() -> str:
    failed = rate("request_success_total", 'finish_reason="error"')
    return f"{failed} / {rate('request_success_total')}"


def _slow_first_tokens() -> str:
    fast = rate("time_to_first_token_seconds_bucket", f'le="{SLOW_FIRST_TOKEN}"')
    return f"1 - {fast} / {rate('time_to_first_token_seconds_count')}"


def _accepted() -> str:
    accepted = rate("spec_decode_num_accepted_tokens_total")
    return f"{accepted} / {rate('spec_decode_num_draft_tokens_total')}"


def _server_errors() -> str:
    failed = rate("http_requests_total", OF_CLIENTS, 'status=~"5.."', by="instance", of=HERE)
    return f"{failed} / {rate('http_requests_total', OF_CLIENTS, by='instance', of=HERE)}"


SLO: Final = Row(
    "SLO",
    (
        Panel(
            "Deployments",
            "Versions by state. No version in state ready: nobody is answered.",
            (Line(filled_once(f"sum by (state) ({chosen('deployments', of=HERE)})"), "{{state}}"),),
            kind="stat",
        ),
        Panel(
            "Answers that failed",
            "Share of answers with finish reason error.",
            (Line(filled(_ended_badly())),),
            unit="percentunit",
        ),
        Panel(
            "Server errors",
            "Share of clients' HTTP requests with a status of 500 and above, by instance, without probes and scrapes.",
            (Line(filled_once(_server_errors()), "{{instance}}"),),
            unit="percentunit",
        ),
        Panel(
            "First tokens later than 2 s",
            "Share of answers whose first token took longer.",
            (Line(filled(_slow_first_tokens())),),
            unit="percentunit",
        ),
        Panel(
            "Requests refused at admission",
            "Before an engine had them, by reason.",
            (
                Line(
                    filled_once(rate("admission_rejected_total", by="reason", of=HERE)),
                    "{{reason}}",
                ),
            ),
            unit="reqps",
        ),
        Panel(
            "Requests by status",
            "All routes, by HTTP status.",
            (Line(filled_once(rate("http_requests_total", by="status", of=HERE)), "{{status}}"),),
            unit="reqps",
        ),
    ),
)
LATENCY: Final = Row(
    "Latency",
    (
        Panel(
            "Time to first token",
            "From a request's arrival to its first token being handed out.",
            _quantiles("time_to_first_token_seconds"),
            unit="s",
        ),
        Panel(
            "Between tokens",
            "Between two tokens of one sequence, as they are handed out.",
            _quantiles("inter_token_latency_seconds"),
            unit="s",
        ),
        Panel(
            "Whole answers",
            "From a request's arrival to its last token.",
            _quantiles("e2e_request_latency_seconds"),
            unit="s",
        ),
        Panel(
            "Where the time goes, p95",
            "Waiting for the first step, prefill, decode.",
            tuple(
                Line(filled(quantile(0.95, f"request_{part}_time_seconds")), f"{VERSION} {part}")
                for part in ("queue", "prefill", "decode")
            ),
            unit="s",
        ),
        Panel(
            "Session store, p95",
            "Calls of the database, by kind.",
            (Line(filled_once(quantile(0.95, "session_store_seconds", by="op", of=HERE)), "{{op}}"),),
            unit="s",
        ),
        Panel(
            "Answers aborted",
            "By cause. Example: the client hung up.",
            (
                Line(
                    filled_once(rate("requests_aborted_total", by="cause")),
                    "{{cause}}",
                ),
            ),
            unit="reqps",
        ),
    ),
)
BATCHING: Final = Row(
    "Batching",
    (
        Panel(
            "Running and waiting",
            "Sequences in the running set, and those before their first step.",
            tuple(
                Line(filled_once(f"sum by ({BY_VERSION}) ({chosen(f'num_requests_{state}')})"), f"{VERSION} {state}")
                for state in ("running", "waiting")
            ),
        ),
        Panel(
            "Tokens a second",
            "Sampled tokens, and prompt tokens with cached ones.",
            tuple(Line(filled(rate(f"{kind}_tokens_total")), f"{VERSION} {kind}") for kind in ("generation", "prompt")),
        ),
        Panel(
            "Sequences in a step",
            "Mean batch size.",
            (Line(filled(mean("iteration_sequences"))),),
        ),
        Panel(
            "Duration of a step",
            "Engine steps, p50 and p95.",
            tuple(
                Line(filled(quantile(share, "step_duration_seconds")), f"{VERSION} p{100 * share:g}")
                for share in (0.5, 0.95)
            ),
            unit="s",
        ),
        Panel(
            "Backlog",
            "Forecast time until every known prompt has its first token.",
            (Line(filled_once(f"max by ({BY_VERSION}) ({chosen('backlog_seconds')})")),),
            unit="s",
        ),
        Panel(
            "Error of the cost model",
            "Mean relative error of the predicted step times. Above 0.5 budgets and forecasts are rough.",
            (Line(filled_once(f"max by ({BY_VERSION}) ({chosen('step_cost_error_ratio')})")),),
            unit="percentunit",
        ),
        Panel(
            "Draft tokens that came true",
            "Accepted share of the verified draft tokens.",
            (Line(filled(_accepted())),),
            unit="percentunit",
        ),
    ),
)
CACHE: Final = Row(
    "Cache and context",
    (
        Panel(
            "KV blocks in use",
            "Share of the KV cache that sequences hold.",
            (Line(filled_once(f"max by ({BY_VERSION}) ({chosen('kv_cache_usage_ratio')})")),),
            unit="percentunit",
        ),
        Panel(
            "Prompt tokens from the prefix cache",
            "Share of the tokens looked up.",
            (Line(filled(f"{rate('prefix_cache_hits_total')} / {rate('prefix_cache_queries_total')}")),),
            unit="percentunit",
        ),
        Panel(
            "Preemptions",
            "Sequences put back to waiting because KV blocks ran out.",
            (Line(filled(rate("num_preemptions_total"))),),
            unit="reqps",
        ),
        Panel(
            "Use of the context window",
            "Prompt tokens of an answer divided by the window, p50, p95, p99.",
            _quantiles("context_window_used_ratio"),
            unit="percentunit",
        ),
        Panel(
            "Chats that lost messages",
            "Share of answers to chats of which some messages were left out.",
            (Line(filled(f"{rate('context_truncated_requests_total')} / {rate('request_success_total')}")),),
            unit="percentunit",
        ),
        Panel(
            "Summaries",
            "By outcome.",
            (Line(filled_once(rate("summaries_total", by="outcome", of=HERE)), "{{outcome}}"),),
            unit="reqps",
        ),
    ),
)
VERSIONS: Final = Row(
    "Versions",
    (
        Panel(
            "Answers by version",
            "Which version speaks.",
            (Line(filled(rate("request_success_total"))),),
            unit="reqps",
        ),
        Panel(
            "Weight of candidates",
            "Percent of conversations that a rollout gives its candidate; 0 without a rollout.",
            (
                Line(
                    filled_once(f"max by ({BY_VERSION}, alias) ({chosen('canary_weight')})"),
                    f"{VERSION} @{{{{alias}}}}",
                ),
            ),
        ),
        Panel(
            "Moves of aliases",
            "Promotions, rollbacks and removals in the shown time, by kind.",
            (
                Line(
                    filled_once(f"sum by (kind) (increase({chosen('promotions_total', of=HERE)}[$__range]))"),
                    "{{kind}}",
                ),
            ),
            kind="stat",
        ),
        Panel(
            "Aliases",
            "The version that each alias points to.",
            (Line(filled_once(f"max by (alias, {BY_VERSION}) ({chosen('alias_info')})"), "{{alias}}"),),
            kind="table",
            width=12,
        ),
        Panel(
            "Deployed versions",
            "Digest, precision and window of each.",
            (
                Line(
                    filled_once(
                        f"max by ({BY_VERSION}, digest, quantization, dtype, context_length) ({chosen('model_info')})"
                    )
                ),
            ),
            kind="table",
            width=12,
        ),
    ),
)
HARDWARE: Final = Row(
    "Hardware",
    (
        Panel(
            "Share of the peak operations (MFU)",
            "Useful operations a second over the last 256 steps, divided by the measured peak, by phase.",
            _phases("mfu_ratio", counter=False),
            unit="percentunit",
        ),
        Panel(
            "Share of the peak memory bandwidth",
            "Bytes a second over the last 256 steps, divided by the measured peak, by phase.",
            _phases("bandwidth_ratio", counter=False),
            unit="percentunit",
        ),
        Panel(
            "Useful operations a second",
            "Forward passes of useful tokens only, by phase.",
            _phases("model_flops_total", counter=True),
            unit="flops",
        ),
        Panel(
            "Time of steps",
            "Seconds of engine steps in a second, by phase. Near 1 the engine is never idle.",
            _phases("step_seconds_total", counter=True),
            unit="percentunit",
        ),
        Panel(
            "Free disk",
            "Of the data directory.",
            (Line(filled_once(f"min by (instance) ({chosen('data_dir_free_bytes', of=HERE)})"), "{{instance}}"),),
            unit="bytes",
        ),
        Panel(
            "Restarts of engines, failing tasks",
            "Engine processes that died in the shown time, and background tasks whose last pass failed.",
            (
                Line(
                    filled_once(f"sum by ({BY_VERSION}) (increase({chosen('engine_restarts_total')}[$__range]))"),
                    f"{VERSION} restarts",
                ),
                Line(filled_once(f"sum by (task) ({chosen('background_task_failing', of=HERE)})"), "{{task}}"),
            ),
        ),
    ),
)
ROWS: Final = (SLO, LATENCY, BATCHING, CACHE, VERSIONS, HARDWARE)
