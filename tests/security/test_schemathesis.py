"""Every route of the document, with requests that fit its schema and requests that do not: answers as documented, no
failure of the server's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_service import over_http, serving
from tests.security.examine import LONG, examine, server_errors

SHORT = ("--phases=fuzzing", "--max-examples=3", "--seed=1", "--generation-deterministic")


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
