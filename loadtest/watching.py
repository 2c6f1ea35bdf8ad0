"""This test measures what listeners of `/v1/live` cost the streams: tokens a second with and without them, in turns.

    python -m loadtest.watching                  against a server that `make serve` started

Rounds with and without listeners alternate; the ratio is that of the medians. Each listener reads every event.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

import aiohttp

from loadtest.alternating import in_turns
from loadtest.swaps import stream


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    parser.add_argument("--listeners", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    return parser.parse_args()


async def listen(session: aiohttp.ClientSession, events: list[int]) -> None:
    async with session.get("/v1/live") as response:
        async for line in response.content:
            events[0] += line.startswith(b"data:")


async def tokens_per_second(session: aiohttp.ClientSession, options: argparse.Namespace) -> float:
    """Returns the rate of all streams together over a round; each stream begins another until the round is over."""
    began, answers = time.perf_counter(), 0

    async def keep_streaming() -> None:
        nonlocal answers
        while time.perf_counter() - began < options.seconds:
            await stream(session, options.max_new_tokens)
            answers += 1

    await asyncio.gather(*(keep_streaming() for _ in range(options.streams)))
    tokens: int = answers * options.max_new_tokens
    return tokens / (time.perf_counter() - began)


async def watched(session: aiohttp.ClientSession, options: argparse.Namespace, events: list[int]) -> float:
    listening = [asyncio.create_task(listen(session, events)) for _ in range(options.listeners)]
    try:
        return await tokens_per_second(session, options)
    finally:
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


async def measure(options: argparse.Namespace) -> None:
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    rates: dict[bool, list[float]] = {False: [], True: []}
    events = [0]
    async with aiohttp.ClientSession(options.url, timeout=timeout, connector=connector) as session:
        await tokens_per_second(session, options)
        for is_watched in in_turns(options.rounds):
            measured = watched(session, options, events) if is_watched else tokens_per_second(session, options)
            rates[is_watched].append(await measured)
    alone, with_them = (statistics.median(rates[each]) for each in (False, True))
    spread = statistics.quantiles(rates[False], n=4)
    print(
        f"{options.streams} streams: {alone:,.0f} tokens a second without listeners (quartiles {spread[0]:,.0f} to "
        f"{spread[2]:,.0f}), {with_them:,.0f} with {options.listeners}: {with_them / alone:.3f}x; {events[0]} events"
    )


if __name__ == "__main__":
    asyncio.run(measure(arguments()))
