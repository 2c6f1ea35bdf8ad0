"""Operators are what a profile measured, by name: calls, seconds and bytes of their own. This module compares profiles.

An operator's own seconds leave out the operators that it calls, so that the sum of all is the time of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Operator(msgspec.Struct, frozen=True):
    """`self_bytes` is the memory that it allocated itself; None where the profile did not look."""

    name: str
    calls: int
    self_seconds: float
    self_bytes: int | None = None


class Measured(msgspec.Struct, frozen=True):
    """The operators of a profile, and its steps."""

    operators: Sequence[Operator]
    steps: int

    def per_step(self) -> dict[str, tuple[float, float]]:
        """Returns seconds and calls a step, by name."""
        steps = max(1, self.steps)
        return {each.name: (each.self_seconds / steps, each.calls / steps) for each in self.operators}


class Difference(msgspec.Struct, frozen=True):
    """One operator of two profiles; 0 where it is not in one of them. The difference is b less a."""

    name: str
    a_seconds_per_step: float
    b_seconds_per_step: float
    difference_seconds_per_step: float
    a_calls_per_step: float
    b_calls_per_step: float


def differences(a: Measured, b: Measured) -> list[Difference]:
    """Returns every operator of the two, the largest difference first, slower or faster."""
    first, second = a.per_step(), b.per_step()
    found = []
    for name in sorted(first.keys() | second.keys()):
        (seconds, calls), (other_seconds, other_calls) = first.get(name, (0.0, 0.0)), second.get(name, (0.0, 0.0))
        found.append(Difference(name, seconds, other_seconds, other_seconds - seconds, calls, other_calls))
    return sorted(found, key=lambda each: -abs(each.difference_seconds_per_step))
