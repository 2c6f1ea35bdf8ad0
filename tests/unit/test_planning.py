"""The plan of a report fits the time, on machines of every speed."""

from __future__ import annotations

import math
import time

import pytest

from service.engine.scheduling.cost import CostLine, StepWork
from service.evaluation.evaluate import shown_seconds
from service.evaluation.forecast import Forecast
from service.evaluation.planning import EFFORTS, Extent, Planner
from service.evaluation.speed import BATCHES, ROUNDS
from service.evaluation.texts import Text
from tests.fakes import FakeClock

QUICK = EFFORTS["quick"]
FIRST, TOKENS = 140, 240
"""Of each of the first four texts, and of the others."""


def forecast(tokens_per_second: float) -> Forecast:
    """Of a machine that prefills so many tokens a second; a step takes at least as long as four tokens."""
    line = CostLine()
    for tokens in (1, 8, 64, 256) * 50:
        line.observe(StepWork(tokens), (4 + tokens) / tokens_per_second)
    return Forecast(line, 1.1)


def all_texts() -> list[Text]:
    ids = tuple(range(TOKENS))
    return [Text(ids[:FIRST], ids[1:FIRST])] * 4 + [Text(ids, ids[1:])] * (QUICK.texts - 4)


@pytest.mark.parametrize("speed", [90.0, 150.0, 500.0, 5_000.0, 100_000.0])
def test_the_parts_fit_the_time(speed: float) -> None:
    """Loading two versions took twenty seconds, and each part takes what its forecast says."""
    forecasts, clock = [forecast(speed * 0.7), forecast(speed)], FakeClock(20.0)
    planner = Planner(QUICK, forecasts, 0.0, clock)
    texts = planner.texts(all_texts())
    clock.advance(sum(each.scoring(texts) for each in forecasts))
    plan = planner.speed(2048)
    for each in forecasts:
        prompts = sum(each.prefill(batch * plan.prompt_tokens) for batch in BATCHES)
        steps = (ROUNDS + 1) * sum(each.step(batch) for batch in BATCHES)
        clock.advance(ROUNDS * each.prefill(plan.prefill_tokens) + prompts + max(steps, plan.seconds / 2))
    answers = planner.answers(texts)
    lengths = [len(prompt) for prompt in answers.prompts]
    clock.advance(sum(each.answering(lengths, answers.new_tokens) for each in forecasts))
    questions = planner.questions([60] * 10, 20)
    clock.advance(forecasts[-1].answering([60] * 10 * questions, 20) if speed > 400 else 0.0)
    assert clock.now < QUICK.seconds


def test_a_faster_machine_measures_more_of_the_same_texts() -> None:
    chosen = []
    for speed in (20.0, 100.0, 400.0, 2_000.0, 100_000.0):
        texts = Planner(QUICK, [forecast(speed)], time.monotonic()).texts(all_texts())
        chosen.append(len(texts))
    assert chosen == sorted(chosen) and chosen[0] == 4 and chosen[-1] == QUICK.texts


def test_machines_of_about_the_same_speed_measure_the_same() -> None:
    amounts = {
        len(Planner(QUICK, [forecast(speed)], time.monotonic()).texts(all_texts())) for speed in range(300, 900, 20)
    }
    assert amounts <= {8, 12, 16, 24}


def test_without_time_the_least_is_measured() -> None:
    planner = Planner(QUICK, [forecast(1.0)], time.monotonic() - 100)
    assert len(planner.texts(all_texts())) == 4
    assert planner.speed(2048).seconds == 0.0
    assert len(planner.answers(all_texts()).prompts) == 2
    assert planner.questions([100] * 38, 40) == 1


def test_full_measures_everything_and_says_beforehand_how_long() -> None:
    extent = Extent(100, 32_768, 16, 100, 60.0)
    slow, fast = (Planner(extent, [forecast(speed)], time.monotonic()) for speed in (100.0, 1000.0))
    texts = all_texts()
    assert math.isinf(extent.seconds) and slow.texts(texts) == texts and slow.questions([100], 40) == 100
    expected = slow.expected_seconds(texts, 2048, [], 40)
    scoring = len(texts) * TOKENS * 1.1 / 100
    assert scoring + 60 < expected < 2 * scoring + 120
    assert fast.expected_seconds(texts, 2048, [], 40) < expected / 2
    assert fast.expected_seconds(texts, 2048, [100] * 10, 40) > fast.expected_seconds(texts, 2048, [], 40) + 100


@pytest.mark.parametrize(
    ("seconds", "words"), [(4.4, "4 s"), (89, "89 s"), (150, "2 min"), (5000, "83 min"), (7300, "2 h 2 min")]
)
def test_durations_are_shown(seconds: float, words: str) -> None:
    assert shown_seconds(seconds) == words
