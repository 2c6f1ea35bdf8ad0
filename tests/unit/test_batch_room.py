"""Lines of batches begin in the room that clients leave, and not beside anything that waits."""

from __future__ import annotations

import pytest

from service.batches.room import QUIET_SECONDS, Load, may_begin


def most(load: Load, quiet_seconds: float = 60.0, seats: int = 64) -> int:
    """How many lines are in flight when no more begin."""
    return next(n for n in range(1000) if not may_begin(load, n, seats, 0.1, quiet_seconds))


@pytest.mark.parametrize(
    ("load", "lines"),
    [
        (Load(), 32),
        (Load(waiting=1), 0),
        (Load(free_blocks=0.2), 0),
        (Load(free_blocks=0.3), 32),
        (Load(backlog_seconds=0.2), 0),
    ],
)
def test_what_is_left_over(load: Load, lines: int) -> None:
    assert most(load) == lines


def test_clients_are_there_for_a_while_after_their_last_request() -> None:
    assert most(Load(clients=1), quiet_seconds=0.0) == most(Load(), quiet_seconds=QUIET_SECONDS / 2) == 2
    assert most(Load(), quiet_seconds=QUIET_SECONDS) == 32
    assert most(Load(clients=1), 0.0, seats=1) == 1, "a batch is never held for ever"
