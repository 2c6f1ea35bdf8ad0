"""The watch tells a long step from a hang by an engine process's frames and heartbeats. It kills nothing itself.

A process that owes an answer hangs if no frame came for `hang_seconds`, or if one step has run for many times its
forecast. Silence counts only while this process listens. If its own event loop stood still, frames may lie unread in
the socket.
"""

from __future__ import annotations

from service.engine.client.restart_policy import RestartPolicy
from service.engine.protocol.messages import Heartbeat


class Watch:
    """Watches one process after the other. Call `look` every `interval` seconds."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.interval = min(1.0, policy.hang_seconds / 4)
        self._policy = policy
        self._silence = 0.0
        self._looked_at: float | None = None
        self._overrun = ""
        self._reason = ""

    def heard(self) -> None:
        """Notes a frame."""
        self._silence = 0.0
        self._overrun = ""

    def beat(self, heartbeat: Heartbeat) -> None:
        """Notes a heartbeat. Call after `heard`."""
        seconds, forecast = heartbeat.step_seconds, heartbeat.forecast_seconds
        if seconds > self._most_seconds(forecast):
            told = "no forecast" if forecast is None else f"a forecast of {forecast:.1f} s"
            self._overrun = f"was in one step for {seconds:.0f} s, with {told}"

    def look(self, now: float, owes_answer: bool) -> str:
        """Returns why the process must be killed, as a clause; "" if it must not."""
        elapsed = 0.0 if self._looked_at is None else min(now - self._looked_at, 2 * self.interval)
        self._looked_at = now
        self._silence = self._silence + elapsed if owes_answer else 0.0
        if self._silence > self._policy.hang_seconds:
            self._reason = f"said nothing for {self._policy.hang_seconds:g} s"
        elif self._overrun and owes_answer:
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
