"""A usual run leaves out cases of large parametrized tests, and every two values still meet."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests import effort

AXES = ("abcd", "xyz", (1, 2, 3), "?!")


def test_any_two_values_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "IS_THOROUGH", False)
    cases = effort.meeting(*AXES)
    for one, other in combinations(range(len(AXES)), 2):
        assert {(case[one], case[other]) for case in cases} == set(product(AXES[one], AXES[other]))
    assert len(cases) < 20 and len(set(cases)) == len(cases)


def test_all_meet_in_a_thorough_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "IS_THOROUGH", True)
    assert len(effort.meeting(*AXES)) == 4 * 3 * 3 * 2


def test_what_is_no_case_is_refused() -> None:
    with pytest.raises(ValueError, match="no cases"):
        effort.usual("abc", "d")
