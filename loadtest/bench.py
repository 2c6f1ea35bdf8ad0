"""Throughput and latency of a running server, at 1, 8 and 32 requests at once, as one table.

    python -m loadtest.bench            against a server that `make serve` started
    python -m loadtest.bench --model demo:1 --prompt-tokens 512

Every run sends fresh random prompts of exact length, so no prefix is reused; medians of `--rounds` rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import random
import time
from dataclasses import dataclass
from datetime import date
from statistics import median

import aiohttp

from loadtest.streams import Answer, Spread, ask

FIRST_PLAIN_ID = 300
"""Token ids below may be control tokens; random prompts are drawn above."""


@dataclass(frozen=True, slots=True)
class Round:
    tokens_per_second: float
    ttft: Spread
    itl: Spread


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    parser.add_argument("--model", default=None, help="model reference; the server's default where unset")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def prompt(options: argparse.Namespace, draw: random.Random) -> dict[str, object]:
    ids = [draw.randrange(FIRST_PLAIN_ID, FIRST_PLAIN_ID + 1000) for _ in range(options.prompt_tokens)]
    parameters = {"max_new_tokens": options.new_tokens, "ignore_eos": True}
    return {"input_ids": ids, "parameters": parameters, "model": options.model}


async def one_round(session: aiohttp.ClientSession, options: argparse.Namespace, at_once: int, seed: int) -> Round:
    draw = random.Random(seed)
    bodies = [prompt(options, draw) for _ in range(at_once)]
    started = time.perf_counter()
    answers: list[Answer] = await asyncio.gather(*(ask(session, options.url, body) for body in bodies))
    seconds = time.perf_counter() - started
    failed = [answer.error for answer in answers if answer.error]
    if failed:
        raise SystemExit(f"{len(failed)} of {at_once} requests failed: {failed[0]}")
    tokens = sum(answer.completion_tokens for answer in answers)
    gaps = [gap for answer in answers for gap in answer.gaps]
    return Round(tokens / seconds, Spread.of([answer.ttft for answer in answers]), Spread.of(gaps))


async def main() -> None:
    options = arguments()
    print(f"{date.today()}  {platform.processor() or platform.machine()}  {options.model or 'default model'}")
    print(f"prompt {options.prompt_tokens}, new tokens {options.new_tokens}, medians of {options.rounds} rounds\n")
    print(
        "| at once | output tokens/s | TTFT p50 ms | TTFT p95 ms | ITL p50 ms | ITL p99 ms |\n|---|---|---|---|---|---|"
    )
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        for at_once in options.at_once:
            await one_round(session, options, at_once, seed=at_once)  # warm
            rounds = [await one_round(session, options, at_once, 1000 * at_once + i) for i in range(options.rounds)]
            figures = (
                median(each.tokens_per_second for each in rounds),
                median(each.ttft.p50 for each in rounds),
                median(each.ttft.p95 for each in rounds),
                median(each.itl.p50 for each in rounds),
                median(each.itl.p99 for each in rounds),
            )
            print(f"| {at_once} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
