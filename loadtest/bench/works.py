"""A work sends waves to a running system and turns the answers' times into figures.

Prompts depend only on the work, the shape and the round, so every system gets the same ones. No prompt repeats between
rounds, so no prefix is found again unless the work measures that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Final

from loadtest.bench.running import Running
from loadtest.bench.systems import System
from loadtest.bench.wave import Asked, decode_step, gaps, quantile, random_prompts, throughput
from loadtest.checkpoints import (
    DEMO,
    FIRST_PLAIN_ID,
    LARGE,
    MIDDLE,
    MIXTURE,
    REPEAT,
    SMALL,
    TINYLLAMA,
    WIDE,
    Shape,
    next_token,
)

Figures = dict[str, float]
PROMPT, NEW = 128, 64
LONG_PROMPT: Final = 1024
LONG_ANSWER: Final = 256
TURNS: Final = 20


@dataclass(frozen=True, slots=True)
class Work:
    """`run` gives the figures of one round. `applies` says for which systems it is meant."""

    name: str
    run: Callable[[Running, Shape, Random], Awaitable[Figures]]
    applies: Callable[[System], bool]


def decode(at_once: int, sampled: bool = False) -> Callable[[Running, Shape, Random], Awaitable[Figures]]:
    """`at_once` prompts of 128 tokens arrive together and get 64 tokens each."""

    async def run(running: Running, shape: Shape, draw: Random) -> Figures:
        told = await running.wave(
            [Asked(ids, NEW, sampled=sampled) for ids in random_prompts(shape, at_once, PROMPT, draw)]
        )
        step = decode_step(told)
        return {"tokens_per_second": throughput(told)} | ({"step_ms": step * 1e3} if step else {})

    return run


async def prefill(running: Running, shape: Shape, draw: Random) -> Figures:
    """One prompt of 1,024 tokens, then eight of 128 at once: seconds to the (last) first token."""
    (alone,) = await running.wave([Asked(ids, 1) for ids in random_prompts(shape, 1, LONG_PROMPT, draw)])
    packed = await running.wave([Asked(ids, 1) for ids in random_prompts(shape, 8, PROMPT, draw)])
    last = max(answer.ttft for answer in packed)
    return {
        "seconds": alone.ttft,
        "tokens_per_second": LONG_PROMPT / alone.ttft,
        "packed_tokens_per_second": 8 * PROMPT / last,
    }


async def burst(running: Running, shape: Shape, draw: Random) -> Figures:
    """32 requests arrive evenly within one second."""
    prompts = random_prompts(shape, 32, PROMPT, draw)
    told = await running.wave([Asked(ids, NEW, number / 32) for number, ids in enumerate(prompts)])
    waits = [answer.ttft * 1e3 for answer in told]
    return {
        "ttft_p50_ms": quantile(waits, 0.5),
        "ttft_p95_ms": quantile(waits, 0.95),
        "tokens_per_second": throughput(told),
    }


async def disturbed(running: Running, shape: Shape, draw: Random) -> Figures:
    """Gaps between the tokens of eight streams while all of them decode, and while beside them two prompts of 1,024
    tokens are computed."""
    streams = [Asked(ids, LONG_ANSWER) for ids in random_prompts(shape, 8, PROMPT, draw)]
    calm = await running.wave(streams)
    begin, end = max(answer.times[0] for answer in calm), min(answer.end for answer in calm)
    alone = gaps(calm, begin, end)
    streams = [Asked(ids, LONG_ANSWER) for ids in random_prompts(shape, 8, PROMPT, draw)]
    long = [Asked(ids, 1, begin + number * NEW * median(alone)) for number, ids in enumerate(long_prompts(shape, draw))]
    told = await running.wave([*streams, *long])
    begin, end = max(begin, *(answer.times[0] for answer in told[:8])), max(answer.times[0] for answer in told[8:])
    hit = gaps(told[:8], begin, end)
    return {
        "itl_calm_ms": median(alone) * 1e3,
        "itl_calm_p99_ms": quantile(alone, 0.99) * 1e3,
        "itl_ms": median(hit) * 1e3,
        "itl_p99_ms": quantile(hit, 0.99) * 1e3,
        "long_ttft_ms": max(answer.ttft for answer in told[8:]) * 1e3,
    }


def long_prompts(shape: Shape, draw: Random) -> list[list[int]]:
    return random_prompts(shape, 2, LONG_PROMPT, draw)


async def chat(running: Running, shape: Shape, draw: Random) -> Figures:
    """Twenty turns of 64 new tokens and an answer of 32; then the last prompt's length cold."""
    history: list[int] = []
    ttft = 0.0
    for _ in range(TURNS):
        history += random_prompts(shape, 1, 64, draw)[0]
        (answer,) = await running.wave([Asked(list(history), 32)])
        ttft = answer.ttft
        history += answer.token_ids
    (cold,) = await running.wave([Asked(random_prompts(shape, 1, len(history) - 32, draw)[0], 1)])
    return {"turn_20_ms": ttft * 1e3, "cold_ms": cold.ttft * 1e3, "share": ttft / cold.ttft}


