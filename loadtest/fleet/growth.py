"""Growth says what a fleet needs for so many turns a day, by arithmetic on unit costs, and which part ends first.

`CEILINGS` are what one of each shared part bears. They are round figures of ours, not measured here; the factor between
need and ceiling says in which order parts end, not the day on which they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from loadtest.fleet.chats import Habits
from loadtest.fleet.costs import UnitCosts

DAY = 86400.0
KEPT_DAYS = 30
"""As long as DOSIRAK_SESSIONS_TTL_SECONDS keeps a session."""
SCRAPE_SECONDS = 15
MOVES_A_DAY = 100
"""Of aliases, by people and rollouts."""
HEARTBEAT_SECONDS = 1
CEILINGS = {
    "connections": 500.0,
    "commits a second": 20e3,
    "WAL, bytes a second": 200e6,
    "sessions' tables, bytes": 4e12,
    "heartbeats a second": 5e3,
    "alias notices a day": 1e7,
    "scrapes, bytes a second": 50e6,
}


@dataclass(frozen=True, slots=True)
class Need:
    """Of one number of turns a day."""

    turns_a_day: float
    peak_turns: float
    instances: int
    engine_cores: float
    api_cores: float
    kv_bytes: float
    """Of the chats whose next turn comes within the mean pause."""
    shared: dict[str, float]
    """As CEILINGS has them."""

    @property
    def over(self) -> list[tuple[str, float]]:
        """Returns the shared parts that one of is too few, with how many times too small it is, the worst first."""
        factors = [(name, self.shared[name] / most) for name, most in CEILINGS.items()]
        return sorted(((name, factor) for name, factor in factors if factor > 1), key=lambda each: -each[1])


def need(turns_a_day: float, capacity: float, costs: UnitCosts, habits: Habits) -> Need:
    """`capacity` is the turns a second that one instance serves within the limit on first tokens. One instance more
    than those that are busy, so that one may be away."""
    peak = turns_a_day / DAY * (1 + habits.swing)
    instances = max(2, ceil(peak / capacity) + 1)
    api = costs.api.turn_seconds + costs.api.session_seconds + habits.answer * costs.api.event_seconds
    chat_tokens = habits.system + habits.turns * (habits.question + habits.answer)
    kept = peak * habits.pause * chat_tokens * costs.engine.kv_bytes_a_token
    shared = _shared(turns_a_day, peak, instances, costs)
    return Need(turns_a_day, peak, instances, peak / capacity * costs.engine.threads, peak * api, kept, shared)


def _shared(turns_a_day: float, peak: float, instances: int, costs: UnitCosts) -> dict[str, float]:
    database = costs.database
    assert database is not None, "unit costs without PostgreSQL say nothing about what is shared"
    return {
        "connections": float(instances * database.connections),
        "commits a second": peak * database.commits,
        "WAL, bytes a second": peak * database.wal_bytes,
        "sessions' tables, bytes": turns_a_day * KEPT_DAYS * database.turn_bytes,
        "heartbeats a second": instances / HEARTBEAT_SECONDS,
        "alias notices a day": float(instances * MOVES_A_DAY),
        "scrapes, bytes a second": instances * costs.api.scrape_bytes / SCRAPE_SECONDS,
    }
