"""This module measures tokens a second of prefill and of decode, with an engine of its own in this process.

It measures all versions in turn, round by round, so that other load on the machine affects each: their ratio is the
median of the rounds' ratios.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Final

from service.engine.process.core import EngineCore
from service.engine.protocol.messages import FinishReason, Request, SamplingParams
from service.errors import GenerationFailed
from service.evaluation.offline import Loaded

BATCHES: Final = (1, 8, 32)
ROUNDS: Final = 6
"""The fewest values whose median has a 95 % interval."""
NEW_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class SpeedPlan:
    """The amount of measuring: tokens of a prefill, tokens of each prompt before decoding, seconds of decoding in all,
    and how many sequences decode side by side."""

    prefill_tokens: int
    prompt_tokens: int
    seconds: float
    batches: tuple[int, ...] = BATCHES


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens a second, one figure a round; `decode` by batch size, all sequences together. A round has 0 where the KV
    cache is so small that all sequences had ended before."""

    prefill: tuple[float, ...]
    decode: dict[int, tuple[float, ...]]

    def decode_rates(self) -> dict[int, list[float]]:
        """Returns the rates of the rounds that had tokens. A batch size without such a round is left out."""
        return _known({batch: [rate for rate in rates if rate] for batch, rates in self.decode.items()})

    def decode_ratios(self, other: Pace) -> dict[int, list[float]]:
        """Returns this version's rate divided by the other's, of each round in which both had tokens. A batch size
        without such a round is left out."""
        rounds = {batch: zip(rates, other.decode[batch], strict=True) for batch, rates in self.decode.items()}
        return _known(
            {batch: [mine / theirs for mine, theirs in each if mine and theirs] for batch, each in rounds.items()}
        )

    def decode_ratio(self, other: Pace) -> dict[int, float]:
        """Returns the median of the rounds' ratios."""
        return {batch: median(ratios) for batch, ratios in self.decode_ratios(other).items()}


def _known(figures: dict[int, list[float]]) -> dict[int, list[float]]:
    return {batch: values for batch, values in figures.items() if values}


def paces(versions: Sequence[Loaded], window: int, vocabulary: int, plan: SpeedPlan) -> list[Pace]:
    """Returns the pace of each version, measured in turn. Raises GenerationFailed for a version whose engine ends a
    sequence with an error."""
    racers = [_Racer(each.reference, each.core(speculation=False), window, vocabulary) for each in versions]
    prefill = [[racer.prefill(plan.prefill_tokens) for racer in racers] for _ in range(ROUNDS)]
    decode = {batch: _decode(racers, batch, plan) for batch in plan.batches}
    return [
        Pace(
            tuple(rates[at] for rates in prefill),
            {batch: tuple(rates[at] for rates in rounds) for batch, rounds in decode.items()},
        )
        for at in range(len(racers))
    ]


def _decode(racers: Sequence[_Racer], batch: int, plan: SpeedPlan) -> list[list[float]]:
    """Returns each round's rate of each version. A round has as many steps as the first step says."""
    steps_seconds = sum(racer.begin(batch, plan.prompt_tokens) for racer in racers)
    fitting = plan.seconds / (len(plan.batches) * ROUNDS * steps_seconds)
    steps = max(1, int(min(fitting, min(racer.room for racer in racers) // ROUNDS)))
    rounds = [[racer.decode(steps) for racer in racers] for _ in range(ROUNDS)]
    for racer in racers:
        racer.end()
    return rounds


class _Racer:
    """One version's engine with random texts, which no prefix cache has."""

    def __init__(self, reference: str, core: EngineCore, window: int, vocabulary: int) -> None:
        self._reference = reference
        self._core = core
        self._window = window
        self._vocabulary = vocabulary
        self._draw = Random(0)
        self._received: dict[str, int] = {}
        self._new_tokens = 0

    @property
    def room(self) -> int:
        """The steps in which every sequence of the batch still decodes."""
        return self._new_tokens - max(self._received.values())

    def prefill(self, tokens: int) -> float:
        self._received = {"prefill": 0}
        self._core.add(self._request("prefill", tokens, 1))
        started = time.perf_counter()
        self._drain()
        return tokens / (time.perf_counter() - started)

    def begin(self, batch: int, prompt: int) -> float:
        """Prefills the prompts. Returns the seconds of the first step in which all sequences decode."""
        self._new_tokens = min(NEW_TOKENS, self._window - prompt)
        self._received = {f"{batch}-{at}": 0 for at in range(batch)}
        for id in self._received:
            self._core.add(self._request(id, prompt, self._new_tokens))
        while self._core.has_work and not all(self._received.values()):
            self._step()
        started = time.perf_counter()
        self._step()
        return time.perf_counter() - started

    def decode(self, steps: int) -> float:
        """Returns the tokens a second of so many steps, of fewer where no sequence is left; 0.0 without a token."""
        started = time.perf_counter()
        tokens = sum(self._step() for _ in range(steps) if self._core.has_work)
        return tokens / (time.perf_counter() - started)

    def end(self) -> None:
        self._core.abort(self._received)
        self._drain()

    def _drain(self) -> None:
        while self._core.has_work:
            self._step()

    def _step(self) -> int:
        made = 0
        for output in self._core.step():
            if output.finish_reason is FinishReason.ERROR:
                raise GenerationFailed(
                    f"{self._reference} gives no usable numbers for random tokens ({len(self._received)} at once), or "
                    "they do not fit its KV cache: import the version again, or give the server more memory"
                )
            self._received[output.request_id] += len(output.token_ids)
            made += len(output.token_ids)
        return made

    def _request(self, id: str, tokens: int, new: int) -> Request:
        prompt = tuple(self._draw.randrange(self._vocabulary) for _ in range(tokens))
        return Request(id, prompt, SamplingParams(max_tokens=new, min_tokens=new), arrival=time.monotonic())