async def lookup(running: Running, shape: Shape, draw: Random) -> Figures:
    """Decode steps at batch 1 of text that repeats itself, that does not, and that seems to and then does not: by two
    engines of the same version in turn, the first of which looks up, each by a clock that runs in its own steps."""
    figures = {}
    for kind, prompt in (("repeating", repeating), ("fresh", fresh), ("misleading", misleading)):
        asked = Asked(prompt(shape, draw), 96)
        for answer, name in zip(await running.wave([asked, asked]), ("ms", "without_ms"), strict=True):
            figures[f"{kind}_{name}"] = (decode_step([answer]) or float("nan")) * 1e3
    return figures


def walk(shape: Shape, start: int, length: int) -> list[int]:
    """`length` tokens as the model itself continues `start`."""
    tokens = [start]
    while len(tokens) < length:
        tokens.append(next_token(shape, tokens[-1]))
    return tokens


def repeating(shape: Shape, draw: Random) -> list[int]:
    return walk(shape, draw.randrange(shape.half, shape.vocabulary - REPEAT), 2 * REPEAT + 16)


def fresh(shape: Shape, draw: Random) -> list[int]:
    return walk(shape, draw.randrange(FIRST_PLAIN_ID, shape.half), 2 * REPEAT + 16)


def misleading(shape: Shape, draw: Random) -> list[int]:
    """Holds pieces of what the model is about to say, each followed by something else."""
    start = draw.randrange(FIRST_PLAIN_ID, shape.half)
    answer = walk(shape, start, 98)
    pieces = [answer[at : at + 3] + random_prompts(shape, 1, 5, draw)[0] for at in range(0, 96, 6)]
    return [token for piece in pieces for token in piece] + [start]


def context(tokens: int) -> Callable[[Running, Shape, Random], Awaitable[Figures]]:
    """Decode step at batch 1 behind a context of `tokens`."""

    async def run(running: Running, shape: Shape, draw: Random) -> Figures:
        (answer,) = await running.wave([Asked(random_prompts(shape, 1, tokens, draw)[0], 24)])
        return {"step_ms": (decode_step([answer]) or float("nan")) * 1e3}

    return run


def _large(system: System) -> bool:
    return system.shape is TINYLLAMA and not _paired(system)


def _decoded(system: System) -> bool:
    return _large(system) or system.shape in (DEMO, WIDE, MIXTURE, MIDDLE, LARGE)


def _prefilled(system: System) -> bool:
    return _int8(system) or system.shape in (DEMO, WIDE, MIXTURE, MIDDLE, LARGE)


def _sampled(system: System) -> bool:
    """Users' way of asking; static batches do not sample here."""
    return _streaming(system) or system.shape is WIDE


def _int8(system: System) -> bool:
    return _large(system) and system.precision == "int8"


def _streaming(system: System) -> bool:
    return _int8(system) and system.peer in ("dosirak", "openvino", "llama.cpp")


def _paired(system: System) -> bool:
    return "paired" in system.options


def _offline(system: System) -> bool:
    return _int8(system) and system.ours and not system.http and not _paired(system)


def _small(system: System) -> bool:
    return system.shape is SMALL


WORKS: Final = (
    Work("decode-1", decode(1), _decoded),
    Work("decode-8", decode(8), _decoded),
    Work("decode-32", decode(32), _decoded),
    *(Work(f"sampled-{at_once}", decode(at_once, sampled=True), _sampled) for at_once in (1, 8, 32)),
    Work("small-1", decode(1), _small),
    Work("small-32", decode(32), _small),
    Work("prefill", prefill, _prefilled),
    Work("burst", burst, _int8),
    Work("disturbed", disturbed, _streaming),
    Work("chat", chat, _streaming),
    Work("lookup", lookup, _paired),
    Work("context-64", context(64), _offline),
    Work("context-1024", context(1024), _offline),
    Work("context-4096", context(4096), _offline),
)
BY_NAME: Final[Mapping[str, Work]] = {work.name: work for work in WORKS}
