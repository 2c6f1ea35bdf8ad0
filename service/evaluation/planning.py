"""The plan of a report says how much of each part fits the time: texts, greedy answers, steps of speed, questions.

    the rest of the time ─▶ texts 45 % ─▶ speed 50 % ─▶ answers 60 % ─▶ recall, of what is left each time

Amounts come in few sizes, so that a machine of the same speed chooses the same amounts and gets the same figures. A
part is never left out: the least amounts are measured also where the time is too short for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from models.repository.report import Effort
from service.evaluation.forecast import Forecast
from service.evaluation.speed import BATCHES, ROUNDS, SpeedPlan
from service.evaluation.texts import Text

_TEXTS: Final = 0.45
_SPEED: Final = 0.5
_ANSWERS: Final = 0.6
_RECALL: Final = 0.9
"""The parts' shares of the time that is left before each of them."""
_SAFE: Final = 0.9
"""The share of the time that is planned: forecasts err."""
_LEAST_TEXTS: Final = 4
_ANSWER_SIZES: Final = ((64, 1 << 20), (32, 64), (16, 32))
"""Tokens of an answer, and the most of its prompt."""
_LEAST_ANSWERS: Final = 2
_SPEED_SIZES: Final = ((512, 32), (256, 32), (128, 8), (64, 2), (32, 2))
"""Tokens of a prefill, and of a prompt before decoding."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The most that is measured: texts of the project, tokens of a file, greedy answers, questions in a cell, seconds
    of decode speed, seconds of the whole report, loading included, the positions of each text that count, and how many
    sequences decode side by side."""

    texts: int
    tokens: int
    answers: int
    questions: int
    speed_seconds: float
    seconds: float = math.inf
    scored: int | None = None
    batches: tuple[int, ...] = BATCHES


EFFORTS: Final[dict[Effort, Extent]] = {
    "check": Extent(8, 512, 0, 1, 1.0, 30.0, 48, (1,)),
    "quick": Extent(24, 4_096, 8, 6, 4.0, 60.0),
    "full": Extent(100, 32_768, 16, 100, 60.0),
}


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """Greedy answers: their prompts and the tokens of each."""

    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int


class Planner:
    """Plans each part just before it runs, so that a wrong forecast of one part shortens the next. Without a time limit
    the plan is the whole extent."""

    def __init__(
        self,
        extent: Extent,
        forecasts: Sequence[Forecast],
        started: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes `started`, the clock's time of the report's begin, and a forecast for each version."""
        self._extent = extent
        self._forecasts = forecasts
        self._started = started
        self._clock = clock

    def _share(self, of: float) -> float:
        """Returns a share of the seconds that are left."""
        return of * max(0.0, _SAFE * self._extent.seconds - (self._clock() - self._started))

    def texts(self, texts: Sequence[Text]) -> list[Text]:
        """Returns as many of the first texts as fit the time; the least number where fewer do."""
        fitting = _round_number(self._fitting(texts, self._share(_TEXTS)), len(texts))
        return list(texts[: max(_LEAST_TEXTS, fitting)])

    def speed(self, window: int) -> SpeedPlan:
        """Returns the largest prefills and prompts that leave a third of the time for decoding; else the least."""
        seconds = self._share(_SPEED)
        for prefill, prompt in _SPEED_SIZES:
            prompt = min(prompt, max(1, window // 4))
            plan = SpeedPlan(min(prefill, window - 1), prompt, self._extent.speed_seconds, self._extent.batches)
            needed = self._speed_seconds(plan)
            least = sum(
                (ROUNDS + 1) * each.step(batch, batch * prompt) for each in self._forecasts for batch in plan.batches
            )
            if needed + max(least, seconds / 3) <= seconds:
                return replace(plan, seconds=min(plan.seconds, seconds - needed))
        return replace(plan, seconds=0.0)

    def answers(self, texts: Sequence[Text]) -> AnswerPlan:
        """Returns answers to the first halves of texts."""
        seconds = self._share(_ANSWERS)
        halves = [text.token_ids[: max(1, len(text.token_ids) // 2)] for text in texts[: self._extent.answers]]
        for new_tokens, most in _ANSWER_SIZES:
            plan = AnswerPlan(tuple(half[:most] for half in halves), new_tokens)
            while self._answer_seconds(plan) > seconds and len(plan.prompts) > _LEAST_ANSWERS:
                plan = replace(plan, prompts=plan.prompts[:-1])
            if self._answer_seconds(plan) <= seconds:
                break
        return plan

    def questions(self, prompts: Sequence[int], new_tokens: int) -> int:
        """Returns the number of questions in each cell; `prompts` are the lengths of one question of each."""
        seconds, questions = self._share(_RECALL), 1
        while questions < self._extent.questions:
            larger = min(self._extent.questions, 2 * questions)
            if self._forecasts[-1].answering(list(prompts) * larger, new_tokens) > seconds:
                break
            questions = larger
        return questions

    def expected_seconds(self, texts: Sequence[Text], window: int, prompts: Sequence[int], new_tokens: int) -> float:
        """Returns the seconds that the whole extent will take from now on. `prompts` and `new_tokens` are those of
        `questions`."""
        speed = self.speed(window)
        scoring = sum(each.scoring(texts) for each in self._forecasts)
        recall = self._forecasts[-1].answering(list(prompts) * self.questions(prompts, new_tokens), new_tokens)
        return scoring + self._speed_seconds(speed) + speed.seconds + self._answer_seconds(self.answers(texts)) + recall

    def _fitting(self, texts: Sequence[Text], seconds: float) -> int:
        spent = accumulate(sum(each.scoring([text]) for each in self._forecasts) for text in texts)
        return sum(each <= seconds for each in spent)

    def _speed_seconds(self, plan: SpeedPlan) -> float:
        """Returns the seconds before and between the decoding."""
        return sum(
            ROUNDS * each.prefill(plan.prefill_tokens)
            + sum(each.prefill(batch * plan.prompt_tokens) for batch in plan.batches)
            for each in self._forecasts
        )

    def _answer_seconds(self, plan: AnswerPlan) -> float:
        lengths = [len(prompt) for prompt in plan.prompts]
        return sum(each.answering(lengths, plan.new_tokens) for each in self._forecasts)


def _round_number(count: int, most: int) -> int:
    """Returns the largest of 1, 2, 3, 4, 6, 8, 12, 16, 24 … up to `count`; `most` itself where all fit."""
    if count >= most:
        return most
    return max((number for power in range(12) for number in (2**power, 3 * 2**power) if number <= count), default=0)
