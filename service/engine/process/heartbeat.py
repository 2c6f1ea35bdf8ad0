"""The heartbeat is a thread of the engine process. It says that the process lives while a long step runs.

The thread needs the interpreter's lock. So it falls silent if native code keeps the lock forever, or if the process is
frozen. While there is nothing to do, it beats half as often. It knows no requests.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn, Protocol

from service.engine.protocol.messages import Fatal, FromEngine, Heartbeat, Loading

_STANDSTILL: Final = 6
"""After so many intervals without a beat, where three are the most, this process stood still: no step is to blame."""


class Pulse:
    """Owns the heartbeat's thread. The engine's thread calls `begin` and `end` around each step; their cost is
    negligible."""

    def __init__(self, send: Callable[[Heartbeat], None], seconds: float, forecast: Callable[[], float | None]) -> None:
        """The thread calls `send` about every `seconds`, twice that while there is no work. During a step it also calls
        `forecast`, which returns the seconds that the step takes, or None."""
        self._send = send
        self._seconds = seconds
        self._forecast = forecast
        self._began: float | None = None
        self._woken = self._awake_since = 0.0
        self._busy = threading.Event()
        self._resting = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._woken = time.monotonic()
        self._thread.start()

    def begin(self) -> None:
        """Notes that a step begins."""
        self._began = time.monotonic()

    def end(self) -> None:
        self._began = None

    def work(self) -> None:
        """Begins to beat fast: there is work."""
        if not self._busy.is_set():
            self._resting.clear()
            self._busy.set()

    def rest(self) -> None:
        """Begins to beat slowly: there is no work."""
        if self._busy.is_set():
            self._busy.clear()
            self._resting.set()

    def _run(self) -> None:
        try:
            while True:
                is_due = not self._busy.wait(2 * self._seconds) or not self._resting.wait(self._seconds)
                self._wake(time.monotonic())
                if is_due:
                    self._send(self._beat())
        except EOFError:  # the socket is closed; the engine's thread finds that out by itself
            return

    def _wake(self, now: float) -> None:
        """Notes a time in which this thread did not run at all: the machine, or the process, stood still."""
        if now - self._woken > _STANDSTILL * self._seconds:
            self._awake_since = now
        self._woken = now

    def _beat(self) -> Heartbeat:
        began = self._began
        if began is None:
            return Heartbeat(0.0, None)
        return Heartbeat(time.monotonic() - max(began, self._awake_since), self._forecast())


class Frames(Protocol):
    def send(self, message: FromEngine) -> None: ...


class Report:
    """Any thread may call it."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames

    def __call__(self, phase: str, fraction: float) -> None:
        """Says how far the load is. Raises EOFError once nobody listens."""
        self._frames.send(Loading(phase, fraction))

    def end(self, cause: str, *, killed: bool = False) -> NoReturn:
        """Says why this process cannot go on, and ends it at once, also in the middle of a step. `killed`: something
        outside ended a part of it, so no request is to blame; then it ends by SIGKILL, as that part did."""
        with suppress(EOFError):
            self._frames.send(Fatal(cause))
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
