"""Counts of what owners have used, as values: by hour and model for reading, by minute and day for quotas. This module
knows no database and no quota."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 24 * HOUR
WINDOWS: Final = (MINUTE, DAY)
"""The periods of quotas. Their buckets name no model."""
KEPT: Final = {MINUTE: 2 * MINUTE, DAY: 2 * DAY, HOUR: 90 * DAY}
"""How long a bucket is kept after its start, by its seconds."""
COUNTED: Final = ("requests", "refused", "prompt_tokens", "cached_tokens", "completion_tokens")
TOKENS: Final = ("prompt_tokens", "completion_tokens")
"""What a quota counts; cached tokens are among those of the prompt."""


class Bucket(NamedTuple):
    """What is counted together: `seconds` from `start` on, seconds since 1970 in UTC. `model` is `name:version`, ""
    where none was chosen."""

    owner: str
    seconds: int
    start: int
    model: str = ""

    @staticmethod
    def at(moment: float, owner: str, seconds: int, model: str = "") -> Bucket:
        """Returns the bucket that a moment is in."""
        return Bucket(owner, seconds, int(moment // seconds) * seconds, model)

    def is_kept(self, now: float) -> bool:
        return self.start + KEPT[self.seconds] > now


Counts = Mapping[str, int]
"""By the names of COUNTED; what is absent is 0."""


@dataclass(frozen=True, slots=True)
class Used:
    """What an owner has used of a model in the hour or day from `start` on."""

    start: datetime
    owner: str
    model: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which usage: of hours that begin from `since` until before `until`, summed over `seconds`. `model` is a name
    or `name:version`; None is all."""

    since: int
    until: int
    seconds: int
    owner: str | None = None
    model: str | None = None
