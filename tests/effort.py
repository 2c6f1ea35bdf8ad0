"""How often random tests draw: `make nightly` sets THOROUGH and draws more than `make test`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, TypeVar

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
