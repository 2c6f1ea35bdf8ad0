"""The resources of a service's processes: memory, descriptors and threads, sampled beside the load and at rest."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

from loadtest.service import Service
from loadtest.torture.oracles import Held, at_rest, slope
from loadtest.torture.scene import Scene

MIB: Final = 1024 * 1024
EVERY_SECONDS: Final = 5.0
WARM: Final = 0.25
"""The first part of the samples, in which caches fill."""
REST_SECONDS: Final = 60.0
REST: Final = (
    "dosirak_num_requests_running",
    "dosirak_num_requests_waiting",
    "dosirak_kv_cache_usage_ratio",
    "dosirak_session_turns_waiting",
)


def held(service: Service) -> dict[str, Held]:
    """Returns what each process holds, by its work: the engine's, the API's, and BentoML's supervisor."""
    found = dict[str, Held]()
    for process in service.family():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            name = _name(process)
            found[name] = Held(process.memory_info().rss / MIB, process.num_fds(), process.num_threads())
    return found


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    if "service.engine.process.worker" in words:
        return "engine"
    if "multiprocessing" in " ".join(words):
        return "multiprocessing"
    serves = any("worker" in word for word in words) or "uvicorn" in words
    return "api" if serves else "supervisor"


@dataclass(slots=True)
class Watch:
    """Samples of memory of the present life, by process."""

    service: Service
    began_at: float = field(default_factory=time.monotonic)
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    async def run(self) -> None:
        pid = 0
        while True:
            if self.service.is_up:
                if pid != self.service.pid:
                    self.samples.clear()
                    self.began_at, pid = time.monotonic(), self.service.pid
                for name, each in (await asyncio.to_thread(held, self.service)).items():
                    self.samples[name].append((time.monotonic() - self.began_at, each.mib))
            await asyncio.sleep(EVERY_SECONDS)

    def figures(self) -> dict[str, Any]:
        """Returns first and last MiB, and MiB an hour behind the warm part, of each process and in all."""
        whole = defaultdict[int, float](float)
        for samples in self.samples.values():
            for at, (_, mib) in enumerate(samples):
                whole[at] += mib
        any_samples = max(self.samples.values(), key=len, default=[])
        total = [(seconds, whole[at]) for at, (seconds, _) in enumerate(any_samples)]
        made = {name: _figures(samples) for name, samples in [*self.samples.items(), ("all", total)] if samples}
        return {"seconds": any_samples[-1][0] if any_samples else 0.0, "processes": made}


def _figures(samples: list[tuple[float, float]]) -> dict[str, float]:
    warm = samples[int(len(samples) * WARM) :]
    return {
        "first_mib": round(samples[0][1], 1),
        "warm_mib": round(warm[0][1], 1),
        "last_mib": round(samples[-1][1], 1),
        "mib_an_hour": round(slope(warm), 2),
    }


async def rest(scene: Scene) -> dict[str, Held]:
    """Waits until the service holds nothing of a request, finds what it still holds after a minute, and returns what
    its processes hold then."""
    deadline = time.monotonic() + REST_SECONDS
    while wrong := at_rest(await _rest_metrics(scene)):
        if time.monotonic() > deadline:
            for each in wrong:
                scene.find(each)
            break
        await asyncio.sleep(0.5)
    await asyncio.sleep(2)  # connections of the last clients are closed
    return await asyncio.to_thread(held, scene.service)


async def _rest_metrics(scene: Scene) -> dict[str, float]:
    metrics = await scene.metrics()
    return {name: metrics[name] for name in REST}
