"""The restart policy says when an engine process is killed, and when it is started again. The watch tells a long step
from a hang by the process's frames and heartbeats. Both hold numbers only: they kill nothing, and know no processes,
requests or clocks.

A process that is ready hangs if no frame came for `hang_seconds`, or if one step has run for many times its forecast.
A process without work beats too, so one that hangs is replaced before the next request comes. Silence counts only while
this process listens. If its own event loop stood still, frames may lie unread in the socket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from service.engine.protocol.messages import Heartbeat


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The limits of an engine. An engine that served once is started again as long as it is wanted: there is no last
    try."""

    hang_seconds: float = 60.0
    """A process that is ready is killed after this time without outputs and heartbeats."""
    step_forecast_factor: float = 20.0
    """A step may take this multiple of its forecast, and at least `hang_seconds`. Then the process is killed."""
    unforecast_step_seconds: float = 900.0
    """The same limit for a step of an engine that has not measured enough steps for a forecast."""
    load_seconds: float = 900.0
    """The limit from the start of a process until it is ready."""
    backoff_seconds: float = 0.1
    """The pause before the first restart. It doubles for every death that service has not made up for."""
    max_backoff_seconds: float = 10.0
    forgiving_seconds: float = 2.0
    """This time of service makes up for one death."""
    wait_seconds: float = 300.0
    """Longest time that a request waits for an engine that is being started again."""
    max_suspected_crashes: int = 3
    """A request ends at its third suspected crash in a row, if it had the crashed process for itself (`streams`)."""
    max_suspected_kills: int = 6
    """The same limit for kills from outside (SIGKILL by an operator, or by the kernel without memory)."""
    poison_seconds: float = 600.0
    """The content of such a request is refused for this time. Each further offence doubles it."""
    max_poison_seconds: float = 86_400.0


DEFAULT_POLICY: Final = RestartPolicy()


class DeathKind(StrEnum):
    CRASHED = "crashed"  # a signal of its own (SIGSEGV, SIGABRT, ..), or an exception in a step
    HUNG = "hung"  # the supervisor killed it
    KILLED = "killed"  # SIGKILL that did not come from the supervisor


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process that was ready. `cause` is a clause, for example "it ended with exit code 1"."""

    kind: DeathKind
    cause: str


class Backoff:
    """The pause before a restart. It is exponential in the deaths that service has not made up for."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._deaths = 0.0
        self._most = 1 + math.log2(max(1.0, policy.max_backoff_seconds / policy.backoff_seconds))

    def died(self) -> None:
        self._deaths = min(self._deaths + 1, self._most)

    def served(self, seconds: float) -> None:
        self.forgive(seconds / self._policy.forgiving_seconds)

    def forgive(self, deaths: float) -> None:
        """Counts this many deaths less: a request was to blame for them, or service has made up for them."""
        self._deaths = max(0.0, self._deaths - deaths)

    @property
    def seconds(self) -> float:
        """The pause, at most `max_backoff_seconds`."""
        seconds = self._policy.backoff_seconds * 2 ** max(0.0, self._deaths - 1)
        return float(min(seconds, self._policy.max_backoff_seconds))


class HangWatch:
    """Watches one process after the other. Call `look` every `interval` seconds."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.interval = min(1.0, policy.hang_seconds / 4)
        self._policy = policy
        self.silence = 0.0
        """Seconds without a frame from a process that is ready, as `look` saw them."""
        self._looked_at: float | None = None
        self._overrun = ""
        self._reason = ""

    def heard(self) -> None:
        """Notes a frame."""
        self.silence = 0.0
        self._overrun = ""

    def beat(self, heartbeat: Heartbeat) -> None:
        """Notes a heartbeat. Call after `heard`."""
        seconds, forecast = heartbeat.step_seconds, heartbeat.forecast_seconds
        if seconds > self._most_seconds(forecast):
            expected = "no forecast" if forecast is None else f"a forecast of {forecast:.1f} s"
            self._overrun = f"was in one step for {seconds:.0f} s, with {expected}"

    def look(self, now: float, is_ready: bool) -> str:
        """Returns why the process must be killed, as a clause; "" if it must not."""
        elapsed = 0.0 if self._looked_at is None else min(now - self._looked_at, 2 * self.interval)
        self._looked_at = now
        self.silence = self.silence + elapsed if is_ready else 0.0
        if self.silence > self._policy.hang_seconds:
            self._reason = f"said nothing for {self._policy.hang_seconds:g} s"
        elif self._overrun and is_ready:
            self._reason = self._overrun
        return self._reason

    def take_reason(self) -> str:
        """Returns the finding of `look` for the dead process, or "". Clears it for the next process."""
        reason, self._reason = self._reason, ""
        self.heard()
        return reason

    def _most_seconds(self, forecast: float | None) -> float:
        policy = self._policy
        if forecast is None:
            return max(policy.hang_seconds, policy.unforecast_step_seconds)
        return max(policy.hang_seconds, policy.step_forecast_factor * forecast)
