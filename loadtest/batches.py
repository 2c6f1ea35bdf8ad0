"""This test measures what a batch costs clients, and kills the server in the middle of one.

    python -m loadtest.batches                        500 lines, 2 kills, the demo model; about three minutes
    python -m loadtest.batches --lines 100 --kills 1 --seconds 10

It starts its own server with the demo model. Clients send streamed chats at random times, the same ones in each phase:
alone, beside a batch, alone again. It prints their time to the first token, and the ratio of its p95 beside the batch
to that of both phases alone. Then a second batch runs, and SIGKILL ends the whole service so many times in the middle.
Exit status 1 if the ratio is above 1.1, if a chat failed, or if a line of a batch was not answered exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

from loadtest.crashes import Service

MOST_RATIO: Final = 1.1
WARM_UP: Final = 20
LINE_TOKENS: Final = 96
ENDPOINT: Final = "/v1/chat/completions"


def lines_of(count: int) -> bytes:
    made = []
    for n in range(count):
        messages = [{"role": "user", "content": f"{n}번 손님이에요. 오늘은 무슨 도시락이 있어요? 가격도 알려 주세요."}]
        body = {"messages": messages, "max_tokens": LINE_TOKENS, "ignore_eos": True, "temperature": 1, "seed": n}
        made.append(json.dumps({"custom_id": f"{n}", "method": "POST", "url": ENDPOINT, "body": body}))
    return "\n".join(made).encode()


class Api:
    def __init__(self, client: aiohttp.ClientSession, service: Service) -> None:
        self._client = client
        self._service = service

    async def batch(self, lines: int) -> str:
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", lines_of(lines), filename="lines.jsonl")
        async with self._client.post(f"{self._service.url}/v1/files", data=form) as response:
            file = (await response.json())["id"]
        body = {"input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h"}
        async with self._client.post(f"{self._service.url}/v1/batches", json=body) as response:
            return str((await response.json())["id"])

    async def get(self, id: str) -> dict[str, Any]:
        async with self._client.get(f"{self._service.url}/v1/batches/{id}") as response:
            found: dict[str, Any] = await response.json()
            return found

    async def reach(self, id: str, completed: int) -> dict[str, Any]:
        """Waits until so many lines are answered, or the batch has ended."""
        while True:
            found = await self.get(id)
            if found["request_counts"]["completed"] >= completed or found["status"] in ("completed", "failed"):
                return found
            await asyncio.sleep(0.05)

    async def ended(self, id: str) -> dict[str, Any]:
        while True:
            found = await self.get(id)
            if found["status"] in ("completed", "failed", "expired"):
                return found
            await asyncio.sleep(0.1)

    async def outputs(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        found = []
        for id in filter(None, (batch["output_file_id"], batch["error_file_id"])):
            async with self._client.get(f"{self._service.url}/v1/files/{id}/content") as response:
                found += [json.loads(line) for line in (await response.text()).splitlines()]
        return found

    async def first_token(self, number: int) -> float:
        """Returns the seconds to the first token of a streamed chat, which is read to its end. Raises RuntimeError."""
        messages = [{"role": "user", "content": f"안녕하세요, {number % 7}개 주세요. 불고기 도시락은 얼마예요?"}]
        body = {"messages": messages, "max_tokens": 24, "temperature": 0, "stream": True}
        started, first = time.perf_counter(), None
        async with self._client.post(self._service.url + ENDPOINT, json=body) as response:
            async for line in response.content:
                if first is None and b'"content":' in line and b'"content":""' not in line:
                    first = time.perf_counter() - started
        if response.status != 200 or first is None:
            raise RuntimeError(f"a chat was answered {response.status}")
        return first


async def clients(api: Api, rate: float, seconds: float, seed: int = 1) -> list[float]:
    """Returns the times to the first token of chats that arrive at random, `rate` a second."""
    draw, tasks, at = random.Random(seed), list[asyncio.Task[float]](), time.monotonic()
    until = at + seconds
    while (at := at + draw.expovariate(rate)) < until:
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        tasks.append(asyncio.create_task(api.first_token(len(tasks))))
    return await asyncio.gather(*tasks)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def told(name: str, values: list[float]) -> str:
    p50, p95 = (1000 * percentile(values, share) for share in (0.5, 0.95))
    return f"{name:<14} {len(values)} chats, first token p50 {p50:.1f} ms, p95 {p95:.1f} ms"


def wrong_lines(outputs: list[dict[str, Any]], lines: int) -> list[str]:
    """Returns what is wrong with a batch's outputs: each line must be there once, answered."""
    seen = Counter(each["custom_id"] for each in outputs)
    found = [f"line {n} is there {seen[str(n)]} times" for n in range(lines) if seen[str(n)] != 1]
    refused = [each["custom_id"] for each in outputs if (each["response"] or {}).get("status_code") != 200]
    return found + [f"line {name} was not answered" for name in refused]


async def measure(api: Api, options: argparse.Namespace) -> list[str]:
    await clients(api, WARM_UP, 2.0)
    alone = await clients(api, options.rate, options.seconds)
    id, started = await api.batch(options.lines), time.monotonic()
    await api.reach(id, 1)
    beside = await clients(api, options.rate, options.seconds)
    counts = (await api.get(id))["request_counts"]
    print(f"{counts['completed']} of {counts['total']} lines were answered beside the clients")
    batch = await api.ended(id)
    print(f"the batch took {time.monotonic() - started:.0f} s")
    alone += await clients(api, options.rate, options.seconds)
    ratio = percentile(beside, 0.95) / percentile(alone, 0.95)
    print(told("alone", alone), told("beside a batch", beside), f"ratio of p95: {ratio:.2f}", sep="\n")
    wrong = wrong_lines(await api.outputs(batch), options.lines)
    return wrong + [f"p95 is {ratio:.2f} times that without a batch"] * (ratio > MOST_RATIO)


async def crash(api: Api, service: Service, client: aiohttp.ClientSession, lines: int, kills: int) -> list[str]:
    """Kills the whole service in the middle of a batch, again and again. Returns what is wrong with its outputs."""
    id = await api.batch(lines)
    for n in range(kills):
        found = await api.reach(id, (n + 1) * lines // (kills + 1))
        print(f"kill {n + 1} after {found['request_counts']['completed']} of {lines} lines")
        await service.kill()
        await service.start(client)
    batch = await api.ended(id)
    return wrong_lines(await api.outputs(batch), lines)


async def run(options: argparse.Namespace, data_dir: Path) -> list[str]:
    service = Service(data_dir)
    limits = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as client:
        try:
            await service.start(client)
            api = Api(client, service)
            wrong = await measure(api, options) if options.seconds else []
            return wrong + (await crash(api, service, client, options.lines, options.kills) if options.kills else [])
        finally:
            with suppress(ProcessLookupError):
                await service.kill()


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--rate", type=float, default=8.0, help="chats a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each phase; 0 measures nothing")
    return parser.parse_args(given)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(run(arguments(), Path(folder) / "data"))
    print("\n".join(wrong) or "nothing wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
