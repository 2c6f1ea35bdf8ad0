"""What is borne of an engine process before it is killed, started again or given up. Numbers only."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    hang_seconds: float = 60.0
    """Without a word while work is outstanding, until the process is killed; one step must be shorter."""
    load_seconds: float = 900.0
    """From its start until it is ready."""
    max_deaths: int = 5
    """So many within `window_seconds`, and the engine has failed."""
    window_seconds: float = 60.0
    backoff_seconds: float = 0.1
    """Before the first restart; doubled for every further death in the window."""
    max_fruitless_replays: int = 2
    """Replays of one request with no output in between, until that request fails alone."""


DEFAULT_POLICY: Final = RestartPolicy()


class Deaths:
    """The deaths of one engine within the window."""

    def __init__(self, restart_policy: RestartPolicy) -> None:
        self._restart_policy = restart_policy
        self._times: deque[float] = deque()

    def note(self, now: float) -> float | None:
        """It died. Seconds to wait before the next start, or None when there should be none."""
        self._times.append(now)
        while self._times[0] < now - self._restart_policy.window_seconds:
            self._times.popleft()
        if len(self._times) >= self._restart_policy.max_deaths:
            return None
        return float(self._restart_policy.backoff_seconds * 2 ** (len(self._times) - 1))
