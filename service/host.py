"""The host's share for this process: cores, memory and devices by name; the end of a child with its parent; and what a
process says of an exception. The module knows no tensors."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Final

LONGEST_CHAIN: Final = 8
"""The exceptions that are told of one and its causes."""
CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_NO_LIMIT: Final = 1 << 60
"""Version 1 of the control groups writes a number near 2^63 for none."""
ENGINE_NICENESS: Final = 5
"""Added to an engine's process: the event loop, which answers everybody, gets a core before the next step does."""
BESIDE_NICENESS: Final = 5
"""Added to a thread that works beside an engine's steps: running answers go first. Linux counts it of one thread."""
BACKGROUND_NICENESS: Final = 10
"""Added to a process whose work nobody waits for."""


def usable_cores() -> int:
    """Returns the physical cores that the affinity mask and the cgroup's quota leave to this process, at least 1. Two
    hardware threads of one core count once: matrix kernels gain nothing from the second."""
    if not hasattr(os, "sched_getaffinity"):
        return max(1, (os.cpu_count() or 2) // 2)
    cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    quotas = filter(None, map(_quota, _groups("cpu")))
    return max(1, min([len(cores), *(math.floor(each) for each in quotas)]))


def usable_cpus() -> list[int]:
    """Returns numbers of processors of this process, as many as it has cores; each is one core's first."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(usable_cores()))
    first = {_siblings(cpu): cpu for cpu in sorted(os.sched_getaffinity(0), reverse=True)}
    return sorted(first.values())[: usable_cores()]


def available_memory() -> int:
    """Returns the bytes that can still be allocated: the smallest remainder of the machine and of the cgroups. A
    cgroup's file cache counts as free where the kernel can reclaim it."""
    left = (each for each in map(_memory_left, _groups("memory")) if each is not None)
    return max(0, min([_memory("MemAvailable"), *left]))


def memory_limit() -> int | None:
    """Returns the smallest limit in bytes of the cgroups of this process; None without one."""
    limits = (each for each in map(_memory_limit, _groups("memory")) if each is not None)
    return min(limits, default=None)


def has_gpu() -> bool:
    """Whether NVIDIA's driver runs here. The driver may be too old for the libraries: only loading tells."""
    return Path("/proc/driver/nvidia/version").exists()


def num_gpus(visible: str | None, nodes: Path = Path("/dev")) -> int:
    """Returns the number of NVIDIA's devices that CUDA will find: those with a node, or of the `visible` ones (the
    value of CUDA_VISIBLE_DEVICES) those before the first that cannot be."""
    present = sum(1 for node in nodes.glob("nvidia[0-9]*") if node.name.removeprefix("nvidia").isdigit())
    if visible is None:
        return present
    count = 0
    for name in map(str.strip, visible.split(",")):
        if not name or (name.lstrip("-").isdigit() and not 0 <= int(name) < present):
            break
        count += 1
    return min(count, present) if not visible.strip().startswith("MIG-") else count


def has_torch() -> bool:
    """Whether engines can run here. The image's target `api` has no torch."""
    return find_spec("torch") is not None


def processor_name(proc: Path = Path("/proc")) -> str:
    """Returns the processor's name, as the kernel says; its architecture where the kernel does not."""
    said = logical_processors(proc)[0]
    named = said.get("model name") or said.get("cpu model")
    return named or platform.processor() or platform.machine()


def processor_vendor(proc: Path = Path("/proc")) -> str:
    """Returns the maker of the processor, as in "GenuineIntel"; "" where the kernel does not say."""
    return logical_processors(proc)[0].get("vendor_id", "")


def logical_processors(proc: Path = Path("/proc")) -> list[dict[str, str]]:
    """Returns what the kernel says of each logical processor; one without fields where it says nothing."""
    return [fields(block) for block in read(proc / "cpuinfo").split("\n\n")]


def fields(text: str) -> dict[str, str]:
    """Returns the values of the lines `name: value`."""
    lines = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in lines}


def total_memory() -> int:
    """Returns the bytes that the machine has."""
    return _memory("MemTotal")


