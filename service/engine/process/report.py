"""A report is what an engine process says of itself while it is built, and at an end that no step sees."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NoReturn, Protocol

from service.engine.protocol.messages import Fatal, FromEngine, Loading


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
