"""The alerts as Prometheus' rule file, and their cases as a test file of promtool. It knows no metric."""

from __future__ import annotations

from typing import Any, Final

from docker.monitoring.alerts import Alert, Case

GROUP: Final = "dosirak"


def rule_file(alerts: tuple[Alert, ...]) -> dict[str, Any]:
    """Returns one group of rules, asked every 30 s."""
    return {"groups": [{"name": GROUP, "interval": "30s", "rules": [_rule(alert) for alert in alerts]}]}


def test_file(alerts: tuple[Alert, ...], rules: str) -> dict[str, Any]:
    """Returns two tests an alert; `rules` is the rule file's path beside the test file."""
    return {
        "rule_files": [rules],
        "evaluation_interval": "1m",
        "tests": [
            each for alert in alerts for each in (_test(alert, alert.fires, True), _test(alert, alert.quiet, False))
        ],
    }


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "runbook_url": alert.runbook},
    }


def _test(alert: Alert, case: Case, fires: bool) -> dict[str, Any]:
    labels = {**case.labels, "severity": alert.severity}
    annotations = {"summary": case.says or alert.summary, "runbook_url": alert.runbook}
    firing = [{"exp_labels": labels, "exp_annotations": annotations}] if fires else []
    return {
        "name": f"{alert.name} {'fires' if fires else 'is quiet'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [{"alertname": alert.name, "eval_time": f"{case.minute}m", "exp_alerts": firing}],
    }
