"""A wave holds requests that arrive at given times, and their results. It knows numbers; no system and no process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from loadtest.checkpoints import FIRST_PLAIN_ID, Shape


@dataclass(frozen=True, slots=True)
class Asked:
    """`at`: seconds into the wave at which it arrives. `sampled`: at temperature 0.7 and top-p 0.9, not greedy."""

    token_ids: list[int]
    new_tokens: int
    at: float = 0.0
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to one request: its tokens, and for each the seconds into the wave at which it was known."""

    at: float
    times: list[float]
    token_ids: list[int]

    @property
    def ttft(self) -> float:
        return self.times[0] - self.at

    @property
    def end(self) -> float:
        return self.times[-1]

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


def check(asked: Sequence[Asked], told: Sequence[Told]) -> None:
    """Raises ValueError unless every answer holds just the tokens that were asked for, with a time each."""
    for number, (question, answer) in enumerate(zip(asked, told, strict=True)):
        if not len(answer.token_ids) == len(answer.times) == question.new_tokens:
            raise ValueError(
                f"request {number} asked for {question.new_tokens} tokens and got {len(answer.token_ids)} "
                f"at {len(answer.times)} times"
            )


def random_prompts(shape: Shape, count: int, length: int, draw: Random) -> list[list[int]]:
    """Prompts of plain tokens from the part of the vocabulary whose text does not repeat."""
    return [[draw.randrange(FIRST_PLAIN_ID, shape.half) for _ in range(length)] for _ in range(count)]


def throughput(told: Sequence[Told]) -> float:
    """All output tokens over all time, from the wave's first arrival to its last token; tokens a second."""
    return sum(len(answer.token_ids) for answer in told) / (
        max(answer.end for answer in told) - min(answer.at for answer in told)
    )


def decode_step(told: Sequence[Told]) -> float | None:
    """Seconds from one token of a sequence to its next while all sequences decode, None where they never all did.

    first |--prefill--|=======================|
    last  |-------prefill-------|=====================|
                                |<- counted ->|
    """
    start, end = max(answer.times[0] for answer in told), min(answer.end for answer in told)
    counted = sum(sum(start < time <= end for time in answer.times) for answer in told) / len(told)
    return (end - start) / counted if end > start and counted >= 1 else None


def gaps(told: Sequence[Told], begin: float, end: float) -> list[float]:
    """Gaps between tokens of one answer that begin and end between these times of the wave."""
    pairs = (pair for answer in told for pair in zip(answer.times, answer.times[1:], strict=False))
    return [later - earlier for earlier, later in pairs if begin <= earlier and later <= end]


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, round(share * len(ordered) + 0.499999) - 1))]
