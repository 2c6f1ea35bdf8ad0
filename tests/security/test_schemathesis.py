"""Every route of the document, with requests that fit its schema and requests that do not: answers as documented, no
failure of the server's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.server import free_port, python, running
from tests.fake_service import over_http, serving
from tests.security.examine import examine, server_errors

SHORT = ("--phases=fuzzing", "--max-examples=3", "--seed=1", "--generation-deterministic")
RESTARTS = "dosirak_engine_restarts_total"
LONG = ("--max-examples=100", "--max-time=600", "--generation-database=none")


@pytest.mark.nightly
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
    """The demo model. Ollama's `keep_alive: 0` ends engines as it should; none dies."""
    (tmp_path / "data").mkdir()
    command = python("-m", "bentoml", "serve", "service.bento:Dosirak")
    with running(command, tmp_path / "data", tmp_path / "server.log", free_port()) as server:
        generating = "--include-path-regex=generate|completions|tokenize|preview|^/$"
        await examine(server.url, tmp_path / "log", *LONG, generating)
        restarts = [line for line in server.client().get("/metrics").text.splitlines() if line.startswith(RESTARTS)]
        assert restarts and {line.rpartition(" ")[2] for line in restarts} == {"0.0"}, restarts
