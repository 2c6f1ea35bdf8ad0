"""This module makes the environment of a vLLM process: what it may import, where it listens, and its processors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from service.addresses import LOOPBACK, Place
from service.host import has_gpu, usable_cores

THREADS_BIND: Final = "VLLM_CPU_OMP_THREADS_BIND"
_ROOT: Final = Path(__file__).parents[3]


def vllm_environment(
    inherited: Mapping[str, str], data_dir: Path, ranks: int, cores: Sequence[int], place: Place = LOOPBACK
) -> dict[str, str]:
    """Returns the environment of a vLLM process with so many `ranks` on this host, which talk at `place`. Its
    PYTHONPATH is a directory that has this project's `service` alone: the libraries beside it are those of another
    interpreter. vLLM gets its core in that process, sends no reports to its makers, looks at no model hub, keeps its
    compiled code in the data directory, and on a CPU divides the `cores` among its ranks."""
    home = data_dir / "engines" / "vllm"
    return {
        "VLLM_LOGGING_LEVEL": "WARNING",
        **inherited,
        "PYTHONPATH": str(_library(home / "lib")),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(home / "cache"),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        THREADS_BIND: threads_bind(cores, ranks),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        **_network(place),
    }


def threads_bind(cores: Sequence[int], ranks: int) -> str:
    """Returns the processors of each rank of this host, as vLLM reads them: `0,1|2,3`. Ranks share cores where there
    are fewer cores than ranks."""
    share = max(1, len(cores) // ranks)
    bound = [cores[rank * share % len(cores) :][:share] for rank in range(ranks)]
    return "|".join(",".join(map(str, each)) for each in bound)


def threads_of_one(inherited: Mapping[str, str], cores: Sequence[int], python: Path) -> dict[str, str]:
    """Returns what vLLM sets for ranks that it starts as processes, and cannot set for a core in its own: the number of
    OpenMP threads; and where they have every core of the host, one on each, which takes one OpenMP library for all."""
    threads = {"OMP_NUM_THREADS": str(len(cores))}
    libraries = sorted(python.parent.parent.glob("lib/python*/site-packages/torch/lib/libgomp*.so*"))
    if has_gpu() or not libraries or len(cores) < usable_cores():
        return threads  # of several replicas each has a part of the cores, and all would sit on the same ones
    preloads = [each for each in (inherited.get("LD_PRELOAD"), str(libraries[0])) if each]
    return {**threads, "LD_PRELOAD": ":".join(preloads), "GOMP_CPU_AFFINITY": " ".join(map(str, cores))}


def _network(place: Place) -> dict[str, str]:
    """Returns the variables that keep vLLM's queues, gloo and NCCL at one address. NCCL finds its way on one host by
    itself."""
    at = {"VLLM_HOST_IP": place.address, "GLOO_SOCKET_IFNAME": place.interface}
    return at if place == LOOPBACK else {**at, "NCCL_SOCKET_IFNAME": place.interface}


def _library(library: Path) -> Path:
    """Returns a directory with a link to this project's `service`; makes it where it is missing or old."""
    library.mkdir(parents=True, exist_ok=True)
    link, ours = library / "service", _ROOT / "service"
    if not link.is_symlink() or link.readlink() != ours:
        fresh = library / f"service.{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(ours)
        fresh.replace(link)
    return library
