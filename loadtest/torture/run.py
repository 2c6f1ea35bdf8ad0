"""A run: references, load, faults in the order of the seed, rest, and what the oracles say of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp

from loadtest.service import BENTOML, UVICORN, Service
from loadtest.torture import clients
from loadtest.torture.faults import FAULTS, Unproven, start
from loadtest.torture.oracles import Held, kept
from loadtest.torture.resources import Watch, rest
from loadtest.torture.scene import Scene

ANSWER_SECONDS: Final = 400.0
WARM_SECONDS: Final = 10.0
"""Of load before the resources of a service at rest are noted."""
BURST: Final = 64
STEADY_SECONDS: Final = 1500.0
"""A slope of less time says nothing: allocators and caches still fill."""
MOST_MIB_AN_HOUR: Final = 4.0
SETTINGS: Final = {
    "DOSIRAK_KV_CACHE_BYTES": str(48 << 20),
    "DOSIRAK_SESSIONS_MAX_PER_OWNER": "1000000",
    "DOSIRAK_LOG_LEVEL": "warning",
}
"""A small KV cache: pages of a large one would become resident all through the run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does; `seconds` or `count` of faults ends it."""

    seed: int
    kinds: tuple[str, ...]
    seconds: float | None
    count: int
    every: float
    clients: int
    is_uvicorn: bool
    folder: Path


def schedule(plan: Plan) -> Iterator[tuple[float, str]]:
    """Yields pauses and kinds of faults, the same for the same seed; each kind once in every round of all kinds."""
    draw = random.Random(plan.seed)
    while plan.kinds:
        for kind in draw.sample(plan.kinds, len(plan.kinds)):
            yield draw.uniform(0, 2 * plan.every), kind


@dataclass(slots=True)
class Outcome:
    """What became of the faults."""

    fired: Counter[str] = field(default_factory=Counter)
    proofs: dict[str, str] = field(default_factory=dict)
    """The last proof of each kind."""
    unproven: list[str] = field(default_factory=list)


async def run(plan: Plan) -> dict[str, Any]:
    """Runs a plan on a service of its own, and returns the result as JSON has it."""
    service = Service(plan.folder / "data", settings=SETTINGS, server=UVICORN if plan.is_uvicorn else BENTOML)
    limits = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    outcome, watch = Outcome(), Watch(service)
    async with aiohttp.ClientSession(connector=connector, timeout=limits) as client:
        scene = Scene(service, client)
        watching = asyncio.create_task(watch.run())
        try:
            await start(scene)
            await scene.record(("demo:1", "demo:2") if "swap" in plan.kinds else ("demo:2",))
            before = await _warmed(scene, plan)
            began = time.monotonic()
            await _under_load(scene, plan, _faults(scene, plan, outcome))
            seconds = time.monotonic() - began
            after = await rest(scene)
            await clients.read_all(scene)
            _judge_resources(scene, watch, before, after)
        finally:
            watching.cancel()
            await service.kill()
    return _result(scene, plan, outcome, watch, seconds) | {"held": _held(before, after)}


async def _warmed(scene: Scene, plan: Plan) -> dict[str, Held]:
    """Returns what the processes hold at rest, behind some load and a burst that fills every pool."""
    await asyncio.gather(*(scene.get("/v1/sessions") for _ in range(BURST)))
    await _under_load(scene, plan, asyncio.sleep(WARM_SECONDS))
    return await rest(scene)


async def _under_load(scene: Scene, plan: Plan, work: Any) -> None:
    """Awaits the work while clients ask; then each ends what it has begun."""
    stop = asyncio.Event()
    seeds = random.Random(f"{plan.seed} {len(scene.histories)}")
    asking = [clients.ask_on(scene, random.Random(seeds.random()), stop) for _ in range(plan.clients)]
    chats = range(1, 1 + max(1, plan.clients // 3))
    asking += [clients.chat_on(scene, random.Random(seeds.random()), stop, 1 + number % 2) for number in chats]
    asking.append(clients.probe_on(scene, random.Random(seeds.random()), stop))
    tasks = [asyncio.create_task(each) for each in asking]
    try:
        await work
    except BaseException:
        for task in tasks:
            task.cancel()
        raise
    stop.set()
    await asyncio.gather(*tasks)


async def _faults(scene: Scene, plan: Plan, outcome: Outcome) -> None:
    """Does the faults of the schedule, one after the other."""
    began = time.monotonic()
    draw = random.Random(f"{plan.seed} faults")
    for number, (pause, kind) in enumerate(schedule(plan), 1):
        if plan.seconds is not None and time.monotonic() - began + pause > plan.seconds:
            break
        await asyncio.sleep(pause)
        before = time.monotonic()
        try:
            proof = await FAULTS[kind](scene, draw)
        except Unproven as error:
            outcome.unproven.append(f"{kind}: {error}")
            proof = f"UNPROVEN {error}"
            if scene.service.exit_status is not None:
                await start(scene)
        else:
            outcome.fired[kind] += 1
            outcome.proofs[kind] = proof
        answered = scene.counts["answered"]
        print(f"{number:4} {kind}: {proof}; {time.monotonic() - before:.1f} s, {answered} answers", flush=True)
        if number == plan.count:
            return
    await asyncio.sleep(max(0.0, (plan.seconds or 0) - (time.monotonic() - began)))


def _judge_resources(scene: Scene, watch: Watch, before: dict[str, Held], after: dict[str, Held]) -> None:
    if len(scene.lives.lives) == 1:
        for wrong in kept(before, after):
            scene.find(wrong)
    figures = watch.figures()
    steep = figures["processes"].get("all", {}).get("mib_an_hour", 0.0)
    if figures["seconds"] > STEADY_SECONDS and steep > MOST_MIB_AN_HOUR:
        scene.find(f"memory grows by {steep:.1f} MiB an hour")


def _held(before: dict[str, Held], after: dict[str, Held]) -> dict[str, Any]:
    """Returns descriptors and threads at rest, before the load and behind it."""
    return {
        name: {
            "descriptors": [before[name].descriptors, after[name].descriptors],
            "threads": [before[name].threads, after[name].threads],
        }
        for name in sorted(before.keys() & after.keys())
    }


def _result(scene: Scene, plan: Plan, outcome: Outcome, watch: Watch, seconds: float) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "seed": plan.seed,
        "seconds": round(seconds),
        "lives": len(scene.lives.lives),
        "faults": dict(sorted(outcome.fired.items())),
        "proofs": outcome.proofs,
        "unproven": outcome.unproven,
        "counts": dict(sorted(scene.counts.items())),
        "sessions": len(scene.histories),
        "acknowledged": sum(history.answered for history in scene.histories),
        "memory": watch.figures(),
        "findings": scene.findings,
    }
