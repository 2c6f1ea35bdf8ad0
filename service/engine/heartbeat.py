"""The heartbeat: a thread of the engine process says that the process lives while a long step runs.

The thread needs the interpreter's lock: it falls silent where native code keeps the lock for ever, or where the process
is frozen. While there is nothing to do the thread sleeps without a timer. Knows no requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from service.engine.messages import Heartbeat


class Pulse:
    """`begin` and `end` are called around each step by the engine's thread, and cost nothing to speak of."""

    def __init__(self, send: Callable[[Heartbeat], None], seconds: float, forecast: Callable[[], float | None]) -> None:
        """`send` is called by the thread about every so many `seconds`, and `forecast` with it during a step: the
        seconds that the step takes, or None."""
        self._send = send
        self._seconds = seconds
        self._forecast = forecast
        self._began: float | None = None
        self._busy = threading.Event()
        self._resting = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin(self) -> None:
        """A step begins."""
        self._began = time.monotonic()

    def end(self) -> None:
        self._began = None

    def work(self) -> None:
        """There is something to do: heartbeats from now on."""
        if not self._busy.is_set():
            self._resting.clear()
            self._busy.set()

    def rest(self) -> None:
        """There is nothing to do: no heartbeats."""
        if self._busy.is_set():
            self._busy.clear()
            self._resting.set()

    def _run(self) -> None:
        try:
            while True:
                self._busy.wait()
                if not self._resting.wait(self._seconds):
                    self._send(self._beat())
        except EOFError:  # nobody listens any more; the engine's thread finds that out by itself
            return

    def _beat(self) -> Heartbeat:
        began = self._began
        if began is None:
            return Heartbeat(0.0, None)
        return Heartbeat(time.monotonic() - began, self._forecast())
