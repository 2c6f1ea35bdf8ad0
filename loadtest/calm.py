"""This test measures how calm streams stay while prompts arrive beside them, and what that costs the prompts.

    python -m loadtest.calm http://127.0.0.1:3000 --streams 8 --prompt-tokens 1024 --every 1

First prompts alone: the rate of prefill. Then streams alone: the calm gap. Then one prompt at a time beside the
streams, and last a prompt each `--every` seconds. A gap lies between two pieces of one stream: a step that gives a
stream several tokens makes one gap.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import aiohttp
import uvloop

from loadtest.goodput import WORDS
from loadtest.wire import Answer, Connection, Spread

STREAMED_WORDS: Final = 30
LONGEST: Final = 4000
"""Tokens of a stream, or what the model's window has room for; the streams are cut when all is measured."""
FEW: Final = 5
"""Prompts that come alone."""


@dataclass(frozen=True, slots=True)
class Window:
    """From and until, as `time.perf_counter` has it."""

    begin: float
    end: float

    def gaps(self, streams: Sequence[Answer]) -> list[float]:
        """Returns the seconds between pieces of a stream whose later one came within the window."""
        found = list[float]()
        for stream in streams:
            times = sorted({stream.started + each for each in stream.token_times})
            found += [later - earlier for earlier, later in pairwise(times) if self.begin <= later < self.end]
        return found


def busy_seconds(prompts: Sequence[Answer]) -> float:
    """Returns the seconds in which at least one prompt waited for its first token."""
    busy, end = 0.0, 0.0
    for begin, first in sorted((each.started, each.started + each.ttft) for each in prompts):
        busy += max(0.0, first - max(begin, end))
        end = max(end, first)
    return busy


class Client:
    """Asks the server at `url`; `words` a prompt make about the wanted number of tokens."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._random = random.Random()  # no seed: the server's prefix cache knows the prompts of the run before
        self.words = STREAMED_WORDS

    def body(self, words: int, tokens: int) -> dict[str, object]:
        text = " ".join(self._random.choices(WORDS, k=words))
        return {"inputs": text, "parameters": {"max_new_tokens": tokens, "ignore_eos": True}}

    async def fit(self, tokens: int) -> None:
        """Finds how many words make so many tokens, by the answer's own count."""
        async with aiohttp.ClientSession(self._url) as session:
            body = self.body(200, 1)
            async with session.post("/generate", json=body) as response:
                response.raise_for_status()
                self.words = round(200 * tokens / (await response.json())["usage"]["prompt_tokens"])

    async def streamed(self) -> dict[str, object]:
        """Returns the body of a stream that is as long as the model's window lets it be."""
        body = self.body(STREAMED_WORDS, LONGEST)
        async with (
            aiohttp.ClientSession(self._url) as session,
            session.post("/tokenize", json={"prompt": body["inputs"]}) as response,
        ):
            response.raise_for_status()
            told = await response.json()
        room = told["max_model_len"] - told["count"]
        return {**body, "parameters": {"max_new_tokens": min(LONGEST, room), "ignore_eos": True}}

    async def prompt(self) -> Answer:
        connection = Connection(self._url)
        answer = await connection.ask(self.body(self.words, 1))
        connection.close()
        if answer.error:
            raise SystemExit(f"a prompt failed: {answer.error}")
        return answer

    async def one_by_one(self) -> list[Answer]:
        return [await self.prompt() for _ in range(FEW)]

    async def arriving(self, every: float, seconds: float) -> list[Answer]:
        tasks = []
        for _ in range(round(seconds / every)):
            tasks.append(asyncio.create_task(self.prompt()))
            await asyncio.sleep(every)
        return await asyncio.gather(*tasks)


class Streams:
    """Streams that go on until they are cut; what came is seen while it comes."""

    def __init__(self, url: str, bodies: Sequence[dict[str, object]]) -> None:
        self._connections = [Connection(url) for _ in bodies]
        pairs = zip(self._connections, bodies, strict=True)
        self._tasks = [asyncio.create_task(connection.ask(body)) for connection, body in pairs]

    async def begun(self) -> None:
        """Returns when each has a token. Ends the program where one ended before that."""
        while not all(each.answer.token_times for each in self._connections):
            self._still_go_on()
            await asyncio.sleep(0.05)

    async def cut(self) -> list[Answer]:
        """Returns what came. Ends the program where one ended before the cut."""
        self._still_go_on()
        for each in self._connections:
            each.close()
        return await asyncio.gather(*self._tasks)

    def _still_go_on(self) -> None:
        for ended in (task.result() for task in self._tasks if task.done()):
            raise SystemExit(
                f"a stream ended before all was measured, after {len(ended.token_times)} tokens: "
                f"{ended.error or 'the window of the model is full; lower --seconds'}"
            )


async def measure(args: argparse.Namespace) -> None:
    client = Client(args.url)
    await client.fit(args.prompt_tokens)
    own = args.prompt_tokens / median([each.ttft for each in (await client.one_by_one())[1:]])
    streams = Streams(args.url, [await client.streamed() for _ in range(args.streams)])
    await streams.begun()
    calm = Window(time.perf_counter() + 1.0, time.perf_counter() + 1.0 + args.seconds / 2)
    await asyncio.sleep(1.0 + args.seconds / 2)
    alone = [each.ttft for each in await client.one_by_one()]
    await asyncio.sleep(1.0)
    begin = time.perf_counter()
    prompts = await client.arriving(args.every, args.seconds)
    beside = Window(begin, max(each.started + each.ttft for each in prompts))
    answers = await streams.cut()
    quiet, gaps = Spread.of(calm.gaps(answers)), Spread.of(beside.gaps(answers))
    rate = len(prompts) * args.prompt_tokens / busy_seconds(prompts)
    first = Spread.of([each.ttft for each in prompts])
    print(
        f"calm gap p50 {quiet.p50:.0f} ms, p99 {quiet.p99:.0f}; beside a prompt each {args.every:g} s "
        f"p50 {gaps.p50:.0f}, p99 {gaps.p99:.0f} ({gaps.p99 / quiet.p50:.1f} times the calm median)\n"
        f"first token of {args.prompt_tokens} tokens: one at a time {median(alone):.2f} s; each {args.every:g} s "
        f"p50 {first.p50 / 1e3:.2f} s, p95 {first.p95 / 1e3:.2f} s\n"
        f"prefill {rate:.0f} tokens a second, {rate / own:.2f} of its own {own:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    uvloop.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
