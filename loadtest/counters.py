"""This test measures what the metrics cost: tokens a second and processor time with and without counters, one scrape.

    python -m loadtest.counters [--streams 64] [--rounds 8]

It starts two servers with the demo model in a new directory, one of them `loadtest.uncounted`. Rounds against the one
and the other alternate, so that a change of the machine meets both; the other server is idle then and takes no CPU. The
ratios are medians of the pairs. That of the processor time, of all processes of a server, spreads less: it does not
show what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import aiohttp

from loadtest.alternating import end_on_sigterm, in_turns, processor_seconds
from loadtest.bench.running import free_port
from loadtest.watching import tokens_per_second

APPS: Final = {"counted": "service.app:create", "uncounted": "loadtest.uncounted:create"}
READY_SECONDS: Final = 180.0
SCRAPES: Final = 50


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    return parser.parse_args()


@contextmanager
def serving(app: str, directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[tuple[str, int]]:
    """Yields the URL and the process id of a server that has begun to start; ends it at exit."""
    port = free_port()
    variables = {
        **(settings or {}),
        "DOSIRAK_DATA_DIR": str(directory),
        "DOSIRAK_IDLE_REPORTS": "false",
        "DOSIRAK_LOG_LEVEL": "error",
    }
    command = [sys.executable, "-m", "uvicorn", "--factory", app, "--port", str(port), "--log-level", "error"]
    end_on_sigterm()
    process = subprocess.Popen(command, env={**os.environ, **variables})
    try:
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(60)


async def until_ready(session: aiohttp.ClientSession) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        try:
            async with session.get("/readyz") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.2)
    raise SystemExit("a server did not become ready")


async def scrape(session: aiohttp.ClientSession) -> tuple[float, int]:
    """Returns the median milliseconds and the bytes of `/metrics`."""
    times, size = [], 0
    for _ in range(SCRAPES):
        began = time.perf_counter()
        async with session.get("/metrics") as response:
            size = len(await response.read())
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times), size


async def measure(servers: dict[str, tuple[str, int]], options: argparse.Namespace) -> None:
    timeout = aiohttp.ClientTimeout(total=None)
    sessions = {
        name: aiohttp.ClientSession(url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        for name, (url, _) in servers.items()
    }
    try:
        for session in sessions.values():
            await until_ready(session)
            await tokens_per_second(session, options)
        rates: dict[str, list[float]] = {name: [] for name in APPS}
        costs: dict[str, list[float]] = {name: [] for name in APPS}
        counted, uncounted = APPS
        for is_without in in_turns(options.rounds):
            name = uncounted if is_without else counted
            before, began = processor_seconds(servers[name][1]), time.perf_counter()
            rate = await tokens_per_second(sessions[name], options)
            tokens = rate * (time.perf_counter() - began)
            rates[name].append(rate)
            costs[name].append((processor_seconds(servers[name][1]) - before) / tokens)
        milliseconds, size = await scrape(sessions["counted"])
    finally:
        for session in sessions.values():
            await session.close()
    print(f"{options.streams} streams: {in_pairs(rates)} tokens a second with counters and without")
    print(f"processor time: {in_pairs({name: [1e6 * each for each in costs[name]] for name in costs})} us a token")
    print(f"/metrics: {milliseconds:.1f} ms, {size:,} bytes")


def in_pairs(figures: dict[str, list[float]]) -> str:
    counted, uncounted = (figures[name] for name in APPS)
    ratios = [mine / theirs for mine, theirs in zip(counted, uncounted, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return (
        f"{middle:.3f}x of {len(ratios)} pairs (quartiles {low:.3f} to {high:.3f}), {statistics.median(counted):,.1f} "
        f"and {statistics.median(uncounted):,.1f}"
    )


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        directories = {name: Path(folder, name) for name in APPS}
        first, second = (serving(app, directories[name]) for name, app in APPS.items())
        with first as counted, second as uncounted:
            asyncio.run(measure({"counted": counted, "uncounted": uncounted}, options))


if __name__ == "__main__":
    main()
