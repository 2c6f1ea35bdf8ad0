"""The dashboard and the alerts in `docker`: written by `make dashboards`, of metrics that exist, each alert tested."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from docker.monitoring.__main__ import DOCKER, files
from docker.monitoring.alerts import ALERTS
from docker.monitoring.panels import ROWS

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
