"""Outages say what of a store fails now, in a sentence for people, and log each change once, however many calls fail.

    began ── again, again … ──> ended: with the first call that succeeds, after `quiet` seconds without a failure

A store has parts that fail alone: a full disk takes no writes and gives all reads. The module knows no store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

SESSIONS: Final = "session_database"
DATA: Final = "data_directory"
STORES: Final = (SESSIONS, DATA)
QUIET_SECONDS: Final = 5.0
"""One damaged page fails some calls and not others: these are no end."""
FORGOTTEN_SECONDS: Final = 60.0
"""A part that nobody uses since is not said to fail any more."""
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Part:
    sentence: str
    since: float
    last: float
    told: set[str] = field(default_factory=set)


class Outages:
    """The outages of one store, whose name begins the events of the log: `<store>_failed`, `<store>_back`."""

    def __init__(self, store: str, *, is_logged: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._is_logged = is_logged
        self._clock = clock
        self._parts: dict[str, _Part] = {}

    def began(self, part: str, sentence: str, reason: str, kind: str = "") -> None:
        """Tells of a failed call. `reason` is logged once for each `kind` of failure in an outage."""
        now = self._clock()
        known = self._parts.get(part)
        if known is None or now - known.last >= FORGOTTEN_SECONDS:
            known = self._parts[part] = _Part(sentence, now, now)
        known.sentence, known.last = sentence, now
        if kind not in known.told:
            known.told.add(kind)
            if self._is_logged:
                log.warning(f"{self._store}_failed", part=part, reason=reason)

    def ended(self, *parts: str, quiet: float = QUIET_SECONDS) -> None:
        """Tells of a call that succeeded, and so shows that these parts work."""
        now = self._clock()
        for part in parts:
            known = self._parts.get(part)
            if known is not None and now - known.last >= quiet:
                del self._parts[part]
                if self._is_logged:
                    log.info(f"{self._store}_back", part=part, seconds=round(now - known.since, 1))

    def is_failing(self) -> bool:
        return bool(self.sentences)

    @property
    def sentences(self) -> list[str]:
        """Returns what fails now, each once."""
        now = self._clock()
        failing = (each.sentence for each in tuple(self._parts.values()) if now - each.last < FORGOTTEN_SECONDS)
        return list(dict.fromkeys(failing))
