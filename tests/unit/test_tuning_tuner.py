"""The tuner: near the best of its field within its seconds, and honest about what it could not measure. No engines, and
a clock that moves only when something is done."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from service.evaluation.scenarios.figures import NotMeasured
from service.evaluation.tuning.halving import Round, counts
from tests.tuning import World, candidate, slice_of

SLICE = 15.0
"""Seconds that a full grid gives each candidate."""


def spread(count: int, seed: int) -> list[float]:
    """Rates as those of real fields: most within a factor of three, the present one somewhere among them."""
    draw = Random(f"rates {seed}")
    return [1000 * 3 ** draw.random() for _ in range(count)]


@pytest.mark.parametrize("count", [12, 36])
@pytest.mark.parametrize("seed", range(12))
async def test_within_5_percent_of_a_full_grid_in_a_quarter_of_its_time(
    count: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spread(count, seed), noise=0.03, seed=seed)
    grid = count * (world.start + SLICE)
    found = await world.tuner(monkeypatch, grid / 4).run()
    assert found.chosen is not None
    assert world.rate(found.chosen.candidate) >= 0.95 * world.best
    assert world.now <= grid / 4 * 1.0001


async def test_each_round_keeps_the_better_half(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([100, 300, 200, 800, 700, 600, 500, 400])
    found = await world.tuner(monkeypatch, 200).run()
    assert [left for _, left, _ in world.listener.rounds] == [8, 4, 2] == counts(8)
    plans = [plan for *_, plan in world.listener.rounds]
    assert all(before.passes * before.seconds < after.passes * after.seconds for before, after in pairwise(plans))
    assert found.chosen is not None and found.chosen.candidate == candidate(3)
    assert found.gain == pytest.approx(8, rel=0.01)
    assert {row.candidate for row in found.rows} == set(world.field), "the losers' figures stay"


async def test_every_candidate_of_a_round_is_measured_alike_in_turning_order(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([100, 200, 300, 400])
    await world.tuner(monkeypatch, 100).run()
    passes = world.listener.rounds[0][2].passes
    slices = world.listener.slices[: 4 * passes]
    assert passes > 1 and len({seconds for _, seconds in slices}) == 1
    first, second = [each for each, _ in slices[:4]], [each for each, _ in slices[4:8]]
    assert first == second[::-1] == world.field


async def test_a_machine_that_slows_down_does_not_favour_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([100, 96, 98, 104], drift=0.97)
    found = await world.tuner(monkeypatch, 120).run()
    assert found.chosen is not None and found.chosen.candidate == candidate(3)


async def test_an_engine_is_started_once_where_it_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([float(100 + each) for each in range(8)])
    await world.tuner(monkeypatch, 300).run()
    assert world.starts == 8 + 1, "the present one twice: the first start reads files that no cache has"
    assert len(world.alive) == 1, "who is out is ended"


async def test_little_memory_costs_starts_and_not_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([float(100 + 50 * each) for each in range(8)], kept=1, start=3)
    found = await world.tuner(monkeypatch, 150).run()
    assert world.starts > 8 and world.now <= 151 and found.chosen is not None
    assert all(plan.passes == 1 for *_, plan in world.listener.rounds)


async def test_who_cannot_start_or_dies_is_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([100.0, 200.0, 900.0, 800.0, 300.0], no_start=frozenset({2}), dies=frozenset({3}))
    found = await world.tuner(monkeypatch, 200).run()
    assert found.chosen is not None and found.chosen.candidate == candidate(4)
    assert found.out == {
        candidate(2): "its engine could not start: no memory",
        candidate(3): "its engine process ended while it was measured",
    }
    assert not {row.candidate for row in found.rows} & set(found.out)
    assert world.listener.out == list(found.out.items()), "it is said when it happens"


async def test_nobody_can_serve_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([100.0, 200.0], dies=frozenset({0, 1}))
    found = await world.tuner(monkeypatch, 60).run()
    assert found.chosen is None and len(found.out) == 2 and not found.rows and not found.frontier


async def test_the_present_settings_must_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotMeasured, match="the present settings cannot serve this load: its engine could not start"):
        await World([100.0, 200.0], no_start=frozenset({0})).tuner(monkeypatch, 60).run()


async def test_too_few_seconds_say_how_many_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([float(100 + each) for each in range(20)], start=4)
    with pytest.raises(NotMeasured, match=r"12 seconds are too few: 2 candidates at least.*--seconds (\d+)") as refused:
        await world.tuner(monkeypatch, 12).run()
    enough = int(str(refused.value).rpartition(" ")[2])
    again = World([float(100 + each) for each in range(20)], start=4)
    found = await again.tuner(monkeypatch, enough).run()
    assert found.chosen is not None and again.now <= enough * 1.0001, "what is said is enough"


@pytest.mark.parametrize("at_once", [0.6, 0.4])
async def test_starts_that_take_longer_than_thought_leave_candidates_out(
    at_once: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what matters most was started first."""
    world = World([float(100 + each) for each in range(20)], start=2, at_once=at_once)
    found = await world.tuner(monkeypatch, 75).run()
    left = world.listener.rounds[0][1]
    assert world.listener.fields == [(20, 20, 5)] and world.listener.late == [20 - left]
    assert found.chosen is not None and found.chosen.candidate == candidate(left - 1) and world.now <= 75.01


async def test_slices_that_start_slower_than_thought_end_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where engines cannot be kept each slice starts one."""
    world = World([float(100 + each) for each in range(6)], start=2, kept=1)
    tuner = world.tuner(monkeypatch, 60)
    begins = world.listener.round_begins

    def slower(number: int, left: int, plan: Round) -> None:
        begins(number, left, plan)
        world.start = 12

    monkeypatch.setattr(world.listener, "round_begins", slower)
    found = await tuner.run()
    assert world.now <= 60 + 12 + world.listener.rounds[0][2].seconds and world.listener.late
    assert found.chosen is not None and len(found.rows) < 6


async def test_an_answer_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([100.0, 100.0])
    world.make = lambda rate, seconds: slice_of(0, 0)
    silent = slice_of(0, 0)
    silent.ended = 0
    world.make = lambda rate, seconds: silent
    with pytest.raises(NotMeasured, match="no answer came within"):
        await world.tuner(monkeypatch, 60).run()


async def test_what_was_measured_before_an_interruption_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([100.0, 300.0, 200.0, 50.0])
    tuner = world.tuner(monkeypatch, 100)

    class Interrupted(BaseException): ...

    original = world.listener.measured

    def interrupt(each: object, found: object) -> None:
        original(each, found)  # type: ignore[arg-type]
        if len(world.listener.slices) == 3:
            raise Interrupted

    monkeypatch.setattr(world.listener, "measured", interrupt)
    with pytest.raises(Interrupted):
        await tuner.run()
    found = tuner.outcome
    assert len(found.rows) == 3 and found.chosen is not None and found.chosen.candidate == candidate(1)
