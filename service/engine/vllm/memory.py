"""The memory of a vLLM engine on this host: what its KV cache may take, and what its processes hold."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Final

from service.engine.protocol.messages import EngineConfig
from service.engine.vllm.mapping import num_ranks
from service.host import available_memory

_MAX_CPU_CACHE: Final = 4 << 30
_CACHE_SHARE: Final = 0.4
_LEAST_CPU_CACHE: Final = 1 << 26


def rank_cache_bytes(config: EngineConfig, *, is_cpu: bool) -> int:
    """Returns the bytes of each rank's part of the KV cache; 0 lets vLLM choose, by what a GPU has free."""
    ranks = num_ranks(config)
    if config.kv_cache_bytes or not is_cpu:
        return config.kv_cache_bytes // ranks
    here = ranks // config.options.get("nodes", 1)
    free = int(_CACHE_SHARE * (available_memory() - config.promised_bytes))
    return max(_LEAST_CPU_CACHE, min(_MAX_CPU_CACHE, free) // here)


def resident_bytes() -> int:
    """Returns the memory of this process and of its ranks; pages that they share count in each."""
    here = [os.getpid(), *(each.pid for each in multiprocessing.active_children() if each.pid)]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) for pid in here)
    return pages * os.sysconf("SC_PAGE_SIZE")
