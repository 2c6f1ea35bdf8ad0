"""The simulation of fleets: its chats, its policies, its conservation of turns, and the arithmetic of growth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest

from loadtest import scale
from loadtest.fleet import costs
from loadtest.fleet.chats import POLICIES, Habits, arrivals, policy
from loadtest.fleet.instance import Instance, Shape
from loadtest.fleet.simulation import Outcome, Simulation
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.scheduling.cost import StepWork

SHAPE = Shape((0.001, 1e-4, 1e-8, 1e-9), (2e-4, 1e-5), turn_seconds=0.002, event_seconds=5e-5, blocks=2000)
HABITS = Habits(answer=20, question=40, pause=2)


def run(name: str, count: int = 3, rate: float = 30, seconds: float = 6, lost_at: float | None = None) -> Outcome:
    instances = [Instance(number, SHAPE) for number in range(count)]
    return Simulation(instances, policy(name, Random(1)), lost_at).run(arrivals(Random(2), rate, seconds, HABITS))


def asked_turns(rate: float = 30, seconds: float = 6) -> int:
    return sum(chat.turns for _, chat in arrivals(Random(2), rate, seconds, HABITS))


@pytest.mark.parametrize("name", POLICIES)
def test_every_turn_is_answered_once_and_a_day_can_be_run_again(name: str) -> None:
    first, again = run(name), run(name)
    assert len(first.answers) == len(first.first_tokens) == asked_turns() > 100
    assert first == again
    assert all(0 < early <= whole for early, whole in zip(first.first_tokens, first.answers, strict=True))


def test_one_request_takes_what_the_line_says_and_the_loop_and_the_way_besides() -> None:
    """A prompt of 32 tokens and 3 of an answer: a step over the prompt, and two over one token each."""
    instance = Instance(0, replace(SHAPE, way_seconds=0.5))
    ready = instance.accept(1.0)
    assert ready == pytest.approx(1.502)
    instance.add(Request("a", tuple(range(1, 33)), SamplingParams(max_tokens=3)))
    now, told = ready, 0
    while instance.core.has_work:
        now, outputs = instance.step(now)
        told += sum(len(output.token_ids) for output in outputs)
    steps = (StepWork(32, 0, 32 * 16.5), StepWork(1, 33), StepWork(1, 34))
    loop = 3 * (2e-4 + 1e-5)
    assert told == 3 and now - ready == pytest.approx(loop + sum(map(SHAPE.predict, steps)))


def test_capacity_is_read_between_two_loads() -> None:
    def outcome(seconds: float) -> Outcome:
        return Outcome(first_tokens=[seconds])

    assert scale.capacity([(1.0, outcome(0.0)), (3.0, outcome(1.0))], limit=0.5) == pytest.approx(2.0)
    assert scale.capacity([(1.0, outcome(0.1)), (3.0, outcome(0.5))], limit=0.5) == 3.0


@pytest.mark.nightly
def test_the_report_has_its_tables_and_drawings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scale.report(costs.read(costs.newest()), 40, 0.5, tmp_path)
    shown = capsys.readouterr().out
    assert all(f"| {name} |" in shown for name in POLICIES) and "| 1G |" in shown
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {"scale-routing.svg", "scale-limits.svg"}
    for path in tmp_path.iterdir():
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
