"""This test measures what traces cost: the processor time of a span, and tokens a second with and without spans.

    python -m loadtest.tracing                   starts its own server with the demo model, and is its collector

The server times its own tracing (`loadtest.timed_tracing`): what share of the processor time of all its processes, the
engine's too, its threads take to make, encode and send the spans. That is the figure to go by. The rates say little
more than that nothing else is wrong: rounds differ by more than what is measured. All go to one server, and the
`traceparent` of a round's requests says whether they are sampled; rounds alternate, and the ratio is the median over
neighbouring rounds. A request that is not sampled costs a little too: the test times that by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from loadtest.alternating import in_turns, processor_seconds
from loadtest.counters import serving, until_ready
from loadtest.timed_tracing import FILE
from loadtest.watching import tokens_per_second
from service.observability.metrics import Metrics
from service.observability.tracing import Facts, Span, trace_context
from service.observability.tracing.exporting import Exporting

UNSAMPLED: Final = 2000
"""Requests that are timed alone."""
APP: Final = "loadtest.timed_tracing:create"
SENT_SECONDS: Final = 1.5
"""After a round, until the server has sent its last spans."""


def traceparent(sampled: bool) -> str:
    return f"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0{int(sampled)}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20, help="of each kind")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    return parser.parse_args()


class Collector:
    """Takes every export; the clients' process pays for it, as another machine would."""

    def __init__(self) -> None:
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = int(head.partition("content-length:")[2].partition("\r\n")[0])
                await reader.readexactly(length)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()


def seconds_unsampled() -> float:
    """The processor time of a request that is not sampled, beside what it costs without tracing."""
    tracer = Exporting("http://127.0.0.1:1", "", Metrics())
    began = time.process_time()
    for _ in range(UNSAMPLED):
        parent = trace_context([traceparent(False)], [])
        tracer.record(Span("POST /generate_stream", parent, 1, 2, lambda: Facts({})))
    return (time.process_time() - began) / UNSAMPLED


@dataclass(slots=True)
class Rounds:
    """Each round's tokens a second by whether its requests were sampled, and the processor time of sampled rounds."""

    rates: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    seconds: float = 0.0

    def ratios(self) -> list[float]:
        return [traced / without for without, traced in zip(self.rates[False], self.rates[True], strict=True)]


async def measure(options: argparse.Namespace) -> None:
    collector = Collector()
    with tempfile.TemporaryDirectory() as directory:
        timed = Path(directory, "timed.json")
        async with collector.listening():
            settings = {"DOSIRAK_OTLP_ENDPOINT": collector.url, "DOSIRAK_THREADS": "0", FILE: str(timed)}
            with serving(APP, Path(directory, "data"), settings) as (url, pid):
                rounds = await alternate(url, pid, options)
            report(rounds, json.loads(await asyncio.to_thread(timed.read_text)), options)


async def alternate(url: str, pid: int, options: argparse.Namespace) -> Rounds:
    rounds = Rounds()
    timeout = aiohttp.ClientTimeout(total=None)
    for number, is_sampled in enumerate([False, *in_turns(options.rounds)]):
        headers, connector = {"traceparent": traceparent(is_sampled)}, aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(url, timeout=timeout, connector=connector, headers=headers) as session:
            if number == 0:
                await until_ready(session)
            before = processor_seconds(pid)
            rate = await tokens_per_second(session, options)
            if is_sampled:
                await asyncio.sleep(SENT_SECONDS)
                rounds.seconds += processor_seconds(pid) - before
        if number > 0:  # the first warms up
            rounds.rates[is_sampled].append(rate)
    return rounds


def report(rounds: Rounds, timed: dict[str, float], options: argparse.Namespace) -> None:
    low, middle, high = statistics.quantiles(ratios := rounds.ratios(), n=4)
    without, traced = (statistics.median(rounds.rates[each]) for each in (False, True))
    print(
        f"{options.streams} streams of {options.max_new_tokens} tokens: tracing takes "
        f"{timed['seconds'] / rounds.seconds:.2%} of the server's processor time, "
        f"{1e6 * timed['seconds'] / timed['spans']:.0f} us a span of {timed['spans']:,}; a request that is not sampled "
        f"{1e6 * seconds_unsampled():.0f} us\n"
        f"{without:,.0f} tokens a second without spans, {traced:,.0f} with; {middle:.4f}x, the median of {len(ratios)} "
        f"pairs of rounds (quartiles {low:.4f} to {high:.4f})"
    )


if __name__ == "__main__":
    asyncio.run(measure(arguments()))
