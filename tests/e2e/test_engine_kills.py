"""A real server whose engine is killed again and again under load: no answer fails, no probe lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.engine_kills import run
from tests.e2e.server import Server


@pytest.mark.nightly
async def test_a_few_kills_under_load(served: Server, data_dir: Path) -> None:
    """On the data of the shared server, which holds the model already."""
    outcome = await run(kills=4, seconds=8, clients=6, data_dir=data_dir)
    assert not outcome.wrong
    assert (outcome.kills, outcome.answered >= 6) == (4, True)
    assert outcome.probes["503 restarting"] and outcome.probes["200 ready"]


@pytest.mark.nightly
async def test_twenty_kills_in_two_minutes(tmp_path: Path) -> None:
    outcome = await run(kills=20, seconds=120, clients=16, data_dir=tmp_path / "data")
    assert not outcome.wrong
    assert outcome.kills == 20 and outcome.answered > 100