def _siblings(cpu: int) -> str:
    return read(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")) or str(cpu)


def _groups(controller: str) -> list[Path]:
    """Returns the cgroups of this process that may limit "cpu" or "memory", its own one first. A service of systemd has
    its limits in its own; in a container the own path may lie outside of the mount, and the root has them."""
    for line in read(MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        root = CGROUP / controller if controllers else CGROUP
        if controller in controllers.split(",") or (not controllers and (CGROUP / "cgroup.controllers").exists()):
            own = root / path.lstrip("/")
            if found := [each for each in (own, *own.parents) if each.is_relative_to(root) and each.is_dir()]:
                return found
    return [CGROUP]


def _quota(group: Path) -> float | None:
    """Returns the processors that a cgroup may use at a time."""
    quota, _, period = read(group / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _memory_limit(group: Path) -> int | None:
    limit = (read(group / "memory.max") or read(group / "memory.limit_in_bytes")).strip()
    return int(limit) if limit.isdigit() and int(limit) < _NO_LIMIT else None


def _memory_left(group: Path) -> int | None:
    limit, used = _memory_limit(group), read(group / "memory.current") or read(group / "memory.usage_in_bytes")
    if limit is None or not used.strip().isdigit():
        return None
    statistics = dict(line.split(" ", 1) for line in read(group / "memory.stat").splitlines() if " " in line)
    cache = statistics.get("total_inactive_file") or statistics.get("inactive_file", "0")
    return limit - int(used) + int(cache)


def _memory(field: str) -> int:
    """Returns the bytes of a field of the kernel's, such as "MemTotal"; all memory where there is none."""
    said = fields(read(Path("/proc/meminfo"))).get(field, "")
    return int(said.split()[0]) * 1024 if said else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read(path: Path) -> str:
    """Returns the text of a file of the kernel; "" where there is none."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


CPU: Final = "cpu"
CUDA: Final = "cuda"
_NUMBERED: Final = re.compile(r"cuda:(0|[1-9]\d?)")


def parse_devices(text: str) -> tuple[str, ...]:
    """Returns the devices of a list with commas between, in its order. Raises ValueError, which says what to write."""
    names = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    for name in names:
        if name == CUDA:
            raise ValueError("cuda is no device: name its number, as in cuda:0, or set DOSIRAK_DEVICE=cuda")
        if name != CPU and not _NUMBERED.fullmatch(name):
            raise ValueError(f"there is no device {name[:40]!r}: a device is cpu, or cuda and its number, as in cuda:0")
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{name} is there {times} times: name it once, and set DOSIRAK_REPLICAS for more of it")
    if CPU in names and len(names) > 1:
        raise ValueError(
            "cpu stands beside cuda: they round differently, so an answer would depend on where it is computed; name "
            "one kind"
        )
    return names


def absent(devices: Sequence[str], gpus: int) -> str:
    """Returns a sentence about the first device that is not there, with `gpus` visible; "" if all are."""
    present = [f"{CUDA}:{number}" for number in range(gpus)]
    for name in devices:
        if name != CPU and name not in present:
            return f"{name} is not there; there are: {', '.join(present) or CPU}"
    return ""


def least_loaded(devices: Sequence[str], busy: Iterable[str]) -> list[str]:
    """Returns the devices in the order in which they take the next replicas: those with the fewest of the `busy` ones
    first, else as they were named."""
    load = Counter(busy)
    return sorted(devices, key=lambda name: load[name])


def placed(devices: Sequence[str], count: int, busy: Iterable[str]) -> tuple[str, ...]:
    """Returns a device for each of `count` replicas: each goes to the one with the fewest replicas of any version."""
    taken = list(busy)
    found = []
    for _ in range(count):
        found.append(least_loaded(devices, taken)[0])
        taken.append(found[-1])
    return tuple(found)


def for_replicas(devices: Sequence[str], count: int, busy: Iterable[str]) -> tuple[str, ...]:
    """Returns the devices of `count` replicas, in order; of a single replica all devices, its own first, for a model
    that one device does not hold. () where no devices are named."""
    if not devices:
        return ()
    return tuple(least_loaded(devices, busy)) if count == 1 else placed(devices, count, busy)


_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """Has the kernel kill this process when the parent's thread that started it dies (prctl(2); Linux only)."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call
        os._exit(0)


def print_wordless(error: BaseException) -> None:
    """Writes an exception to standard error, which is the server's log, as far as the log takes it: it may be on a full
    disk."""
    with suppress(OSError):
        print(wordless(error), file=sys.stderr, flush=True)


def wordless(error: BaseException) -> str:
    """Returns the frames and the type of the exception, and of its causes, the first cause first. Messages are left
    out, because they often quote users' text."""
    chain = list(islice(_chain(error), LONGEST_CHAIN))
    return "\n".join(_one(each) for each in reversed(chain))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _one(error: BaseException) -> str:
    frames = "".join(traceback.format_tb(error.__traceback__))
    kind = type(error)
    return f"Traceback (most recent call last):\n{frames}{kind.__module__}.{kind.__qualname__}"
