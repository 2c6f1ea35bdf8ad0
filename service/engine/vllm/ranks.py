"""This module ends an engine with any of its ranks, the processes of vLLM's that share a model on this host."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Final, Protocol

_EXIT_SECONDS: Final = 2.0


class End(Protocol):
    def __call__(self, cause: str, *, killed: bool = False) -> object: ...


def watch(end: End) -> None:
    """Calls `end` with the cause as soon as one of this process's ranks has ended. Call it when they run."""
    ranks = multiprocessing.active_children()
    if ranks:
        threading.Thread(target=_watch, args=(ranks, end), name="ranks", daemon=True).start()


def _watch(ranks: list[BaseProcess], end: End) -> None:
    ended = wait([rank.sentinel for rank in ranks])[0]
    rank = next(each for each in ranks if each.sentinel == ended)
    rank.join(_EXIT_SECONDS)
    code = rank.exitcode
    for each in ranks:
        each.kill()
    end(f"the rank {rank.name} ended with exit code {code}", killed=code == -signal.SIGKILL)
