"""The faults: each harms the service under load and proves that it did. One that it cannot prove raises Unproven.

A proof is a sentence of facts, as "engine 123 → 145, restarts 3 → 4".
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import psutil

from loadtest.torture.clients import read_full
from loadtest.torture.ledger import Exchange
from loadtest.torture.oracles import of_drain
from loadtest.torture.readers import read_nothing, read_slowly
from loadtest.torture.requests import QUESTIONS
from loadtest.torture.scene import Scene

BACK_SECONDS: Final = 180.0
"""Longest time until the service is as it was."""
POLL_SECONDS: Final = 0.02
MOST_TURNS: Final = 16
"""Of sessions, before a kill."""
IN_START: Final = 0.125
"""So many kills are followed by one while the service starts."""
ALIAS: Final = "/v1/repository/models/demo/aliases/production"
LEFT: Final = 'dosirak_requests_aborted_total{cause="client"}'


class Unproven(Exception):
    """The fault was not seen to have fired."""


Fault = Callable[[Scene, random.Random], Awaitable[str]]


async def engine_kill(scene: Scene, draw: random.Random) -> str:
    """SIGKILL to the engine's process, three times of four when it is ready, else also while it loads."""
    if draw.random() < 0.75:
        await _until(lambda engine: engine["state"] == "ready", scene)
    engine, process = await _opened_engine(scene)
    signal.pidfd_send_signal(process, signal.SIGKILL)
    await asyncio.to_thread(select.select, [process], [], [], 30)  # all of its threads have ended
    os.close(process)
    pid, after = engine["pid"], await _engine(scene)
    if after["state"] == "ready" and after["pid"] == pid:
        scene.find(f"the deployment was ready with process {pid}, which was dead")
    now = await _until(lambda each: each["state"] == "ready" and each["pid"] != pid, scene)
    return f"engine {pid} → {now['pid']}, restarts {engine['restarts']} → {now['restarts']}"


async def service_kill(scene: Scene, draw: random.Random) -> str:
    """SIGKILL to every process of the service some turns after its start, sometimes once more while it starts."""
    await _acknowledged(scene, draw.randint(1, MOST_TURNS))
    await asyncio.sleep(draw.uniform(0, 0.2))
    told = await _killed(scene)
    if draw.random() < IN_START:
        scene.lives.begin(time.monotonic())
        scene.service.begin()
        await asyncio.sleep(draw.uniform(0.2, 4.0))
        told += f", in its start {await _killed(scene)}"
        scene.counts["kills in a start"] += 1
    await start(scene)
    await read_full(scene)
    return told


async def drain(scene: Scene, draw: random.Random) -> str:
    """SIGTERM under load, while newcomers come and `/livez` is read, until the service has ended."""
    life, running = scene.lives.now, set(scene.running)
    life.end_at, life.end = time.monotonic(), "drain"
    scene.service.terminate()
    probing: list[asyncio.Task[Exchange]] = []
    answered_at = life.end_at
    while scene.service.exit_status is None:
        probing += [asyncio.create_task(_probe(scene, kind)) for kind in ("livez", "newcomer")]
        if running & scene.running:
            answered_at = time.monotonic()
        if time.monotonic() > life.end_at + BACK_SECONDS:
            raise Unproven("the service did not end")
        await asyncio.sleep(2 * POLL_SECONDS)
    life.gone_at = time.monotonic()
    probes = await asyncio.gather(*probing)
    for wrong in of_drain(life, probes, answered_at, scene.service.exit_status):
        scene.find(f"drain: {wrong}")
    scene.counts["streams in drains"] += len(running)
    newcomers = Counter(probe.status or probe.lost for probe in probes if probe.kind == "newcomer")
    scene.counts["newcomers refused in drains"] += newcomers[503]
    await start(scene)
    await read_full(scene)
    seconds = life.gone_at - life.end_at
    return f"SIGTERM with {len(running)} running, exit status 0 after {seconds:.1f} s, newcomers {dict(newcomers)}"


async def swap(scene: Scene, draw: random.Random) -> str:
    """The alias moves to the other version, until new requests are answered by it."""
    before = (await scene.get(ALIAS))["version"]
    wanted = "1" if before == "2" else "2"
    body = {"version": wanted, "reason": "torture", "override": True}
    async with scene.client.put(scene.service.url + ALIAS, json=body) as response:
        if response.status != 200:
            raise Unproven(f"the alias did not move: {response.status} {await response.text()}")
    deadline = time.monotonic() + BACK_SECONDS
    while (await scene.ask("generate", "0")).version != f"demo:{wanted}":
        if time.monotonic() > deadline:
            raise Unproven(f"demo:{wanted} does not answer")
    return f"production {before} → {wanted}, which answers"


async def stop(scene: Scene, draw: random.Random) -> str:
    """SIGSTOP to the engine or to all processes for some seconds, then SIGCONT."""
    family = scene.service.family()
    chosen = [each for each in family if _is_engine(each)] if draw.random() < 0.5 else family
    seconds = draw.uniform(1.0, 8.0)
    try:
        for process in chosen:
            process.suspend()
        await asyncio.sleep(seconds)
        stopped = [each for each in chosen if each.status() == psutil.STATUS_STOPPED]
    finally:
        for process in reversed(chosen):
            process.resume()
    if not stopped or len(stopped) < len(chosen):
        raise Unproven(f"{len(stopped)} of {len(chosen)} processes were stopped")
    return f"{len(stopped)} processes stopped for {seconds:.1f} s"


