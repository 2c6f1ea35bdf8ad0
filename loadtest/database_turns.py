"""This test compares a turn of a stored session on PostgreSQL with one on SQLite: milliseconds until it is answered.

    python -m loadtest.database_turns [--turns 200]

The whole API runs in this process, once on each database, with the demo model's tokenizer and a scripted engine that
costs almost nothing. Both databases are on this machine's disk and wait for it at each commit. Turns on the one and on
the other alternate, so that other load meets both. Exit status 1 if PostgreSQL's median is over the goal behind.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from loadtest.alternating import in_turns
from loadtest.session_turns import ENGINE, publish, turn
from service.observability.logs import configure_logging
from service.settings import Settings
from tests import postgres
from tests.fake_service import World, serving

GOAL_MS: Final = 8.0
WARMING: Final = 10
"""Turns that are not counted: connections are made, statements prepared."""
KINDS: Final = ("SQLite", "PostgreSQL")


async def timed_turn(world: World, session: str) -> float:
    return await turn(world, session, time.perf_counter, new_tokens=4)


async def measure(folder: Path, turns: int) -> dict[str, list[float]]:
    """Returns the milliseconds of each turn, by database."""
    urls = {"SQLite": "", "PostgreSQL": postgres.server().new_database()}
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    async with AsyncExitStack() as stack:
        worlds, sessions = dict[str, World](), dict[str, str]()
        for kind in KINDS:
            publish(folder / kind)
            settings: dict[str, Any] = {"database_url": urls[kind]} if urls[kind] else {}
            worlds[kind] = await stack.enter_async_context(serving(folder / kind, engine=ENGINE, **settings))
            made = await worlds[kind].client.post("/v1/sessions", json={"policy": "window"})
            sessions[kind] = made.raise_for_status().json()["id"]
            for _ in range(WARMING):
                await timed_turn(worlds[kind], sessions[kind])
        for is_second in in_turns(turns):
            kind = KINDS[is_second]
            spent[kind].append(await timed_turn(worlds[kind], sessions[kind]))
    return spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200, help="on each database")
    options = parser.parse_args()
    if (why := postgres.missing()) is not None:
        raise SystemExit(why)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    configure_logging(Settings(log_level="error"))
    with tempfile.TemporaryDirectory() as folder:
        spent = asyncio.run(measure(Path(folder), options.turns))
    for kind, each in spent.items():
        print(f"{kind:10} p50 {median(each):5.1f} ms, p95 {quantiles(each, n=20)[-1]:5.1f} ms, {len(each)} turns")
    more = median(spent["PostgreSQL"]) - median(spent["SQLite"])
    print(f"a turn on PostgreSQL takes {more:.1f} ms more than on SQLite at p50, at most {GOAL_MS:g} wanted")
    return int(more > GOAL_MS)


if __name__ == "__main__":
    raise SystemExit(main())
