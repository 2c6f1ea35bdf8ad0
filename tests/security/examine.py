"""This module holds the whole interface to its OpenAPI document with schemathesis, on an app with a scripted engine.

`python -m tests.security.examine --seconds 500 --seed 2 [--key]` runs a piece of it and says how many requests it made;
pieces with other seeds make other requests. With `--key` the server has a key, so that requests without one are tried
too. Exit status 1 for a 5xx, a status that the document lacks, or an answer that is not of its schema.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import structlog

from service.observability.metrics import Metrics
from tests.fake_service import over_http, serving

CONFIGURATION: Final = Path(__file__).parent / "schemathesis.toml"
LONG: Final = ("--max-examples=100", "--max-time=600", "--generation-database=none")
KEY: Final = "correct horse battery staple"


async def examine(url: str, log: Path, *options: str) -> None:
    """Runs schemathesis against a server. Raises AssertionError with its report for a failed check."""
    command = (sys.executable, "-m", "schemathesis.cli", f"--config-file={CONFIGURATION}", "run", f"{url}/openapi.json")
    quiet = ("--no-color", "--warnings=off", "--continue-on-failure")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, *quiet, *options, stdout=output, stderr=output, cwd=log.parent
        )
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
    assert code == 0, _end_of(log)


def _end_of(report: Path) -> str:
    return report.read_text()[-20_000:]


def statuses(metrics: Metrics) -> dict[str, float]:
    """Answers by status, and those with status 500 by route too."""
    [requests] = [each for each in metrics.registry.collect() if each.name == "dosirak_http_requests"]
    found: dict[str, float] = {}
    for each in requests.samples:
        if each.name.endswith("_total"):
            status = each.labels["status"]
            name = f"{status} {each.labels['route']}" if status == "500" else status
            found[name] = found.get(name, 0) + each.value
    return found


def server_errors(metrics: Metrics) -> dict[str, float]:
    """Answers with status 500, by route."""
    return {name: count for name, count in statuses(metrics).items() if name.startswith("500")}


async def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=100, help="the most requests of a kind for one operation")
    parser.add_argument("--key", action="store_true")
    given = parser.parse_args()
    bound = (f"--max-time={given.seconds}", f"--max-examples={given.examples}", f"--seed={given.seed}")
    key = (f"--header=Authorization: Bearer {KEY}",) if given.key else ()
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        settings: dict[str, Any] = {"admin_key": KEY} if given.key else {}
        async with serving(Path(directory) / "data", worker="tests.fake_job", **settings) as world:
            async with over_http(world) as url:
                try:
                    await examine(url, log, *bound, *key, "--generation-database=none")
                except AssertionError as failed:
                    sys.exit(str(failed))
            told = statuses(world.metrics)
        [cases] = re.findall(r"(\d+) generated", log.read_text())
    answers = ", ".join(f"{int(count)} x {status}" for status, count in sorted(told.items()))
    print(f"{cases} test cases, no finding; the server's answers: {answers}")
    if server_errors(world.metrics):
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main())
