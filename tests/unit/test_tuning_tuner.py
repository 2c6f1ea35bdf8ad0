"""The tuner: near the best of its field within its seconds, and honest about what it could not measure; and which of
two candidates is the better. No engines, and a clock that moves only when something is done."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.evaluation.scenarios.figures import Figures, NotMeasured
from service.evaluation.tuning.field import Candidate
from service.evaluation.tuning.halving import Round, counts
from service.evaluation.tuning.objective import Slice, broken, excess, figures, frontier, judged, order, ratio
from service.evaluation.tuning.outcome import outcome
from tests.tuning import OPEN, World, candidate, scenario, slice_of

SLICE = 15.0
"""Seconds that a full grid gives each candidate."""
RATES = st.lists(st.floats(1, 1e5), min_size=1, max_size=12)
POINTS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=12)


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


A, B, C = (candidate(number) for number in range(3))


def test_more_tokens_are_better_in_a_closed_loop() -> None:
    assert order(scenario(), {A: {1: slice_of(90)}, B: {1: slice_of(110)}, C: {1: slice_of(100)}}) == [B, C, A]


def test_a_shorter_wait_is_better_in_an_open_loop() -> None:
    slow, quick = slice_of(200, e2e=80), slice_of(100, e2e=40)
    assert order(scenario(OPEN), {A: {1: slow}, B: {1: quick}}) == [B, A]


def test_in_an_open_loop_who_does_not_keep_up_loses() -> None:
    quick = slice_of(100, e2e=10)
    quick.arrived = quick.ended * 2
    load = scenario(OPEN)
    assert order(load, {A: {1: quick}, B: {1: slice_of(100, e2e=500)}}) == [B, A]
    assert broken(load, {1: quick}) == ["the schedule's rate"] and not broken(scenario(), {1: quick})


def test_equal_ones_stay_in_the_order_of_the_field() -> None:
    same = {each: {1: slice_of(100)} for each in (B, A, C)}
    assert order(scenario(), same) == [B, A, C]


def test_limits_come_before_speed() -> None:
    held = scenario(ttft_p95_ms=20)
    fast, slow = slice_of(1000, ttft=21), slice_of(10, ttft=19)
    assert order(held, {A: {1: fast}, B: {1: slow}}) == [B, A]
    assert order(held, {A: {1: fast}, B: {1: slow}}, slack=1.25) == [A, B], "short slices say little of p95"
    near, far = slice_of(1, ttft=40), slice_of(99, ttft=41)
    assert order(held, {A: {1: far}, B: {1: near}}) == [B, A], "where none holds, the nearest"
    assert broken(held, {1: far}) == ["ttft_p95_ms"]


def test_more_is_better_of_rates_and_a_limit_of_zero_is_a_limit() -> None:
    assert excess(scenario(tokens_per_second=200), {1: slice_of(100)}) == 2
    failing = slice_of(100)
    failing.failed = 1
    assert excess(scenario(failed_ratio=0), {1: failing}) > 1e6
    assert excess(scenario(failed_ratio=0), {1: slice_of(100)}) == 1


def test_an_engine_that_answers_nobody_holds_nothing() -> None:
    silent = Slice(seconds=1.0, arrived=8)
    assert excess(scenario(ttft_p95_ms=1e9), {1: silent}) == float("inf")
    assert order(scenario(), {A: {1: silent}, B: {1: slice_of(1)}}) == [B, A]


def test_limits_of_servers_are_left_to_servers() -> None:
    held = scenario(refused_ratio=0.5, error_ratio=0, versions=2, send_delay_p99_ms=1, itl_p99_ms=9, failed_ratio=1)
    assert judged(held) == {"itl_p99_ms": 9, "failed_ratio": 1}
    found = outcome(held, A, {A: {1: slice_of(1)}}, [A], {})
    assert found.passed_over == ["error_ratio", "refused_ratio", "send_delay_p99_ms", "versions"]


@given(RATES, st.lists(st.floats(0.1, 10), min_size=1, max_size=4))
def test_a_machine_that_slows_down_between_passes_changes_nothing(rates: list[float], speeds: list[float]) -> None:
    each = [candidate(number) for number in range(len(rates))]
    measured = {
        one: {at: slice_of(rate * speed, seconds=100) for at, speed in enumerate(speeds)}
        for one, rate in zip(each, rates, strict=True)
    }
    ranked = [rates[one.max_num_seqs - 1] for one in order(scenario(), measured)]
    assert all(before >= after * 0.98 for before, after in pairwise(ranked))


def test_passes_that_one_of_them_missed_do_not_count() -> None:
    early, late = {1: slice_of(100), 2: slice_of(1)}, {1: slice_of(90)}
    assert order(scenario(), {A: early, B: late}) == [A, B]
    assert round(ratio(scenario().load, early, late) or 0, 3) == round(100 / 90, 3)
    assert ratio(scenario().load, {1: slice_of(1)}, {2: slice_of(1)}) is None


@given(POINTS)
def test_the_frontier_beats_all_others_and_none_of_its_own(points: list[tuple[int, int, int]]) -> None:
    found: dict[Candidate, Figures] = {
        candidate(number): {"tokens_per_second": rate, "ttft_p95_ms": ttft, "itl_p95_ms": itl}
        for number, (rate, ttft, itl) in enumerate(points)
    }

    def beats(one: Candidate, other: Candidate) -> bool:
        mine, theirs = points[one.max_num_seqs - 1], points[other.max_num_seqs - 1]
        return mine != theirs and mine[0] >= theirs[0] and mine[1] <= theirs[1] and mine[2] <= theirs[2]

    best = frontier(found)
    assert best and not any(beats(one, other) for one in best for other in best)
    assert all(any(beats(one, other) for one in best) for other in found.keys() - set(best))


def test_figures_of_nothing_are_none() -> None:
    found = figures([Slice()])
    assert found["tokens_per_second"] is found["failed_ratio"] is found["ttft_p95_ms"] is None
    two = figures([slice_of(100, seconds=1), slice_of(200, seconds=3)])
    assert two["tokens_per_second"] == 175 and two["requests_per_second"] == 10
