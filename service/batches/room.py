"""The room of the lane is how many lines of batches may be in flight, by what clients' requests leave over. It is
arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BESIDE_CLIENTS: Final = 0.0625
"""The share of an engine's seats that lines may take while a client's request is in progress."""
RAMP: Final = 4
"""The most lines that begin at one look: more prompts at once would lie before a client's next one."""
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


def may_begin(load: Load, in_flight: int, seats: int, longest_backlog: float) -> int:
    """Returns how many lines may begin now beside those in flight. `seats` are those of one engine: lines take half of
    them at most."""
    if load.waiting or load.free_blocks < LEAST_FREE or load.backlog_seconds > longest_backlog:
        return 0
    most = max(1, int(seats * BESIDE_CLIENTS)) if load.clients else max(1, seats // 2)
    return max(0, min(RAMP, most - in_flight))
