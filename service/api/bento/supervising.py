"""BentoML's supervisor, circus, kills a worker 30 s after SIGTERM. Here it waits for the end of the drain."""

from __future__ import annotations

import sys
from functools import partialmethod
from typing import Final

MARGIN_SECONDS: Final = 15.0
"""What engines and the database take to end behind the drain."""


def wait_for_drains(seconds: float) -> None:
    """Acts in the supervisor's process alone, which has loaded circus before it loads the service. The last answers
    drain at most `seconds`, and so long again what is no answer, such as the export of a version."""
    if circus := sys.modules.get("circus.watcher"):
        watcher = circus.Watcher
        watcher.__init__ = partialmethod(watcher.__init__, graceful_timeout=2 * seconds + MARGIN_SECONDS)
