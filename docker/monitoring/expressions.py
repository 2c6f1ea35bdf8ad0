"""PromQL in the forms that panels and alerts need. It knows no panel.

A panel about what has not happened shows 0: an expression is filled with zeros for each deployed version, and with one
zero where there is no version. A ratio of nothing and a quantile of nothing are NaN, and `>= 0` takes NaN away.
"""

from __future__ import annotations

from typing import Final

BY_VERSION: Final = "model, version"
CHOSEN: Final = 'model=~"$model", version=~"$version", instance=~"$instance"'
HERE: Final = 'instance=~"$instance"'
WINDOW: Final = "$__rate_interval"
POLLED: Final = (
    "/livez",
    "/readyz",
    "/healthz",
    "/health",
    "/metrics",
    "/v1/instances",
    "/v2/health/live",
    "/v2/health/ready",
)
"""Routes that probes, Prometheus and the UI ask all the time, and that take nothing else."""
OF_CLIENTS: Final = f'route!~"{"|".join(POLLED)}"'
"""The matcher of the HTTP requests of clients: in a share of failures others would hide the failures, or make some."""


def chosen(metric: str, *matchers: str, of: str = CHOSEN) -> str:
    """Returns the selector of a metric with the dashboard's variables. Example: `dosirak_x{model=~"$model", …}`."""
    return f"dosirak_{metric}{{{', '.join((of, *matchers))}}}"


def rate(metric: str, *matchers: str, by: str = BY_VERSION, of: str = CHOSEN, window: str = WINDOW) -> str:
    """Returns the sum of a counter's rates a second."""
    return f"sum by ({by}) (rate({chosen(metric, *matchers, of=of)}[{window}]))"


def quantile(share: float, metric: str, by: str = BY_VERSION, of: str = CHOSEN, window: str = WINDOW) -> str:
    """Returns a quantile of a histogram in its own unit."""
    return f"histogram_quantile({share:g}, {rate(metric + '_bucket', by=f'le, {by}', of=of, window=window)})"


def mean(metric: str) -> str:
    """Returns the mean of a histogram's observations."""
    return f"{rate(metric + '_sum')} / {rate(metric + '_count')}"


def filled(expression: str) -> str:
    """Returns the expression with 0 for each deployed version that has no figure."""
    zeros = f"0 * sum by ({BY_VERSION}) ({chosen('num_requests_waiting')})"
    return f"({expression} >= 0) or {zeros} or on() vector(0)"


def filled_once(expression: str) -> str:
    """Returns the expression, or one 0 where it has no figure at all."""
    return f"({expression} >= 0) or on() vector(0)"
