"""How much of a server's work is still for somebody when more is asked of it than it can do.

    python -m loadtest.goodput http://127.0.0.1:3000 --times 2 10

First `--users` clients that ask again at once find the peak. Then requests arrive by chance (Poisson), so many times as
fast. A client gives up after `--patience` seconds without its whole answer. Goodput counts the whole answers that end
within `--seconds`, so not what waits in a queue then; the batch fills in the `--filling` seconds before, in both. A
refused client stays away, or with `--come-back` asks again after each `Retry-After`: then it is told how many found a
place within twice the first one. Beside the load a prober asks `/livez`. When the load has ended, one request a second
tells how long until a first token is as quick as before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from loadtest import probing
from loadtest.wire import why_not_whole

WORDS = ["rice", "kimchi", "egg", "spinach", "carrot", "tofu", "seaweed", "sesame", "radish", "mushroom"]
TOKEN = b'"token":'
"""What the data of a token has, and that of an error has not: a quote within a text is escaped."""
RECOVERED = 2.0
"""Times the calm first token: what counts as before."""


@dataclass
class Tally:
    """What came of the requests of one load."""

    since: float = 0.0
    until: float = math.inf
    """Whole answers count between these,"""
    whole: int = 0
    """and are so many; `ends` have those that came earlier and later as well."""
    ends: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    firsts: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    """Of each who was refused at first and entered: the seconds until then, by those of its first `Retry-After`."""
    livez: list[float] = field(default_factory=list)


class Clients:
    """Clients of the server at `url`; `words` are of a prompt, `tokens` of an answer. What ends in the first `filling`
    seconds of a load does not count."""

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        words: int,
        tokens: int,
        patience: float,
        comes_back: bool = False,
        filling: float = 0.0,
    ) -> None:
        self._url = url
        self._session = session
        self._comes_back = comes_back
        self._filling = filling
        self._words, self._tokens, self._patience = words, tokens, patience
        self._random = random.Random()  # no seed: the server's prefix cache knows the prompts of the run before

    async def ask(self, tally: Tally) -> None:
        """Sends one request and adds what came of it."""
        prompt = " ".join(self._random.choices(WORDS, k=self._words))
        body = {"inputs": prompt, "parameters": {"max_new_tokens": self._tokens, "ignore_eos": True}}
        first_wait, refused_at = 0.0, time.monotonic()
        try:
            while (wait := await self._asked(body, tally, refused_at, first_wait)) and self._comes_back:
                first_wait = first_wait or wait
                await asyncio.sleep(wait)
        except TimeoutError:
            tally.ends["gave up"] += 1
        except aiohttp.ClientError as error:
            tally.ends[type(error).__name__] += 1

    async def _asked(self, body: Mapping[str, object], tally: Tally, refused_at: float, first_wait: float) -> float:
        """Returns the seconds of `Retry-After` where the request was refused, else 0."""
        began, tokens, last = time.monotonic(), 0, b"{}"
        async with asyncio.timeout(self._patience), self._session.post("/generate_stream", json=body) as response:
            if response.status != 200:
                await response.read()
                tally.ends[f"status {response.status}"] += 1
                wait = float(response.headers.get("Retry-After", 0))
                tally.waits += [wait] if response.status == 503 else []
                return wait
            tally.returns += [(time.monotonic() - refused_at) / first_wait] if first_wait else []
            async for line in response.content:
                if line.startswith(b"data:"):
                    last = line.removeprefix(b"data:")
                    if TOKEN in last:
                        tokens += 1
                        tally.firsts += [time.monotonic() - began] if tokens == 1 else []
        reason = why_not_whole(json.loads(last))
        tally.ends[reason or "whole"] += 1
        if not reason:
            tally.whole += tally.since <= time.monotonic() <= tally.until
            tally.tokens += tokens
        return 0.0

    async def again_and_again(self, users: int, seconds: float) -> Tally:
        """Returns what `users` clients get who ask again at once."""
        end = time.monotonic() + self._filling + seconds
        tally = Tally(end - seconds, end)

        async def user() -> None:
            while time.monotonic() < end:
                await self.ask(tally)

        await asyncio.gather(*(user() for _ in range(users)))
        return tally

    async def arriving(self, rate: float, seconds: float, calm: float) -> tuple[Tally, float]:
        """Returns what clients get that arrive `rate` times a second, and how long after the last of them a first token
        is as quick as `calm` again."""
        end = time.monotonic() + self._filling + seconds
        tally, tasks = Tally(end - seconds, end), set[asyncio.Task[None]]()
        prober = await probing.begun(self._url, self._filling + seconds)
        due = time.monotonic()
        while (due := due + self._random.expovariate(rate)) < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.add(task := asyncio.create_task(self.ask(tally)))
            task.add_done_callback(tasks.discard)
        seconds = await self._calm_again(calm)
        tally.livez = await probing.answered(prober)
        await asyncio.gather(*tasks)
        return tally, seconds

    async def _calm_again(self, calm: float) -> float:
        """Returns the seconds until a first token comes within RECOVERED times `calm`; 60 at most."""
        began = time.monotonic()
        while time.monotonic() - began < 60:
            tally, sent = Tally(), time.monotonic()
            await self.ask(tally)
            if tally.firsts and tally.firsts[0] <= RECOVERED * calm:
                return sent - began
            await asyncio.sleep(0.2)
        return 60.0


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else 0.0


def _returned(tally: Tally) -> str:
    if not tally.returns:
        return ""
    in_time = sum(each <= 2 for each in tally.returns) / len(tally.returns)
    return f", {len(tally.returns)} came back, {in_time:.1%} entered within twice that"


async def measure(args: argparse.Namespace) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(args.url, connector=connector) as session:
        clients = Clients(args.url, session, args.words, args.tokens, args.patience, args.come_back, args.filling)
        calm = Tally()
        for _ in range(10):
            await clients.ask(calm)
        first = quantile(calm.firsts, 0.5)
        if not calm.whole:
            raise SystemExit(f"{args.url} gives no whole answer: {dict(calm.ends)}")
        crowd = await clients.again_and_again(args.users, args.seconds)
        if not crowd.whole:
            raise SystemExit(
                f"no whole answer ended within {args.seconds:g} s for {args.users} users, so there is no peak: "
                f"{dict(crowd.ends)}; raise --seconds or --patience, or lower --users or --tokens"
            )
        peak = crowd.whole / args.seconds
        print(f"peak    {peak:.2f} answers a second with {args.users} users; a calm first token {first * 1e3:.0f} ms")
        for times in args.times:
            tally, recovered = await clients.arriving(times * peak, args.seconds, first)
            goodput = tally.whole / args.seconds / peak
            print(
                f"{times:>4g}x   goodput {goodput:.2f} of the peak; {dict(tally.ends)}; first token p50 "
                f"{quantile(tally.firsts, 0.5):.2f} s, p95 {quantile(tally.firsts, 0.95):.2f} s; Retry-After p50 "
                f"{quantile(tally.waits, 0.5):.0f} s{_returned(tally)}; /livez p99 "
                f"{quantile(tally.livez, 0.99) * 1e3:.0f} ms; calm {recovered:.1f} s after the last arrival",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--times", type=float, nargs="+", default=[2.0, 10.0])
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--filling", type=float, default=10.0, help="seconds before them, in which the batch fills")
    parser.add_argument("--come-back", action="store_true")
    parser.add_argument("--patience", type=float, default=20.0)
    parser.add_argument("--words", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=64)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
