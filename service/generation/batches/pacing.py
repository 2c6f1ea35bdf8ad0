"""Pacing decides when one more line of a batch begins, by what clients' requests leave over of the engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from service.deployments.deployments import Deployments
from service.generation.answers import Answers

LOOK_SECONDS: Final = 0.02
"""How long a line waits at most for the next look at the server."""
QUIET_PACE: Final = 0.004
"""Seconds from one line's begin to the next. A line holds the event loop for about 10 ms in all, in pieces."""
CLIENTS_PACE: Final = 0.1
"""The same while clients are there: their requests and tokens come through the same event loop."""
BESIDE_CLIENTS: Final = 1 / 32
"""The share of an engine's `max_num_seqs` that lines may take while clients are there."""
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


@dataclass(frozen=True, slots=True)
class Moment:
    """What a look sees. `max_num_seqs` is that of one engine. `quiet_seconds` is the time since a client's request was
    last in progress, `begun_seconds` that since a line began; `longest_backlog` is the most seconds of a backlog beside
    which lines begin."""

    load: Load
    in_flight: int
    max_num_seqs: int
    longest_backlog: float
    quiet_seconds: float
    begun_seconds: float


def wait_seconds(now: Moment) -> float:
    """Returns the seconds until the next look: 0 where one more line may begin now. Lines take half of an
    engine's `max_num_seqs` at most."""
    load, is_quiet = now.load, now.quiet_seconds >= QUIET_SECONDS
    if load.waiting or load.free_blocks < LEAST_FREE or load.backlog_seconds > now.longest_backlog:
        return LOOK_SECONDS
    share = 0.5 if is_quiet else BESIDE_CLIENTS
    if now.in_flight >= max(1, int(now.max_num_seqs * share)):
        return LOOK_SECONDS
    pace = QUIET_PACE if is_quiet else CLIENTS_PACE
    return min(LOOK_SECONDS, max(0.0, pace - now.begun_seconds))


def load_of(deployments: Deployments, answers: Answers) -> Load:
    """Returns the load of this moment: of several engines the busiest counts."""
    engines = [each.engine for each in deployments.all()]
    stats = [engine.stats for engine in engines]
    replicas = [replica.stats for engine in engines for replica in engine.replicas]
    shares = [(each.blocks_free + each.blocks_cached) / each.blocks_total for each in replicas if each.blocks_total]
    return Load(
        answers.admission.in_progress,
        sum(each.waiting for each in stats),
        min(shares, default=1.0),
        max((each.backlog_seconds for each in stats), default=0.0),
    )