async def abort(scene: Scene, draw: random.Random) -> str:
    """Twenty streams at once are left by their clients, each behind a random number of bytes."""
    before = (await scene.metrics())[LEFT]
    asked = [scene.ask("long", draw.choice(QUESTIONS), leave_after=draw.randrange(1, 20_000)) for _ in range(20)]
    left = sum(each.has_left for each in await asyncio.gather(*asked))
    scene.counts["aborts"] += left
    return f"{left} streams left, and {await _rise(scene, LEFT, before, left):g} seen by the service"


async def slow_reader(scene: Scene, draw: random.Random) -> str:
    """A client that reads a stream far slower than it is written."""
    seconds = draw.uniform(4.0, 10.0)
    exchange = await read_slowly(scene, draw.choice(QUESTIONS), seconds)
    took = exchange.ended_at - exchange.sent_at
    if took < seconds / 2:
        raise Unproven(f"{took:.1f} s are not slow")
    return f"{len(exchange.body)} bytes read in {took:.1f} s"


async def unread(scene: Scene, draw: random.Random) -> str:
    """A client that asks for megabytes and reads none of them, until the service lets the connection go."""
    try:
        seconds, rest = await read_nothing(scene)
    except (OSError, ValueError) as error:
        raise Unproven(str(error)) from error
    return f"let go after {seconds:.0f} s, {rest} bytes of the stream in the kernel"


FAULTS: Final[Mapping[str, Fault]] = {
    "engine-kill": engine_kill,
    "service-kill": service_kill,
    "drain": drain,
    "swap": swap,
    "stop": stop,
    "abort": abort,
    "slow-reader": slow_reader,
    "unread": unread,
}


async def start(scene: Scene) -> None:
    """Starts the service's next life."""
    if scene.service.exit_status is not None or not scene.lives.lives:
        scene.lives.begin(time.monotonic())
    await scene.service.start(scene.client)
    scene.lives.now.ready_at = time.monotonic()


async def _killed(scene: Scene) -> str:
    life = scene.lives.now
    life.end_at, life.end = time.monotonic(), "kill"
    gone = await scene.service.kill()
    life.gone_at = time.monotonic()
    if not gone or scene.service.exit_status != -signal.SIGKILL:
        raise Unproven(f"{len(gone)} processes ended, exit status {scene.service.exit_status}")
    return f"{len(gone)} processes killed, exit status -9"


async def _acknowledged(scene: Scene, turns: int) -> None:
    """Waits for so many turns, on a busy machine as on an idle one."""
    goal, deadline = scene.counts["turns"] + turns, time.monotonic() + BACK_SECONDS
    while scene.counts["turns"] < goal and time.monotonic() < deadline:  # noqa: ASYNC110 - clients count them
        await asyncio.sleep(POLL_SECONDS)


async def _probe(scene: Scene, kind: str) -> Exchange:
    exchange = Exchange(kind, time.monotonic())
    if kind == "livez":
        return await scene.send(exchange, "/livez", None)
    return await scene.send(exchange, "/generate", {"inputs": "1", "parameters": {"max_new_tokens": 1}})


async def _rise(scene: Scene, name: str, before: float, wanted: int) -> float:
    """Waits until a counter has risen by so much, and returns by how much; raises Unproven if it does not rise."""
    deadline, risen = time.monotonic() + 60, 0.0
    while risen < wanted and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        risen = (await scene.metrics())[name] - before
    if wanted and not risen:
        raise Unproven(f"{name} did not rise")
    return risen


async def _engine(scene: Scene) -> dict[str, Any]:
    """Returns state, pid and restarts of the deployment that serves; the last one that was loaded where two do."""
    deployments = (await scene.get("/v1/deployments"))["data"]
    ours = [each for each in deployments if each["state"] in ("ready", "restarting")] or deployments
    return {"state": ours[-1]["state"], **ours[-1]["replicas"][0]}


async def _until(holds: Callable[[dict[str, Any]], bool], scene: Scene) -> dict[str, Any]:
    deadline = time.monotonic() + BACK_SECONDS
    while time.monotonic() < deadline:
        engine = await _engine(scene)
        if holds(engine):
            return engine
        await asyncio.sleep(POLL_SECONDS)
    raise Unproven("the engine was not ready again")


async def _opened_engine(scene: Scene) -> tuple[dict[str, Any], int]:
    """Returns the engine, and a descriptor of its process, which runs."""
    while True:
        engine = await _engine(scene)
        with suppress(ProcessLookupError, TypeError):
            process = os.pidfd_open(engine["pid"])
            if not select.select([process], [], [], 0)[0]:
                return engine, process
            os.close(process)
        await asyncio.sleep(POLL_SECONDS)


def _is_engine(process: psutil.Process) -> bool:
    return "service.engine.process.worker" in process.cmdline()
