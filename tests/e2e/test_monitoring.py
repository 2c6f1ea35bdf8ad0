"""A live server measures right: flops against a count by hand, and every panel of the dashboard behind a stock
Prometheus."""

from __future__ import annotations

import json
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
from prometheus_client.parser import text_string_to_metric_families

from docker.monitoring.__main__ import DOCKER
from loadtest.bench.running import free_port
from models.weights.shapes import Shape
from tests.e2e.server import Server

LABELS = {"model": "demo", "version": "2"}
ACCEPTED = ("dosirak_spec_decode_num_accepted_tokens_total", "")
STORY = "도시락 두 개 주세요. 김치볶음밥 하나, 불고기 하나 주세요. " * 4
PROMETHEUS = shutil.which("prometheus")
VARIABLES = {"$__rate_interval": "30s", "$__range": "1m", "$instance": ".*", "$model": ".*", "$version": ".*"}
CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 2s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: dosirak
    static_configs: [{{targets: ["{target}"]}}]
"""


def values_of(client: httpx.Client) -> dict[tuple[str, str], float]:
    """Values of demo:2 by metric and phase."""
    text = client.get("/metrics").text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    mine = [each for each in samples if LABELS.items() <= each.labels.items()]
    return {(each.name, each.labels.get("phase", "")): each.value for each in mine}


def generate(client: httpx.Client, text: str, tokens: int) -> dict[str, int]:
    body: dict[str, Any] = {
        "model": "demo:2",
        "inputs": text,
        "parameters": {"max_new_tokens": tokens, "ignore_eos": True},
    }
    response = client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    usage: dict[str, int] = response.json()["usage"]
    return usage


def flops(shape: Shape, usage: dict[str, int]) -> float:
    """PaLM, appendix B, forward only: from the first token that is not cached to the last but one of the answer."""
    last = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    positions = range(usage["cached_tokens"], last)
    per_pair = 4 * shape.layers * shape.heads * shape.head_dim
    tokens = 2 * shape.layers * shape.layer_weights * len(positions)
    pairs = per_pair * sum(position + 1 for position in positions)
    return tokens + pairs + 2 * shape.head_weights * usage["completion_tokens"]


@pytest.mark.nightly
def test_flops_are_those_of_config_and_usage(served: Server, data_dir: Path) -> None:
    [config] = data_dir.glob("models/demo/2/config.json")
    shape = Shape.of_config("demo", json.loads(config.read_bytes()))
    with served.client() as client:
        generate(client, STORY, 4)
        before = values_of(client)
        usages = [generate(client, STORY + f"{n}번째: " * (n % 3), 48 + n) for n in range(12)]
        deadline = time.monotonic() + 300
        while True:  # whether drafts pay is measured while they run, so a busy machine may draft none for a while
            after = values_of(client)
            if after[ACCEPTED] > before[ACCEPTED] or time.monotonic() > deadline:
                break
            usages.append(generate(client, STORY, 96))
    gained = {key: value - before[key] for key, value in after.items()}
    counted = sum(gained["dosirak_model_flops_total", phase] for phase in ("prefill", "decode"))
    assert counted == pytest.approx(sum(flops(shape, usage) for usage in usages), rel=0.05)
    assert sum(usage["cached_tokens"] for usage in usages) > 500, "some prompts were cached"
    drafted, accepted = (gained[f"dosirak_spec_decode_num_{kind}_tokens_total", ""] for kind in ("draft", "accepted"))
    assert drafted >= accepted, "how many did not depends on what a step costs just now"
    if not accepted:
        pytest.skip("this machine is so busy that drafts did not pay: all else holds")


needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus here: apt-get install prometheus")


def query(client: httpx.Client, path: str, **parameters: str) -> Any:
    answer = client.get(f"/api/v1/{path}", params=parameters).raise_for_status().json()
    assert answer["status"] == "success", answer
    return answer["data"]


def scrapes(client: httpx.Client) -> int:
    """How often the server was scraped so far."""
    found = query(client, "query", query='count_over_time(up{job="dosirak"}[5m])')["result"]
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
            generate(user, "안녕하세요", 8)
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


@needs_prometheus
def test_no_panel_is_empty(scraped: httpx.Client) -> None:
    panels = json.loads((DOCKER / "dashboards" / "dosirak.json").read_text())["panels"]
    shown = [panel for panel in panels if panel["type"] != "row"]
    assert len(shown) > 30
    for panel in shown:
        for line in panel["targets"]:
            found = query(scraped, "query", query=expression(line))["result"]
            assert found and all(each["value"][1] != "NaN" for each in found), (panel["title"], expression(line))


@needs_prometheus
def test_panels_show_what_happened(scraped: httpx.Client) -> None:
    """One answer was given: its panels are not the zeros that fill the others."""
    panels = json.loads((DOCKER / "dashboards" / "dosirak.json").read_text())["panels"]
    for title in ("Time to first token", "Tokens a second", "Duration of a step", "Answers by version", "Aliases"):
        lines = next(panel["targets"] for panel in panels if panel["title"] == title)
        for line in lines:
            values = [float(each["value"][1]) for each in query(scraped, "query", query=expression(line))["result"]]
            assert max(values) > 0, (title, line["expr"])
