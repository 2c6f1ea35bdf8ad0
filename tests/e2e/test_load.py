"""The load runner as a process: against a server whose times are known, on a real server with aliases that a
scenario moves, through proxies that spoil it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.fake_server import FakeServer
from tests.e2e.server import ROOT, Server, python
from tests.proxies import Proxy, listening
from tests.waiting import block_until

SCENARIO = """
name = "short"
[load]
kind = "open"
rate = 50
warmup_seconds = 0.5
seconds = 4
answer_seconds = 10
min_samples = 200
[[requests]]
route = "/generate_stream"
weight = 3
max_new_tokens = 6
[[requests]]
route = "/v1/chat/completions"
max_new_tokens = 6
[limits]
failed_ratio = 0
ttft_p50_ms = 120
tokens_per_second = 100
[worse_by]
ttft_p50_ms = 5
"""
SMOKE = ROOT / "loadtest" / "scenarios" / "smoke.toml"
MOVES = """
name = "moves"
[load]
kind = "closed"
users = 4
think_seconds = [0.05, 0.2]
warmup_seconds = 1
seconds = 19
min_samples = 20
[[requests]]
route = "/generate_stream"
max_new_tokens = 8
[[requests]]
route = "/v1/completions"
prompts = 3
max_new_tokens = 8
[[actions]]
kind = "rollout"
at_seconds = 1
model = "demo"
candidate = "1"
weight = 50
[[actions]]
kind = "promote_rollout"
at_seconds = 12
model = "demo"
[limits]
failed_ratio = 0
versions = 2
"""


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer(first_seconds=0.02, gap_seconds=0.002)


@pytest.fixture
def url(fake: FakeServer) -> Iterator[str]:
    with listening(fake.start) as address:
        yield address


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "short.toml"
    path.write_text(SCENARIO)
    return path


def run(scenario: Path, url: str, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = python("-m", "loadtest.run", str(scenario), "--host", url, "--out", str(out), *words)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DOSIRAK")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def figures_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "figures.json").read_text()))


def broken(out: Path) -> list[str]:
    return [each["figure"] for each in figures_of(out)["limits"] if not each["holds"]]


def recount(out: Path) -> dict[str, float]:
    """The figures again, from the lines of samples alone, by other code."""
    samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    begin, end = figures_of(out)["window"]
    counted = [each for each in samples if begin <= each["due"] < end]
    good = [each for each in counted if each["error"] == ""]
    values = {
        "ttft": [each["ttft_ms"] for each in good if each["ttft_ms"] is not None],
        "itl": [gap for each in good for gap in each["itl_ms"]],
        "e2e": [each["e2e_ms"] for each in good],
    }
    found = {
        f"{name}_p{percent}_ms": float(np.percentile(of, percent))
        for name, of in values.items()
        if of
        for percent in (50, 95, 99)
    }
    seconds = max([end, *(each["due"] + each["e2e_ms"] / 1e3 for each in good)]) - begin
    found["tokens_per_second"] = sum(each["tokens"] for each in good) / seconds
    found["requests_per_second"] = len(good) / seconds
    found["failed_ratio"] = 1 - len(good) / len(counted)
    return found


def assert_recounted(out: Path) -> None:
    told = figures_of(out)["figures"]
    for name, value in recount(out).items():
        assert told[name] == pytest.approx(value, abs=1e-9), name


def test_a_good_server_holds_and_the_figures_are_those_of_its_samples(
    fake: FakeServer, url: str, scenario: Path, tmp_path: Path
) -> None:
    done = run(scenario, url, tmp_path / "out", "--key", "secret-key")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "short: holds" in done.stdout and not done.stderr
    made = figures_of(tmp_path / "out")
    assert made["counted"] == 200 and made["figures"]["ttft_p50_ms"] >= 20 and made["figures"]["itl_p95_ms"] > 0
    assert_recounted(tmp_path / "out")
    assert set(made["limits"][0]) >= {"figure", "limit", "value", "holds"}
    for fact in ("host", "commit", "command", "date"):
        assert made[fact]
    pages = [(tmp_path / "out" / name).read_text() for name in ("report.html", "report.md", "figures.json")]
    assert all("secret-key" not in page and "python -m loadtest.run" in page for page in pages)
    assert fake.requests == 225 + 2  # the warm-up's, /readyz and /info


def test_a_late_first_byte_breaks_a_limit_by_name(url: str, scenario: Path, tmp_path: Path) -> None:
    with listening(Proxy(url, delay=0.15).start) as address:
        done = run(scenario, address, tmp_path / "out")
    assert done.returncode == 1 and broken(tmp_path / "out") == ["ttft_p50_ms"], done.stdout
    assert "BROKEN  ttft_p50_ms is" in done.stdout and "short: broken: ttft_p50_ms" in done.stdout
    assert recount(tmp_path / "out")["ttft_p50_ms"] >= 170
    assert_recounted(tmp_path / "out")


SLOW = """
name = "slow"
[load]
kind = "open"
arrivals = "constant"
rate = 50
users = 2
warmup_seconds = 0
seconds = 2
answer_seconds = 1
min_samples = 100
[[requests]]
route = "/generate_stream"
max_new_tokens = 4
[limits]
failed_ratio = 0
"""


def test_an_open_loop_that_a_server_does_not_keep_up_with_is_broken(tmp_path: Path) -> None:
    """Each request that was due counts: answered, in flight at the end, or never sent."""
    (tmp_path / "slow.toml").write_text(SLOW)
    with listening(FakeServer(first_seconds=0.75).start) as address:
        done = run(tmp_path / "slow.toml", address, tmp_path / "out")
    assert done.returncode == 1 and broken(tmp_path / "out") == ["failed_ratio"], done.stdout + done.stderr
    made = figures_of(tmp_path / "out")
    assert made["counted"] == 100 and any(error.startswith("never sent") for error in made["errors"])
    assert_recounted(tmp_path / "out")


class Cutting(FakeServer):
    """Closes the connection of each stream behind its head."""

    async def _stream(self, writer: asyncio.StreamWriter, count: int, openai: bool) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await writer.drain()
        writer.close()


def test_locust_counts_streams_that_are_cut_as_failures() -> None:
    for server, fails in ((FakeServer(), False), (Cutting(), True)):
        with listening(server.start) as address:
            words = ("--headless", "--users", "8", "--spawn-rate", "8", "--run-time", "5s", "--json")
            command = python("-m", "locust", "-f", "loadtest/locustfile.py", "--host", address, *words)
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        rows = {each["name"]: each for each in json.loads(done.stdout)}
        assert "Traceback" not in done.stderr and done.returncode == int(fails), done.stderr
        assert rows["/generate"]["num_failures"] == 0
        for name in ("/generate_stream", "E2E"):
            assert rows[name]["num_failures"] == (rows[name]["num_requests"] if fails else 0), name
        assert ("TTFT" in rows) != fails


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that holds."""
    directory = tmp_path_factory.mktemp("good")
    (directory / "short.toml").write_text(SCENARIO)
    with listening(FakeServer().start) as address:
        assert run(directory / "short.toml", address, directory / "out").returncode == 0
    return directory / "out"


