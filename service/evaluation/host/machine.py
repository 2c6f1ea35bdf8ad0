"""This module says what the host is: processor, kernels, memory, threads, disk, graphics driver and software.

It reads files of the kernel and imports no torch, so the API process shows the same at `/info` as `dosirak doctor`. It
knows no models and judges nothing.
"""

from __future__ import annotations

import os
import platform
import shutil
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec

from models import __version__
from service import host
from service.engine.runner.native.build import COMMAND, FEATURES, library_path, preferred
from service.environment import thread_environment
from service.settings import Settings

PROC: Final = Path("/proc")
SHOWN_FEATURES: Final = (
    "avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip
SHOWN_PACKAGES: Final = ("torch", "transformers", "bentoml", "huggingface_hub")


class Processor(msgspec.Struct, frozen=True):
    """`cores` are physical ones of the machine's, `usable_cores` those that this process may use (affinity, quota)."""

    name: str
    architecture: str
    cores: int
    usable_cores: int
    features: tuple[str, ...]


class Kernel(msgspec.Struct, frozen=True):
    """One level of the native kernels. `runs`: it is the one that engines use here; else `why` says why not."""

    level: str
    runs: bool
    why: str


class Memory(msgspec.Struct, frozen=True):
    """Bytes. `available` can still be allocated; `limit` is the control group's, null without one."""

    total: int
    available: int
    limit: int | None


class Threads(msgspec.Struct, frozen=True):
    """`engine`: threads of an engine; `variables`: what OpenMP reads of an engine's environment."""

    engine: int
    variables: dict[str, str]


class Disk(msgspec.Struct, frozen=True):
    """The data directory (the home as `~`), or its nearest parent that exists; bytes of its file system."""

    directory: str
    exists: bool
    total: int
    free: int


class Graphics(msgspec.Struct, frozen=True):
    """NVIDIA's driver, as its kernel module says."""

    driver: str
    devices: tuple[str, ...]


class Software(msgspec.Struct, frozen=True):
    """Versions; a package that is not installed is null."""

    system: str
    python: str
    dosirak: str
    packages: dict[str, str | None]


class Host(msgspec.Struct, frozen=True):
    """All of it, at one moment. `load` is the mean number of running threads in the last minute."""

    processor: Processor
    load: float
    kernels: tuple[Kernel, ...]
    memory: Memory
    threads: Threads
    disk: Disk
    graphics: Graphics | None
    software: Software


def describe(settings: Settings) -> Host:
    """Returns the host as it is now. It reads files and may wait for a slow disk."""
    return Host(
        processor(),
        os.getloadavg()[0],
        kernels(frozenset(_flags()), host.processor_vendor(PROC)),
        memory(),
        Threads(settings.threads or host.usable_cores(), thread_environment()),
        disk(settings.data_dir),
        graphics(),
        software(),
    )


@cache
def processor() -> Processor:
    flags = _flags()
    shown = tuple(each for each in SHOWN_FEATURES if each in flags)
    return Processor(host.processor_name(PROC), platform.machine(), _cores(), host.usable_cores(), shown)


@cache
def kernels(flags: frozenset[str], vendor: str) -> tuple[Kernel, ...]:
    """Returns the levels of the native kernels, the fastest first, for a processor with these features."""
    listed: list[Kernel] = []
    for level in preferred(vendor):
        lacks = sorted(FEATURES[level] - flags)
        chosen = next((each.level for each in listed if each.runs), None)
        if lacks:
            why = f"the processor lacks {', '.join(lacks)}"
        elif chosen:
            why = f"{chosen} is faster"
        else:
            why = "" if library_path(level).exists() else f"not built: run {COMMAND}"
        listed.append(Kernel(level, not why, why))
    return tuple(listed)


def memory() -> Memory:
    return Memory(host.total_memory(), host.available_memory(), host.memory_limit())


def disk(directory: Path) -> Disk:
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    usage = shutil.disk_usage(existing)
    return Disk(_without_home(directory), directory.is_dir(), usage.total, usage.free)


def graphics() -> Graphics | None:
    said = host.read(PROC / "driver/nvidia/version").split("\n")[0]
    if not said:
        return None
    words = said.split()
    driver = next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "unknown")
    files = sorted((PROC / "driver/nvidia/gpus").glob("*/information"))
    models = (host.fields(host.read(file)).get("Model", "unknown") for file in files)
    return Graphics(driver, tuple(models))


@cache
def software() -> Software:
    packages = {name: _version(name) for name in SHOWN_PACKAGES}
    return Software(f"{platform.system()} {platform.release()}", platform.python_version(), __version__, packages)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _without_home(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) and path != home else str(path)


def _flags() -> set[str]:
    said = host.logical_processors(PROC)[0]
    return set((said.get("flags") or said.get("Features") or "").split())


def _cores() -> int:
    """Returns the physical cores of the machine; its logical ones where the kernel does not say."""
    all_of_them = host.logical_processors(PROC)
    cores = {(each.get("physical id"), each["core id"]) for each in all_of_them if "core id" in each}
    return len(cores) or os.cpu_count() or 1
