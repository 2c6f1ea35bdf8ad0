"""The objective: which candidate is the better, with limits and without, and the frontier."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from service.evaluation.scenarios.figures import Figures
from service.evaluation.tuning.field import Candidate
from service.evaluation.tuning.objective import Slice, broken, excess, figures, frontier, judged, order, ratio
from service.evaluation.tuning.outcome import outcome
from tests.tuning import OPEN, candidate, scenario, slice_of

A, B, C = (candidate(number) for number in range(3))
RATES = st.lists(st.floats(1, 1e5), min_size=1, max_size=12)


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


POINTS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=12)


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
