"""This module holds what load tests of servers share: the order of rounds of two kinds that are compared in pairs, the
processor time that a server takes for one, and an end that takes the servers along."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import psutil


def in_turns(pairs: int) -> Iterator[bool]:
    """Yields the kind of each round: without, with, with, without, … So a machine that slows down slows both alike."""
    for number in range(2 * pairs):
        yield (number // 2 + number) % 2 == 1


def processor_seconds(pid: int, without: str = "") -> float:
    """Returns what a server's processes have taken, but for those with `without` among their words, if there is one."""
    server = psutil.Process(pid)
    family = [server, *server.children(recursive=True)]
    if without:  # PostgreSQL's processes have empty words
        family = [each for each in family if without not in each.cmdline()]
    return sum(times.user + times.system for times in (each.cpu_times() for each in family))


def end_on_sigterm() -> None:
    """From now on SIGTERM is a KeyboardInterrupt, as Ctrl-C is: `finally` and `with` end the servers that were started.
    In other threads than the main one, which cannot set signals, nothing changes."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
