"""Real servers whose processes are killed: no answer fails, and each acknowledged turn is there, once, in order and
whole."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from loadtest.crashes import Plan, run
from loadtest.torture import run as torture
from loadtest.torture.faults import FAULTS
from tests import nginx
from tests.e2e.server import ROOT, Server, python
from tests.sessions import needs_postgresql, new_database
from tests.stores import fresh_store


@pytest.mark.nightly
async def test_a_service_that_is_harmed_under_load_loses_nothing(tmp_path: Path) -> None:
    """Every fault twice; each night draws others. `python -m loadtest.torture` runs longer."""
    seed = int(time.strftime("%Y%m%d"))
    result = await torture.run(torture.Plan(seed, tuple(FAULTS), None, 2 * len(FAULTS), 2.0, 8, False, tmp_path))
    assert (result["findings"], result["unproven"]) == ([], []), f"seed {seed}"
    assert sum(result["faults"].values()) == 2 * len(FAULTS)
    assert result["counts"]["compared"] > 100 and result["acknowledged"] > 100


@pytest.mark.nightly
@needs_postgresql
async def test_turns_of_two_services_on_one_database_survive_kills(tmp_path: Path) -> None:
    database = new_database("postgresql", tmp_path)
    outcome = await run(Plan(rounds=1, clients=8, turns=20, folder=tmp_path, database=database, instances=2))
    assert outcome.wrong == []
    assert outcome.answered >= 8, "each client has one"


@pytest.mark.nightly
@needs_postgresql
@pytest.mark.skipif(nginx.missing() is not None, reason=str(nginx.missing()))
async def test_turns_survive_where_one_of_two_is_killed_behind_nginx(tmp_path: Path) -> None:
    """With a store, and more rounds by `python -m loadtest.crashes`."""
    plan = Plan(
        rounds=3,
        clients=8,
        turns=20,
        folder=tmp_path,
        database=new_database("postgresql", tmp_path),
        instances=2,
        store_url=fresh_store("directory", tmp_path),
        one=True,
        is_balanced=True,
    )
    outcome = await run(plan)
    assert outcome.wrong == [] and outcome.kills == 3
    assert outcome.answered >= 8 * 3, "each client has one in each round"


def test_chat_from_a_pipe(served: Server) -> None:
    said = "제 이름은 김무슬이에요.\n제 이름이 뭐예요?\n/history\n"
    command = python("-m", "service.cli", "chat", "--url", served.url, "--temperature", "0")
    ended = subprocess.run(command, input=said, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    answers, history = ended.stdout.splitlines()[:2], ended.stdout.splitlines()[2:]
    assert "김무슬" in answers[1]
    assert history[1::2] == [f"{2 * at + 2} assistant: {answer}" for at, answer in enumerate(answers)]
    assert ended.stderr == ""