def test_a_run_that_is_ended_says_so(fake: FakeServer, url: str, scenario: Path, tmp_path: Path) -> None:
    words = ["-m", "loadtest.run", str(scenario), "--host", url, "--out", str(tmp_path / "out")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(python(*words), cwd=ROOT, text=True, **pipes) as process:
        block_until(lambda: fake.requests > 10)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        said, cried = process.communicate(timeout=60)
    assert process.returncode == 2 and said == "not measured: interrupted\n" and not cried
    assert time.monotonic() - began < 20


@pytest.mark.nightly
def test_smoke_holds_and_breaks_by_name_through_a_late_and_through_a_failing_proxy(
    served: Server, tmp_path: Path
) -> None:
    """All three at once: together they are a light load still."""
    with (
        listening(Proxy(served.url, delay=0.15).start) as late,
        listening(Proxy(served.url, share=0.05).start) as failing,
        ThreadPoolExecutor(3) as pool,
    ):
        urls = {"good": served.url, "late": late, "failing": failing}
        began = {name: pool.submit(run, SMOKE, url, tmp_path / name) for name, url in urls.items()}
        ended = {name: each.result() for name, each in began.items()}
    for name in urls:
        assert_recounted(tmp_path / name)
    assert ended["good"].returncode == 0, ended["good"].stdout
    assert figures_of(tmp_path / "good")["server"]["model"] == "demo:2"
    assert ended["late"].returncode == 1 and "BROKEN  ttft_p50_ms" in ended["late"].stdout
    assert recount(tmp_path / "late")["ttft_p50_ms"] > 150
    assert ended["failing"].returncode == 1 and broken(tmp_path / "failing") == ["failed_ratio"]


@pytest.mark.nightly
def test_a_rollout_is_promoted_under_load_and_undone_after_it(served: Server, tmp_path: Path) -> None:
    (tmp_path / "moves.toml").write_text(MOVES)
    done: subprocess.CompletedProcess[str] = run(tmp_path / "moves.toml", served.url, tmp_path / "out")
    assert done.returncode == 0, done.stdout
    made = figures_of(tmp_path / "out")
    assert set(made["versions"]) == {"demo:1", "demo:2"} and len(made["actions"]) == 2
    alias = "/v1/repository/models/demo/aliases/production"
    with served.client() as client:
        assert client.get(alias).json()["version"] == "2"
        assert client.get(f"{alias}/rollout").json()["rollout"] is None
        # Version 1 answers until version 2 is loaded again; the tests behind this one share the server.
        block_until(lambda: client.get("/info").json()["model"] == "demo:2")
