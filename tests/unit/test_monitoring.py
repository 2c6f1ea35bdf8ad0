"""Dashboards, alerts and the buckets that they read: what make dashboards writes, metrics that exist, objectives
that are edges."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest

from docker.monitoring.__main__ import DOCKER, files
from docker.monitoring.alerts import ALERTS
from docker.monitoring.expressions import OF_CLIENTS, POLLED
from docker.monitoring.panels import ROWS
from service.api.edge import layer
from service.observability.metrics import histograms
from service.observability.metrics.histograms import SwiftHistogram

DOCS = DOCKER.parent / "docs"
NAME = re.compile(r"\bdosirak_\w+")
SUFFIX = re.compile(r"_(bucket|sum|count)$")
KNOWN = frozenset(re.findall(r"^\| `(dosirak_\w+)`", (DOCS / "metrics.md").read_text(encoding="utf-8"), re.M))
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], cwd=DOCKER / "alerts", capture_output=True, text=True, check=False)


def metrics(expression: str) -> set[str]:
    return {SUFFIX.sub("", name) for name in NAME.findall(expression)}


@pytest.mark.parametrize("path", files(), ids=str)
def test_the_files_are_what_make_dashboards_writes(path: Path) -> None:
    assert (DOCKER / path).read_text(encoding="utf-8") == files()[path]


def test_the_rows() -> None:
    assert [row.title for row in ROWS] == ["SLO", "Latency", "Batching", "Cache and context", "Versions", "Hardware"]
    titles = [panel.title for row in ROWS for panel in row.panels]
    assert len(titles) == len(set(titles))


def test_panels_and_alerts_ask_for_metrics_that_exist() -> None:
    asked = [line.expression for row in ROWS for panel in row.panels for line in panel.lines]
    for expression in (*asked, *(alert.expression for alert in ALERTS)):
        assert metrics(expression) <= KNOWN, metrics(expression) - KNOWN


def test_a_share_of_the_requests_is_of_those_of_clients() -> None:
    """What Prometheus and probes ask would hide failures; what else such routes take is a client's."""
    assert {"/", "/v1/deployments"} == layer.POLLED - set(POLLED) and set(POLLED) <= layer.POLLED
    (errors,) = (panel for row in ROWS for panel in row.panels if panel.title == "Server errors")
    shares = [alert.expression for alert in ALERTS if "http_requests_total" in alert.expression]
    for expression in (*shares, *(line.expression for line in errors.lines)):
        assert expression.count("http_requests_total{") == expression.count(OF_CLIENTS) > 0, expression
        assert "http_requests_total[" not in expression


def test_every_alert_has_a_runbook() -> None:
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    for alert in ALERTS:
        assert f"\n### {alert.name}\n" in text and alert.runbook == f"docs/operations.md#{alert.name.lower()}"


@needs_promtool
def test_promtool_finds_no_fault() -> None:
    done = promtool("check", "rules", "dosirak.yaml")
    assert done.returncode == 0 and f"{len(ALERTS)} rules found" in done.stdout, done.stdout + done.stderr


@needs_promtool
def test_every_alert_fires_and_is_quiet() -> None:
    done = promtool("test", "rules", "tests/dosirak.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (DOCKER / "alerts/tests/dosirak.yaml").read_text().count("alertname: ") == 2 * len(ALERTS)


def test_objectives_are_edges_of_every_latency() -> None:
    assert histograms.OBJECTIVES == (0.2, 0.5, 1.0, 2.0, 5.0)
    for name in ("FELT", "GAP", "ANSWER", "PART", "STEP", "STORE"):
        bounds = getattr(histograms, name)
        assert set(histograms.OBJECTIVES) <= set(bounds)
        assert list(bounds) == sorted(set(bounds))
    for bounds in (histograms.GEN_AI_DURATION, histograms.GEN_AI_FIRST, histograms.GEN_AI_PER_TOKEN):
        assert set(histograms.OBJECTIVES) <= set(bounds)


def test_a_quantile_of_what_users_feel_is_within_five_percent() -> None:
    assert all(high / low < 1.11 for low, high in pairwise(histograms.FELT))
    assert all(high / low < 1.11 for low, high in pairwise(histograms.GAP) if high <= 1.0)
    assert all(high / low <= 2 for low, high in pairwise(histograms.PART)), "four edges a decade"


def test_the_swift_histogram_says_what_the_librarys_says() -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    library, swift, rng = CollectorRegistry(), CollectorRegistry(), random.Random(3)
    names, edges = ("model", "version"), histograms.GAP
    theirs = Histogram("gap_seconds", "A gap.", names, buckets=edges, registry=library)
    ours = SwiftHistogram("gap_seconds", "A gap.", names, edges, swift)
    for labels in (("demo", "1"), ("demo", "2")):
        for value in (*edges, 0.0, 99.0, *(rng.lognormvariate(-4, 2) for _ in range(500))):
            theirs.labels(*labels).observe(value)
            ours.labels(*labels).observe(value)
    theirs.labels("demo", "3")
    ours.labels("demo", "3")
    assert generate_latest(swift) == generate_latest(library)
