"""A stock Prometheus scrapes a live server: every panel of the dashboard shows something, every alert's metrics are
there, and no rule fails."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from docker.monitoring.__main__ import DOCKER
from tests.e2e.server import Server, free_port

PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus here: apt-get install prometheus")
VARIABLES = {"$__rate_interval": "30s", "$__range": "1m", "$instance": ".*", "$model": ".*", "$version": ".*"}
NAME = re.compile(r"\bdosirak_\w+|\bup\b")
CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 2s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: dosirak
    static_configs: [{{targets: ["{target}"]}}]
"""


def asked(client: httpx.Client, path: str, **parameters: str) -> Any:
    answer = client.get(f"/api/v1/{path}", params=parameters).raise_for_status().json()
    assert answer["status"] == "success", answer
    return answer["data"]


def scrapes(client: httpx.Client) -> int:
    """How often the server was scraped so far."""
    found = asked(client, "query", query='count_over_time(up{job="dosirak"}[5m])')["result"]
    return int(found[0]["value"][1]) if found else 0


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[httpx.Client]:
    configuration, port = folder / "prometheus.yml", free_port()
    configuration.write_text(CONFIGURATION.format(rules=DOCKER / "alerts" / "dosirak.yaml", target=target))
    command = [f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}"]
    listen = f"--web.listen-address=127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([str(PROMETHEUS), *command, listen], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            _until_up(client, folder / "log")
            yield client
    finally:
        process.terminate()
        process.wait(30)


def _until_up(client: httpx.Client, log: Path) -> None:
    for _ in range(300):
        try:
            if scrapes(client) > 0:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError(log.read_text()[-2000:])


@pytest.fixture(scope="module")
def scraped(served: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """After a chat, and enough scrapes for a rate."""
    with prometheus(tmp_path_factory.mktemp("prometheus"), urlsplit(served.url).netloc) as client:
        before = scrapes(client)
        with served.client() as user:
            user.post(
                "/generate", json={"inputs": "안녕하세요", "parameters": {"max_new_tokens": 8}}
            ).raise_for_status()
        for _ in range(300):
            if scrapes(client) > before + 4:
                break
            time.sleep(0.2)
        yield client


def expression(line: dict[str, Any]) -> str:
    text = str(line["expr"])
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    return text


def test_no_panel_is_empty(scraped: httpx.Client) -> None:
    panels = json.loads((DOCKER / "dashboards" / "dosirak.json").read_text())["panels"]
    shown = [panel for panel in panels if panel["type"] != "row"]
    assert len(shown) > 30
    for panel in shown:
        for line in panel["targets"]:
            found = asked(scraped, "query", query=expression(line))["result"]
            assert found and all(each["value"][1] != "NaN" for each in found), (panel["title"], expression(line))


def test_panels_show_what_happened(scraped: httpx.Client) -> None:
    """One answer was given: its panels are not the zeros that fill the others."""
    panels = json.loads((DOCKER / "dashboards" / "dosirak.json").read_text())["panels"]
    for title in ("Time to first token", "Tokens a second", "Duration of a step", "Answers by version", "Aliases"):
        lines = next(panel["targets"] for panel in panels if panel["title"] == title)
        for line in lines:
            values = [float(each["value"][1]) for each in asked(scraped, "query", query=expression(line))["result"]]
            assert max(values) > 0, (title, line["expr"])


def test_every_rule_is_evaluated_and_asks_for_metrics_that_are_there(scraped: httpx.Client) -> None:
    known = set(asked(scraped, "label/__name__/values"))
    rules = [rule for group in asked(scraped, "rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 10
    for rule in rules:
        assert rule["health"] in ("ok", "unknown") and not rule.get("lastError"), rule
        assert set(NAME.findall(rule["query"])) <= known, (rule["name"], set(NAME.findall(rule["query"])) - known)
    assert [rule["name"] for rule in rules if rule["state"] == "firing" and rule["labels"]["severity"] == "page"] == []
