"""A window's percentiles beside sorted lists: whatever was observed, and whenever."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from service.observability.metrics.recent import DIGITS, Window, percentile

SECONDS = st.floats(0, 100, allow_nan=False)


@given(st.lists(SECONDS, min_size=1, max_size=200), st.integers(1, 100))
def test_a_percentile_is_the_least_that_so_many_do_not_exceed(values: list[float], percent: int) -> None:
    found = percentile(sorted(values), percent)

    def share(value: float) -> Fraction:
        return Fraction(sum(each <= value for each in values), len(values))

    assert found in values
    assert share(found) >= Fraction(percent, 100)
    assert all(share(value) < Fraction(percent, 100) for value in values if value < found)


@given(
    st.lists(st.tuples(st.floats(0, 5), SECONDS), max_size=80),
    st.floats(0.1, 20),
    st.integers(1, 40),
    st.lists(st.integers(0, 79), max_size=5),
)
def test_a_window_is_the_list_of_its_last_seconds(
    added: list[tuple[float, float]], seconds: float, most: int, looks: list[int]
) -> None:
    """Looking at it in between changes nothing."""
    window, now, every = Window(seconds, most), 0.0, list[tuple[float, float]]()
    for number, (pause, value) in enumerate(added):
        now += pause
        window.add(now, value)
        every.append((now, value))
        if number in looks:
            window.percentiles(now)
    kept = sorted(value for at, value in every[-most:] if at > now - seconds)
    expected = {f"p{percent}": round(percentile(kept, percent), DIGITS) if kept else None for percent in (50, 95)}
    assert window.percentiles(now) == {**expected, "count": len(kept)}
