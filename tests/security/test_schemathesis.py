"""Every route of the document, with requests that fit its schema and requests that do not: answers as documented, no
failure of the server's own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from service.metrics import Metrics
from tests.e2e.server import free_port, python, running
from tests.fake_service import over_http, serving

CONFIGURATION = Path(__file__).parent / "schemathesis.toml"
SHORT = ("--phases=fuzzing", "--max-examples=6", "--seed=1", "--generation-deterministic")
LONG = ("--max-examples=100", "--max-time=1800", "--generation-database=none")


async def examine(url: str, log: Path, *options: str) -> None:
    """Run schemathesis against a server; a failed check is an assertion with its report."""
    command = (sys.executable, "-m", "schemathesis.cli", f"--config-file={CONFIGURATION}", "run", f"{url}/openapi.json")
    quiet = ("--no-color", "--warnings=off", "--continue-on-failure")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, *quiet, *options, stdout=output, stderr=output, cwd=log.parent
        )
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
    assert code == 0, _end_of(log)


def _end_of(report: Path) -> str:
    return report.read_text()[-20_000:]


def server_errors(metrics: Metrics) -> dict[str, float]:
    """Answers with status 500, by route."""
    [requests] = [each for each in metrics.registry.collect() if each.name == "dosirak_http_requests"]
    return {each.labels["route"]: each.value for each in requests.samples if each.labels.get("status") == "500"}


async def test_a_few_requests_for_every_route(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", worker="tests.fake_job") as world, over_http(world) as url:
        await examine(url, tmp_path / "log", *SHORT)
        assert server_errors(world.metrics) == {}


@pytest.mark.nightly
@pytest.mark.timeout(3600)
async def test_every_border_of_every_field_and_chains_of_requests(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", worker="tests.fake_job") as world, over_http(world) as url:
        await examine(url, tmp_path / "log", *LONG)
        assert server_errors(world.metrics) == {}


@pytest.mark.nightly
@pytest.mark.timeout(3600)
async def test_a_real_engine_lives_through_it(tmp_path: Path) -> None:
    """The demo model; its engine process is the same at the end."""
    (tmp_path / "data").mkdir()
    command = python("-m", "bentoml", "serve", "service.bento:Dosirak")
    with running(command, tmp_path / "data", tmp_path / "server.log", free_port()) as server:
        engines = {each.pid for each in server.engines()}
        generating = "--include-path-regex=generate|completions|tokenize|preview|^/$"
        await examine(server.url, tmp_path / "log", *LONG, generating)
        assert engines <= {each.pid for each in server.engines()}
