"""Real servers whose processes are killed: no answer fails, and each acknowledged turn is there, once, in order and
whole."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loadtest import engine_kills
from loadtest.crashes import Plan, run
from tests import nginx
from tests.e2e.server import ROOT, Server, python
from tests.sessions import needs_postgresql, new_database
from tests.stores import fresh_store


@pytest.mark.nightly
async def test_turns_survive_kills(tmp_path: Path) -> None:
    outcome = await run(Plan(rounds=4, clients=8, turns=20, folder=tmp_path))
    assert outcome.wrong == []
    assert outcome.answered >= 8 * 4, "each client has one in each round"


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


@pytest.mark.nightly
async def test_a_few_kills_under_load(served: Server, data_dir: Path) -> None:
    """On the data of the shared server, which holds the model already."""
    outcome = await engine_kills.run(kills=4, seconds=8, clients=6, data_dir=data_dir)
    assert not outcome.wrong
    assert (outcome.kills, outcome.answered >= 6) == (4, True)
    assert outcome.probes["503 restarting"] and outcome.probes["200 ready"]


@pytest.mark.nightly
async def test_twenty_kills_in_two_minutes(tmp_path: Path) -> None:
    outcome = await engine_kills.run(kills=20, seconds=120, clients=16, data_dir=tmp_path / "data")
    assert not outcome.wrong
    assert outcome.kills == 20 and outcome.answered > 100
