"""This test measures what traces cost the streams: tokens a second with and without a span of each request, in turns.

    python -m loadtest.tracing                   starts its own server with the demo model, and is its collector

All rounds go to one server, because two processes differ by more than what is measured: the `traceparent` of a round's
requests says whether they are sampled. Rounds alternate; the ratio is the median over neighbouring rounds. A request
that is not sampled costs the server a little too: the test times that by itself and prints it as a share.
"""

from __future__ import annotations

import argparse
import asyncio
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
from loadtest.crashes import Service
from loadtest.watching import tokens_per_second
from service.metrics import Metrics
from service.tracing import Facts, Span, trace_context
from service.tracing.exporting import Exporting

UNSAMPLED: Final = 2000
"""Requests that are timed alone."""
ENGINE: Final = "service.engine.worker"


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
    """Takes every export and counts its bytes; the clients' process pays for it, as another machine would."""

    def __init__(self) -> None:
        self.url = ""
        self.received = 0

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
                self.received += len(await reader.readexactly(length))
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
    """Each round's tokens a second, and the server's processor seconds a token outside its engines, by whether its
    requests were sampled."""

    rates: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    costs: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})

    def ratios(self) -> list[float]:
        return [traced / without for without, traced in zip(self.rates[False], self.rates[True], strict=True)]

    def cost(self, is_sampled: bool) -> float:
        return statistics.median(self.costs[is_sampled])


async def measure(options: argparse.Namespace) -> None:
    collector = Collector()
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    with tempfile.TemporaryDirectory() as directory:
        async with collector.listening(), aiohttp.ClientSession(timeout=timeout, connector=connector) as plain:
            settings = {"DOSIRAK_OTLP_ENDPOINT": collector.url, "DOSIRAK_THREADS": "0"}
            service = Service(Path(directory) / "data", settings=settings)
            try:
                await service.start(plain)
                rounds = await alternate(service, options)
            finally:
                await service.kill()
    report(rounds, options, collector)


async def alternate(service: Service, options: argparse.Namespace) -> Rounds:
    rounds = Rounds()
    timeout = aiohttp.ClientTimeout(total=None)
    for number, is_sampled in enumerate([False, *in_turns(options.rounds)]):
        headers, connector = {"traceparent": traceparent(is_sampled)}, aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(service.url, timeout=timeout, connector=connector, headers=headers) as session:
            before, began = processor_seconds(service.pid, ENGINE), time.perf_counter()
            rate = await tokens_per_second(session, options)
            tokens = rate * (time.perf_counter() - began)
        if number > 0:  # the first warms up
            rounds.rates[is_sampled].append(rate)
            rounds.costs[is_sampled].append((processor_seconds(service.pid, ENGINE) - before) / tokens)
    return rounds


def report(rounds: Rounds, options: argparse.Namespace, collector: Collector) -> None:
    ratios, rate = rounds.ratios(), statistics.median(rounds.rates[False])
    low, middle, high = statistics.quantiles(ratios, n=4)
    alone = seconds_unsampled() / options.max_new_tokens
    without, traced = rounds.cost(False), rounds.cost(True)
    print(
        f"{options.streams} streams: {rate:,.0f} tokens a second without spans, "
        f"{statistics.median(rounds.rates[True]):,.0f} with; {middle:.4f}x, the median of {len(ratios)} pairs "
        f"of rounds (quartiles {low:.4f} to {high:.4f})\n"
        f"processor time of the server outside its engines: {without * 1e6:.1f} us a token without, "
        f"{traced * 1e6:.1f} with; of which a request that is not sampled takes {alone * 1e6:.2f}\n"
        f"{collector.received / 1000:,.0f} kB exported"
    )


if __name__ == "__main__":
    asyncio.run(measure(arguments()))
