"""A load test that is told to end takes what it started with it."""

from __future__ import annotations

import signal
import threading


def end_on_sigterm() -> None:
    """From now on SIGTERM is a KeyboardInterrupt, as Ctrl-C is: `finally` and `with` end the servers that were started.
    In other threads than the main one, which cannot set signals, nothing changes."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
