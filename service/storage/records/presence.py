"""Presence is who shares the records: a server or a command, its heartbeat, and what it says of itself."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

BEAT_SECONDS: Final = 1.0
LIVING_SECONDS: Final = 6.0
"""How old a heartbeat may be before its leases hold nothing back any more."""
MOST_CLOCK_SECONDS: Final = 2.0
"""How far an instance's clock may be from the database's: expiry and histories are told in it."""
SERVER: Final = "server"
Role = Literal["server", "command"]


@dataclass(frozen=True, slots=True)
class Identity:
    """One process that shares the records. Its id is another one after each start."""

    role: Role
    software: str
    id: str = field(default_factory=lambda: f"i-{secrets.token_hex(6)}")


@dataclass(frozen=True, slots=True)
class Instance:
    """A server as others see it: `age` in seconds since its last heartbeat, `state` the JSON that it told of itself."""

    id: str
    software: str
    started_at: datetime
    age: float
    state: str

    @property
    def is_living(self) -> bool:
        return self.age <= LIVING_SECONDS


def clock_error(theirs: float, sent: float, received: float) -> float:
    """Returns how many seconds this clock is ahead of the database's at least, negative where it is behind: the
    database read its clock between `sent` and `received`."""
    if theirs < sent:
        return sent - theirs
    return min(0.0, received - theirs)
