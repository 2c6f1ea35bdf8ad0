"""The order of rounds of two kinds that are compared in pairs."""

from __future__ import annotations

from collections.abc import Iterator


def in_turns(pairs: int) -> Iterator[bool]:
    """Yields the kind of each round: without, with, with, without, … So a machine that slows down slows both alike."""
    for number in range(2 * pairs):
        yield (number // 2 + number) % 2 == 1
