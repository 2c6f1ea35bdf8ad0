"""The dashboard as Grafana's JSON. It knows no metric."""

from __future__ import annotations

from typing import Any, Final

from docker.monitoring.panels import Panel, Row

SCHEMA: Final = 39  # Grafana 11
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS: Final = 24
HEIGHT: Final = 8


def dashboard(rows: tuple[Row, ...]) -> dict[str, Any]:
    """Returns Grafana's dashboard model: every row with its panels below it, 24 columns wide."""
    return {
        "uid": "dosirak",
        "title": "Dosirak",
        "tags": ["dosirak"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _placed(rows),
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    asked = (
        ("instance", "Instance", "label_values(dosirak_build_info, instance)"),
        ("model", "Model", "label_values(dosirak_num_requests_waiting, model)"),
        ("version", "Version", 'label_values(dosirak_num_requests_waiting{model=~"$model"}, version)'),
    )
    return [source, *(_variable(*each) for each in asked)]


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    down = 0
    for row in rows:
        placed.append(
            {**_place(len(placed), 0, down, COLUMNS, 1), "type": "row", "title": row.title, "collapsed": False}
        )
        down, across = down + 1, 0
        for panel in row.panels:
            if across + panel.width > COLUMNS:
                down, across = down + HEIGHT, 0
            placed.append(_place(len(placed), across, down, panel.width, HEIGHT) | _panel(panel))
            across += panel.width
        down += HEIGHT
    return placed


def _place(number: int, x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"id": number + 1, "gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _panel(panel: Panel) -> dict[str, Any]:
    table = panel.kind == "table"
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {} if table else {"tooltip": {"mode": "multi"}, "legend": {"showLegend": True}},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": line.expression,
                "legendFormat": line.legend,
                **({"format": "table", "instant": True} if table else {"range": True}),
            }
            for number, line in enumerate(panel.lines)
        ],
    }
