"""This test promotes and rolls back under load: failed requests, answers that mix versions, memory before and after.

    python -m loadtest.swaps --swaps 50          against a server that `make serve MODEL=demo` started

Eight streaming and eight unary clients send requests throughout. Exit status 1 if an answer failed or mixed two
versions, or if a swap took more than a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from loadtest.soak import resident

CHAT = [{"role": "user", "content": "불고기 도시락 두 개 주세요. 얼마예요?"}]
SWAP_SECONDS = 60.0


@dataclass(slots=True)
class Seen:
    """What all clients saw."""

    versions: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    mixed: int = 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    parser.add_argument("--swaps", type=int, default=50)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--unary", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    return parser.parse_args()


def body(wanted: int) -> dict[str, object]:
    return {"messages": CHAT, "parameters": {"max_new_tokens": wanted, "ignore_eos": True}}


Asking = Callable[[aiohttp.ClientSession, int], Awaitable[set[str]]]
"""Asks once, for so many tokens; gives the versions that the answer names, in header and body. Raises where it
is no whole answer."""


async def unary(session: aiohttp.ClientSession, wanted: int) -> set[str]:
    async with session.post("/generate", json=body(wanted)) as response:
        told = await response.json()
        if response.status != 200:
            raise RuntimeError(f"{response.status} {told}")
        return {response.headers["X-Model-Version"], told["model"]}


async def stream(session: aiohttp.ClientSession, wanted: int) -> set[str]:
    async with session.post("/generate_stream", json=body(wanted)) as response:
        tokens, last = 0, dict[str, Any]()
        async for line in response.content:
            if line.startswith(b"data:"):
                last = json.loads(line[5:])
                tokens += "token" in last
        if response.status != 200 or tokens < wanted or "model" not in last:
            raise RuntimeError(f"{response.status} after {tokens} tokens: {last}")
        return {response.headers["X-Model-Version"], last["model"]}


async def keep_asking(
    kind: str, ask: Asking, session: aiohttp.ClientSession, options: argparse.Namespace, seen: Seen, stop: asyncio.Event
) -> None:
    while not stop.is_set():
        try:
            _note(seen, await ask(session, options.max_new_tokens))
        except Exception as error:
            seen.failures.append(f"{kind}: {type(error).__name__} {error}")


def _note(seen: Seen, named: set[str]) -> None:
    seen.mixed += len(named) > 1
    seen.versions[named.pop()] += 1


async def swap(session: aiohttp.ClientSession, number: int, seen: Seen) -> float:
    """Promote the other version, or roll back to it, and wait until it answers alone; seconds."""
    url = "/v1/repository/models/demo/aliases/production"
    started = time.perf_counter()
    async with session.get(url) as response:
        now = (await response.json())["version"]
    other = "1" if now == "2" else "2"
    if number % 2:
        change = session.post(f"{url}/rollback", json={"reason": "swaps"})
    else:
        change = session.put(url, json={"version": other, "reason": "swaps", "override": True})
    async with change as response:
        told = await response.json()
        if response.status != 200:
            raise RuntimeError(f"swap {number}: {response.status} {told}")
    wanted = f"demo:{told['version']}"
    while time.perf_counter() - started < SWAP_SECONDS:
        before = seen.versions[wanted]
        await asyncio.sleep(0.1)
        async with session.get("/v1/deployments") as response:
            served = [each["model"] for each in (await response.json())["data"] if each["state"] == "ready"]
        if served == [wanted] and seen.versions[wanted] > before:
            return time.perf_counter() - started
    raise RuntimeError(f"swap {number}: {wanted} does not answer alone after {SWAP_SECONDS:.0f} s")


async def main() -> int:
    options, seen, stop = arguments(), Seen(), asyncio.Event()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(options.url, connector=connector) as session:
        clients = [
            asyncio.create_task(keep_asking("unary", unary, session, options, seen, stop)) for _ in range(options.unary)
        ]
        clients += [
            asyncio.create_task(keep_asking("stream", stream, session, options, seen, stop))
            for _ in range(options.streams)
        ]
        await asyncio.sleep(5)
        before = resident()
        seconds = []
        try:
            for number in range(options.swaps):
                seconds.append(await swap(session, number, seen))
                print(f"{number + 1:3} swaps, {seconds[-1]:5.1f} s, {dict(seen.versions)}", flush=True)
        except RuntimeError as error:
            seen.failures.append(str(error))
        await asyncio.sleep(5)
        after = resident()
        stop.set()
        await asyncio.gather(*clients)
    answers = sum(seen.versions.values())
    print(f"{len(seconds)} swaps, {answers} answers, {len(seen.failures)} failed, {seen.mixed} mixed")
    for what in ("api", "engine"):
        sums = [sum(mib for kind, mib in memory.values() if kind == what) for memory in (before, after)]
        print(f"{what}: {sums[0]:.0f} → {sums[1]:.0f} MiB resident")
    for failure in seen.failures[:5]:
        print("failed:", failure)
    return int(bool(seen.failures or seen.mixed))


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
