"""Agreement says for how long two answers are the same."""

from __future__ import annotations

from collections.abc import Sequence


def agreement(first: Sequence[int], second: Sequence[int]) -> float:
    """Returns the share of the longer answer before the two differ; 1 only if both are the same to the end."""
    pairs = zip(first, second, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    return same / max(1, len(first), len(second))
