"""Routes that take prompts, before a real engine, with requests that fit their schema and requests that do not. A file
of its own, for files run beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench.running import free_port
from tests.e2e.server import python, running
from tests.security.examine import LONG, examine

RESTARTS = "dosirak_engine_restarts_total"


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
