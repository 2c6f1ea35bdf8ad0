"""`python -m docker.monitoring` writes the dashboard, the alerts and their rule tests below `docker`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import yaml

from docker.monitoring.alerts import ALERTS
from docker.monitoring.grafana import dashboard
from docker.monitoring.panels import ROWS
from docker.monitoring.rules import rule_file, test_file

DOCKER: Final = Path(__file__).parent.parent
MADE: Final = "# Made by `make dashboards` from docker/monitoring: edit that.\n"


def files() -> dict[Path, str]:
    """Returns every file's text by its path below `docker`."""
    return {
        Path("dashboards/dosirak.json"): json.dumps(dashboard(ROWS), indent=2, ensure_ascii=False) + "\n",
        Path("alerts/dosirak.yaml"): MADE + yaml.safe_dump(rule_file(ALERTS), sort_keys=False, width=120),
        Path("alerts/tests/dosirak.yaml"): MADE
        + yaml.safe_dump(test_file(ALERTS, "../dosirak.yaml"), sort_keys=False, width=120),
    }


def write(folder: Path = DOCKER) -> None:
    for path, text in files().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
        print(f"wrote {folder.name}/{path}")


if __name__ == "__main__":
    write()
