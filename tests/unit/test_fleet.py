"""The simulation of fleets: its chats, its policies, its conservation of turns, and the arithmetic of growth."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest

from loadtest import scale
from loadtest.fleet import costs
from loadtest.fleet.balancing import POLICIES, policy
from loadtest.fleet.chats import Chat, Habits, arrivals
from loadtest.fleet.drawing import lines, short
from loadtest.fleet.growth import CEILINGS, need
from loadtest.fleet.instance import Instance, Shape
from loadtest.fleet.real import COEFFICIENTS, DaysLines
from loadtest.fleet.simulation import Outcome, Simulation
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.scheduling.cost import Work

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


@pytest.mark.parametrize("name", POLICIES)
def test_the_turns_of_a_lost_instance_are_answered_elsewhere(name: str) -> None:
    assert len(run(name, lost_at=2.0).answers) == asked_turns()


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
    steps = (Work(32, 0, 32 * 16.5), Work(1, 33), Work(1, 34))
    loop = 3 * (2e-4 + 1e-5)
    assert told == 3 and now - ready == pytest.approx(loop + sum(map(SHAPE.predict, steps)))


def test_a_step_takes_what_the_line_of_its_second_says() -> None:
    """A day whose host slows down at the second second and is back at the third."""
    slow = (0.003, 3e-4, 3e-8, 3e-9)
    shape = replace(SHAPE, lines=((2.0, slow), (3.0, SHAPE.line)))
    work = Work(8, 100, 50.0)
    calm = SHAPE.predict(work)
    assert [shape.predict(work, now) / calm for now in (0.0, 1.99, 2.0, 2.99, 3.0, 99.0)] == pytest.approx(
        [1, 1, 3, 3, 1, 1]
    )


def test_the_lines_of_a_day_are_those_of_the_seconds_that_computed_made_as_slow_as_their_steps_were() -> None:
    day = DaysLines()
    cost = dict(zip(COEFFICIENTS, (0.001, 1e-4, 1e-8, None), strict=True))
    step = {"tokens": 1, "predicted_seconds": 0.002, "seconds": 0.003}
    for steps in ([step, step | {"tokens": 9}], []):
        day.add({"interval_seconds": 1.0, "versions": [{"cost": cost, "steps": steps}]})
    ((_, line),) = day.lines
    assert line == day.last == pytest.approx((0.0015, 1.5e-4, 1.5e-8, 0.0))
    assert day.decode_seconds == [0.003]


def test_warm_caches_and_short_queues_are_what_policies_are_for() -> None:
    found = {name: run(name, rate=60) for name in POLICIES}
    assert min(found["hash"].hit_ratio, found["prefix"].hit_ratio) > found["random"].hit_ratio + 0.05
    assert found["load"].first_token(95) < found["random"].first_token(95)


def test_a_lost_instance_moves_its_own_chats_only() -> None:
    instances = [Instance(number, SHAPE) for number in range(4)]
    choose = policy("hash", Random(1))
    chats = [Chat(number, 1, Random(number), HABITS) for number in range(200)]
    request = Request("a", (1,), SamplingParams(max_tokens=1))
    before = [choose(chat, request, instances) for chat in chats]
    after = [choose(chat, request, instances[:-1]) for chat in chats]
    moved = {old.name for old, new in zip(before, after, strict=True) if old is not new}
    assert moved == {3} and len(Counter(each.name for each in before)) == 4


def test_chats_are_what_the_habits_say() -> None:
    habits = Habits()
    began = list(arrivals(Random(3), 40, 400, habits))
    turns = sum(chat.turns for _, chat in began)
    assert turns == pytest.approx(40 * 400, rel=0.1)
    early = sum(1 for at, _ in began if at < 100)
    noon = sum(1 for at, _ in began if 150 <= at < 250)
    assert noon > 2 * early, "a day has a night"
    chat = Chat(1, 40, Random(4), habits)
    for _ in range(40):
        prompt, answer = chat.ask(2048)
        assert len(prompt) + answer <= 2048
        chat.hear(range(answer))


def test_needs_grow_with_the_turns_and_the_worst_part_is_first() -> None:
    told = costs.read(costs.newest())
    small, large = (need(turns, 5.0, told, Habits()) for turns in (1e5, 1e9))
    assert small.instances == 2 and small.over == []
    assert large.api_cores == pytest.approx(1e4 * small.api_cores)
    factors = [factor for _, factor in large.over]
    assert factors == sorted(factors, reverse=True) and factors[0] > 1
    assert large.shared.keys() == CEILINGS.keys()


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


def test_a_drawing_names_what_it_shows() -> None:
    text = lines("a < b", ("x", "y"), {"one": [(1, 1), (10, 100)], "two & three": [(1, 0), (10, 5)]}, {"limit": 50})
    assert "a &lt; b" in text and "two &amp; three" in text and "limit" in text
    assert text.count("<circle") == 3, "no place for 0 on a logarithmic axis"
    assert [short(value) for value in (0.5, 999.6, 1e6, 2.5e9)] == ["0.5", "1k", "1M", "2.5G"]
