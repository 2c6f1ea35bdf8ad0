"""The room of the lane is how many lines of batches may be in flight, by what clients' requests leave over. It is
arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BESIDE_CLIENTS: Final = 1 / 32
"""The share of an engine's seats that lines may take while clients are there."""
QUIET_SECONDS: Final = 1.0
"""Clients count as there for so long after their last request: the next one would find all lines running."""
LEAST_FREE: Final = 0.25
"""The share of KV blocks that lines leave free or reusable."""


@dataclass(frozen=True, slots=True)
class Load:
    """`clients` are the sequences of clients' requests in progress, `waiting` those in an engine without a first step,
    lines included. `free_blocks` is the least share of an engine's KV blocks that no sequence holds;
    `backlog_seconds` is the longest forecast until the clients' prompts have their first tokens."""

    clients: int = 0
    waiting: int = 0
    free_blocks: float = 1.0
    backlog_seconds: float = 0.0


def may_begin(load: Load, in_flight: int, seats: int, longest_backlog: float, quiet_seconds: float) -> bool:
    """Returns whether one more line may begin now beside those in flight: one at a look, since to read a line holds the
    event loop. `seats` are those of one engine: lines take half of them at most. `quiet_seconds` is the time since a
    client's request was last in progress."""
    if load.waiting or load.free_blocks < LEAST_FREE or load.backlog_seconds > longest_backlog:
        return False
    share = 0.5 if quiet_seconds >= QUIET_SECONDS else BESIDE_CLIENTS
    return in_flight < max(1, int(seats * share))
