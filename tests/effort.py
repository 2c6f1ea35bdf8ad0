"""How often random tests draw, and how many cases parametrized ones have: all of both in `make nightly`, which sets
THOROUGH."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any, Final, TypeVar

IS_THOROUGH: Final = bool(os.environ.get("THOROUGH"))


T = TypeVar("T")


def usual(cases: Iterable[T], *some: T) -> list[T]:
    """Returns the cases of a parametrized test: `some` of them, and all when the run is thorough. Raises ValueError for
    one that is none of them."""
    everything = list(cases)
    if unknown := [case for case in some if case not in everything]:
        raise ValueError(f"no cases: {unknown}")
    return everything if IS_THOROUGH else list(some)


def drawn(usual: int, thorough: int) -> int:
    """Returns how many rounds or examples a test runs."""
    return thorough if IS_THOROUGH else usual


def meeting(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns combinations of a value of each axis: enough of them that any two values of two axes meet in one, and all
    when the run is thorough."""
    everything = list(product(*axes))
    return everything if IS_THOROUGH else [everything[at] for at in _pairs(*map(len, axes))]


def _pairs(*sizes: int) -> list[int]:
    """Returns the numbers of combinations that cover all pairs; each next one has the most pairs that none had."""
    pairs = [frozenset(combinations(enumerate(places), 2)) for places in product(*map(range, sizes))]
    chosen, missing = [], frozenset[Any]().union(*pairs)
    while missing:
        chosen.append(max(range(len(pairs)), key=lambda at: len(pairs[at] & missing)))
        missing -= pairs[chosen[-1]]
    return sorted(chosen)
