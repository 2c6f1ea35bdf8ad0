"""Sessions through the real service: what was acknowledged is there after a SIGKILL of everything."""

from __future__ import annotations

from pathlib import Path

from loadtest.crashes import run


async def test_acknowledged_turns_survive_kills(tmp_path: Path) -> None:
    acknowledged, wrong = await run(rounds=2, clients=6, seconds=2.0, folder=tmp_path)
    assert wrong == []
    assert acknowledged > 20
