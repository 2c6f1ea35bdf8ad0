"""This test measures what one idle instance more costs the others: processor time, and PostgreSQL's statements.

    python -m loadtest.neighbours [--rounds 3] [--seconds 10]

It starts two servers with data directories of their own on one PostgreSQL and one store. The second one is stopped
(SIGSTOP) and goes on, by turns, so that other load meets both kinds of round: stopped it sends no heartbeat and looks
at nothing. Exit status 1 if with it the first one and PostgreSQL take over one percent of a core more.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Final, NamedTuple

import psutil

from loadtest.alternating import in_turns, processor_seconds
from tests.two_instances import Pair, missing, two_instances

GOAL: Final = 0.01
"""Of a core."""
SETTLING_SECONDS: Final = 3.0


class Round(NamedTuple):
    """What a second took: cores of the first instance, of the second and of PostgreSQL; statements."""

    first: float
    second: float
    database: float
    statements: float


def measured(pair: Pair, seconds: float) -> Round:
    first, second = (each.running.process.pid for each in pair.instances)
    counters: tuple[Callable[[], float], ...] = (
        lambda: processor_seconds(first),
        lambda: processor_seconds(second),
        lambda: processor_seconds(pair.database.pid),
        lambda: float(pair.database.statements()),
    )
    time.sleep(SETTLING_SECONDS)
    before, began = [count() for count in counters], time.monotonic()
    time.sleep(seconds)
    spent = time.monotonic() - began
    return Round(*((count() - earlier) / spent for count, earlier in zip(counters, before, strict=True)))


def signalled(pair: Pair, number: signal.Signals) -> None:
    """Stops the second instance with all its processes, or lets it go on."""
    process = psutil.Process(pair.instances[1].running.process.pid)
    for each in (process, *process.children(recursive=True)):
        each.send_signal(number)


def measure(pair: Pair, pairs: int, seconds: float) -> tuple[list[Round], list[Round]]:
    """Returns the rounds of the first instance alone, and those of both."""
    alone, both = list[Round](), list[Round]()
    for is_with in in_turns(pairs):
        signalled(pair, signal.SIGCONT if is_with else signal.SIGSTOP)
        (both if is_with else alone).append(measured(pair, seconds))
    signalled(pair, signal.SIGCONT)
    return alone, both


def shown(alone: list[Round], both: list[Round]) -> tuple[str, float]:
    """Returns a table, and what the second instance costs the first one and PostgreSQL, in cores."""
    one, two = (Round(*map(mean, zip(*rounds, strict=True))) for rounds in (alone, both))
    lines = ["| a second takes | one instance | two | more |", "|---|---:|---:|---:|"]
    for name, here, there in (
        ("the first instance, of a core", one.first, two.first),
        ("PostgreSQL, of a core", one.database, two.database),
        ("the second instance, of a core", one.second, two.second),
    ):
        lines.append(f"| {name} | {here:.2%} | {there:.2%} | {there - here:.2%} |")
    lines.append(
        f"| statements | {one.statements:.1f} | {two.statements:.1f} | {two.statements - one.statements:.1f} |"
    )
    return "\n".join(lines), two.first - one.first + two.database - one.database


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of each kind")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    if (why := missing()) is not None:
        raise SystemExit(why)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder, two_instances(Path(folder)) as pair:
        pair.database.log_statements()
        table, more = shown(*measure(pair, options.rounds, options.seconds))
    print(table)
    print(f"one instance more costs the other and PostgreSQL {more:.2%} of a core, at most {GOAL:.0%} wanted")
    return int(more > GOAL)


if __name__ == "__main__":
    raise SystemExit(main())
