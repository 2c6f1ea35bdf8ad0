"""Lines of batches begin in the room that clients leave, and not beside anything that waits."""

from __future__ import annotations

import pytest

from service.generation.batches.pacing import (
    CLIENTS_PACE,
    LOOK_SECONDS,
    QUIET_PACE,
    QUIET_SECONDS,
    Load,
    Moment,
    wait_seconds,
)


def most(load: Load, quiet_seconds: float = 60.0, max_num_seqs: int = 64) -> int:
    """How many lines are in flight when no more begin."""
    moments = (Moment(load, n, max_num_seqs, 0.1, quiet_seconds, 60.0) for n in range(1000))
    return next(moment.in_flight for moment in moments if wait_seconds(moment))


def begins_after(load: Load, quiet_seconds: float) -> float:
    """How long after a line's begin the next one begins, to the millisecond."""
    paused = (milliseconds / 1000 for milliseconds in range(1000))
    return next(each for each in paused if not wait_seconds(Moment(load, 0, 64, 0.1, quiet_seconds, each)))


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
    assert most(Load(clients=1), 0.0, max_num_seqs=1) == 1, "a batch is never held for ever"


def test_lines_begin_at_a_pace() -> None:
    assert begins_after(Load(), 60.0) == QUIET_PACE
    assert begins_after(Load(), 0.1) == begins_after(Load(clients=3), 0.0) == CLIENTS_PACE
    waits = [wait_seconds(Moment(Load(clients=3), 0, 64, 0.1, 0.0, each / 1000)) for each in range(100)]
    assert max(waits) <= LOOK_SECONDS, "what the server does meanwhile is seen"
