"""How often a draft model is right: judged by the tokens that came, forgotten slowly where nothing is drafted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.sequences.acceptance import Acceptance, OverallAcceptance


def judged(drafts: tuple[int, ...], came: list[int], times: int = 1) -> tuple[float, float]:
    overall = OverallAcceptance()
    acceptance = Acceptance(overall)
    for _ in range(times):
        acceptance.expect(drafts, 2)
        acceptance.judge([8, 9, *came])
    return acceptance.probability, overall.probability


def test_right_drafts_raise_it_and_the_first_wrong_one_lowers_it() -> None:
    start = OverallAcceptance().probability
    right, overall = judged((1, 2), [1, 2, 3])
    assert right > overall > start
    assert judged((5, 2), [1])[0] < start
    assert judged((1, 5, 3), [1, 2]) == judged((1, 5, 9, 9), [1, 2]), "what follows a wrong draft says nothing"


def test_a_sequence_that_ended_among_its_drafts_is_judged_as_far_as_it_came() -> None:
    assert judged((1, 2, 3), [1]) == judged((1,), [1])


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_it_is_a_share(rights: list[bool]) -> None:
    overall = OverallAcceptance()
    acceptance = Acceptance(overall)
    for right in rights:
        acceptance.expect((1,), 0)
        acceptance.judge([1 if right else 2])
        assert 0 < acceptance.probability < 1 and 0 < overall.probability < 1


def test_a_model_that_was_wrong_is_tried_again_after_a_while() -> None:
    overall = OverallAcceptance()
    acceptance, start = Acceptance(overall), overall.probability
    for _ in range(400):
        acceptance.expect((1,), 0)
        acceptance.judge([2])
    assert acceptance.probability < 0.01 and overall.probability < 0.01
    assert Acceptance(overall).probability == overall.probability, "a new sequence knows it"
    for _ in range(10_000):
        acceptance.judge([2])
    assert overall.probability == pytest.approx(start, rel=0.02)
    assert acceptance.probability == pytest.approx(start, rel=0.05)
