"""This module measures tokens a second of prefill and of decode, with an engine of its own in this process.

It measures two versions in turn, round by round, so that other load on the machine affects both: their ratio is the
median of the rounds' ratios.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from service.engine.core import EngineCore
from service.engine.messages import Request, SamplingParams
from service.evaluation.offline import Loaded

BATCHES = (1, 8, 32)
PROMPT_TOKENS = 32
PREFILL_TOKENS = 512
NEW_TOKENS = 256
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens a second, one figure a round; `decode` by batch size, all sequences together."""

    prefill: tuple[float, ...]
    decode: dict[int, tuple[float, ...]]

    def decode_ratio(self, other: Pace) -> dict[int, float]:
        """Returns this version's rate divided by the other's, the median of the rounds."""
        return {
            batch: median(mine / theirs for mine, theirs in zip(rates, other.decode[batch], strict=True))
            for batch, rates in self.decode.items()
        }


def paces(versions: Sequence[Loaded], window: int, vocabulary: int, seconds: float) -> list[Pace]:
    """Returns the pace of each version, measured in turn within about `seconds` in all."""
    share = seconds / (len(versions) * ROUNDS * (len(BATCHES) + 1))
    prefill: list[list[float]] = [[] for _ in versions]
    decode: list[dict[int, list[float]]] = [{batch: [] for batch in BATCHES} for _ in versions]
    for number in range(ROUNDS):
        for at, loaded in enumerate(versions):
            draw = Random(number)
            core = loaded.core(speculation=False)
            prefill[at].append(_prefill(core, min(PREFILL_TOKENS, window - 1), vocabulary, draw))
            for batch, rates in decode[at].items():
                rates.append(_decode(core, batch, min(PROMPT_TOKENS, window // 4), window, vocabulary, draw, share))
    return [
        Pace(tuple(mine), {batch: tuple(rates) for batch, rates in theirs.items()})
        for mine, theirs in zip(prefill, decode, strict=True)
    ]


def _prefill(core: EngineCore, tokens: int, vocabulary: int, draw: Random) -> float:
    request = _request("prefill", tokens, 1, vocabulary, draw)
    core.add(request)
    started = time.perf_counter()
    while core.has_work:
        core.step()
    return tokens / (time.perf_counter() - started)


def _decode(
    core: EngineCore, batch: int, prompt: int, window: int, vocabulary: int, draw: Random, seconds: float
) -> float:
    """Runs steps in which all of `batch` decode, for about `seconds` and at least four steps."""
    requests = [
        _request(f"{batch}-{at}", prompt, min(NEW_TOKENS, window - prompt), vocabulary, draw) for at in range(batch)
    ]
    for request in requests:
        core.add(request)
    told: dict[str, int] = {request.id: 0 for request in requests}
    while not all(told.values()):
        _step(core, told)
    steps, tokens, started = 0, 0, time.perf_counter()
    while steps < 4 or time.perf_counter() - started < seconds:
        made = _step(core, told)
        if not made:
            break  # every answer has all its tokens
        steps, tokens = steps + 1, tokens + made
    rate = tokens / (time.perf_counter() - started)
    core.abort(told)
    while core.has_work:
        core.step()
    return rate


def _step(core: EngineCore, told: dict[str, int]) -> int:
    made = 0
    for output in core.step():
        told[output.request_id] += len(output.token_ids)
        made += len(output.token_ids)
    return made


def _request(id: str, tokens: int, new: int, vocabulary: int, draw: Random) -> Request:
    """Returns a request with random text that no prefix cache has, and an answer that no stop token ends."""
    prompt = tuple(draw.randrange(vocabulary) for _ in range(tokens))
    return Request(id, prompt, SamplingParams(max_tokens=new, min_tokens=new), arrival=time.monotonic())
