"""The devices that our own engine computes on, by name: `cpu`, or `cuda:0`, `cuda:1` and so on. The module knows names
and counts; it looks at no device.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

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
    there = [f"{CUDA}:{number}" for number in range(gpus)]
    for name in devices:
        if name != CPU and name not in there:
            return f"{name} is not there; there are: {', '.join(there) or CPU}"
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
