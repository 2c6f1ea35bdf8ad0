"""Sessions through the real service: after SIGKILLs of everything each turn is there, once, in order and whole."""

from __future__ import annotations

from pathlib import Path

from loadtest.crashes import run
from tests.sessions import needs_postgresql, new_database


async def test_turns_survive_kills(tmp_path: Path) -> None:
    outcome = await run(rounds=2, clients=8, turns=20, folder=tmp_path)
    assert outcome.wrong == []
    assert outcome.answered >= 16, "each client has one in each round"


@needs_postgresql
async def test_turns_of_two_services_on_one_database_survive_kills(tmp_path: Path) -> None:
    database = new_database("postgresql", tmp_path)
    outcome = await run(rounds=2, clients=8, turns=20, folder=tmp_path, database=database, instances=2)
    assert outcome.wrong == []
    assert outcome.answered >= 16, "each client has one in each round"
