"""Halving: whatever the field and the costs, the rounds fit into the budget, shrink, and end with one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.evaluation.tuning.halving import MOST_PASSES, Costs, counts, kept_of, needed, next_round

COSTS = st.builds(Costs, st.floats(0, 20), st.floats(0.01, 30), st.integers(1, 100), st.floats(1, 16))
FIELD = st.integers(1, 300)


def run(field: int, seconds: float, costs: Costs) -> tuple[list[int], float]:
    """The candidates of each round, and the seconds that all rounds and the starts between them take."""
    left, started, spent, rounds = field, 0, 0.0, list[int]()
    while (plan := next_round(left, seconds - spent, costs, started)) is not None:
        missing = left - started if left <= costs.kept else left
        starting = missing * costs.start / (costs.at_once if left <= costs.kept else 1)
        spent += starting + left * plan.passes * plan.seconds
        rounds.append(left)
        assert 1 <= plan.passes <= MOST_PASSES and plan.seconds >= costs.least * 0.999
        assert plan.passes == 1 or left <= costs.kept, "another pass would start every engine again"
        if left <= 2:
            break
        started = min(kept_of(left), costs.kept)
        left = kept_of(left)
    return rounds, spent


@given(FIELD)
def test_fields_shrink_to_two(field: int) -> None:
    found = counts(field)
    assert found[0] == field and all(after < before for before, after in itertools.pairwise(found))
    assert found[-1] == min(field, 2) and kept_of(found[-1]) == 1


@given(FIELD, COSTS, st.floats(1, 3))
def test_enough_seconds_are_enough_for_every_round(field: int, costs: Costs, times: float) -> None:
    seconds = needed(field, costs) * times + 1e-6
    rounds, spent = run(field, seconds, costs)
    assert rounds == counts(field)
    assert spent <= seconds * 1.0001


@given(FIELD, COSTS, st.floats(0, 2000))
def test_the_budget_is_never_passed(field: int, costs: Costs, seconds: float) -> None:
    rounds, spent = run(field, seconds, costs)
    assert spent <= seconds * 1.0001 and rounds == counts(field)[: len(rounds)]


@given(FIELD, COSTS)
def test_more_candidates_need_more(field: int, costs: Costs) -> None:
    assert needed(field, costs) < needed(field + 1, costs)


@given(st.integers(2, 100), st.floats(1, 100))
def test_slices_grow_as_the_field_shrinks(field: int, times: float) -> None:
    costs = Costs(0.0, 1.0, 1000)
    seconds, left, before = needed(field, costs) * times, field, 0.0
    while plan := next_round(left, seconds, costs):
        assert plan.seconds * plan.passes >= before * 0.999
        before, seconds = plan.seconds * plan.passes, seconds - left * plan.passes * plan.seconds
        if left <= 2:
            break
        left = kept_of(left)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.5])
def test_too_little_is_no_round(seconds: float) -> None:
    assert next_round(4, seconds, Costs(0.0, 1.0, 10)) is None
