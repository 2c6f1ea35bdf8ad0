"""Progress says how far long work is while the work goes on."""

from collections.abc import Callable

Progress = Callable[[float, str], None]
"""(fraction of the whole, 0 to 1; what is being done)"""


def silent(fraction: float, what: str) -> None:
    """Takes reports of progress and drops them."""


def part(progress: Progress, start: float, end: float) -> Progress:
    """Returns the progress for a part of the work, whose 0 to 1 is `start` to `end` of the whole."""
    return lambda fraction, what: progress(start + (end - start) * fraction, what)
