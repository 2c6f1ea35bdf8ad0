"""The ranks are the processes of vLLM's that share a model on this host. This module ends an engine with any of them,
and says what memory they hold and what their KV cache may take."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, Protocol

from service.engine.protocol.config import EngineConfig
from service.engine.vllm.mapping import num_ranks
from service.host import available_memory

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


_MAX_CPU_CACHE: Final = 4 << 30
_CACHE_SHARE: Final = 0.4
_LEAST_CPU_CACHE: Final = 1 << 26


def rank_cache_bytes(config: EngineConfig, *, is_cpu: bool) -> int:
    """Returns the bytes of each rank's part of the KV cache; 0 lets vLLM choose, by what a GPU has free."""
    ranks = num_ranks(config)
    if config.kv_cache_bytes or not is_cpu:
        return config.kv_cache_bytes // ranks
    local_ranks = ranks // config.options.get("nodes", 1)
    free = int(_CACHE_SHARE * (available_memory() - config.promised_bytes))
    return max(_LEAST_CPU_CACHE, min(_MAX_CPU_CACHE, free) // local_ranks)


def resident_bytes() -> int:
    """Returns the memory of this process and of its ranks; pages that they share count in each."""
    pids = [os.getpid(), *(each.pid for each in multiprocessing.active_children() if each.pid)]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE")
