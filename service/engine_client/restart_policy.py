"""The restart policy says what an engine process may do before it is killed, and when it is started again.

Numbers only: nothing here knows processes, requests or clocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """An engine that served once is started again for as long as it is wanted: there is no last try."""

    hang_seconds: float = 60.0
    """Silence of a process that owes an answer: neither news nor a heartbeat. Then the process is killed."""
    step_forecast_factor: float = 20.0
    """One step may take so many times its forecast, and never less than `hang_seconds`. Then the process is killed."""
    unforecast_step_seconds: float = 900.0
    """The same for a step of an engine that has not measured enough steps to forecast one."""
    load_seconds: float = 900.0
    """From the start of a process until it is ready."""
    backoff_seconds: float = 0.1
    """Before the first restart; doubled for every death that is not made up for."""
    max_backoff_seconds: float = 10.0
    forgiving_seconds: float = 2.0
    """So long a time of service makes up for one death."""
    wait_seconds: float = 300.0
    """Longest time that a request waits for an engine that is being started again."""
    max_suspected_crashes: int = 3
    """A request that had a process for itself when it crashed ends where that was the third crash in a row that the
    request was suspected of (`streams`)."""
    max_suspected_kills: int = 6
    """The same where something outside killed the process (SIGKILL: an operator, or the kernel without memory)."""
    poison_seconds: float = 600.0
    """The content of a request that ended so is refused for this time; doubled each time that it comes back."""
    max_poison_seconds: float = 86_400.0


DEFAULT_POLICY: Final = RestartPolicy()


class DeathKind(StrEnum):
    CRASHED = "crashed"  # a signal of its own (SIGSEGV, SIGABRT, ..), or an exception in a step
    HUNG = "hung"  # the supervisor killed it
    KILLED = "killed"  # SIGKILL that did not come from the supervisor


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process that was ready. `cause` is a clause, as in "it ended with exit code 1"."""

    kind: DeathKind
    cause: str


class Backoff:
    """The pause before an engine is started again: exponential in the deaths that service has not made up for."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._deaths = 0.0
        self._most = 1 + math.log2(max(1.0, policy.max_backoff_seconds / policy.backoff_seconds))

    def died(self) -> None:
        self._deaths = min(self._deaths + 1, self._most)

    def served(self, seconds: float) -> None:
        self.forgive(seconds / self._policy.forgiving_seconds)

    def forgive(self, deaths: float) -> None:
        """Count so many deaths less: a request was to blame for them, or time has made up for them."""
        self._deaths = max(0.0, self._deaths - deaths)

    @property
    def seconds(self) -> float:
        """Never more than `max_backoff_seconds`."""
        seconds = self._policy.backoff_seconds * 2 ** max(0.0, self._deaths - 1)
        return float(min(seconds, self._policy.max_backoff_seconds))
