"""This test measures what a batch costs clients, and kills the server in the middle of one.

    python -m loadtest.batches                        the demo model; 500 lines, 2 kills; about five minutes
    python -m loadtest.batches --shape small          random weights of 135 million parameters, whose steps are longer
    python -m loadtest.batches --lines 100 --kills 1 --rounds 0

It starts its own server. Clients send streamed requests at random times. In each round the same requests come at the
same times once alone and once beside a batch, by turns the one or the other first. It prints their time to the first
token, and the ratio of its p95 beside a batch to that alone. Then SIGKILL ends the whole service so many times in the
middle of another batch. Exit status 1 if the ratio is above 1.1, if a request failed, if a batch did nothing beside the
clients, or if a line was not answered exactly once.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from loadtest.reports import SHAPES, publish
from loadtest.service import Service
from models.repository.repository import Repository

MOST_RATIO: Final = 1.1
ENDPOINT: Final = "/v1/chat/completions"
WARM_UP: Final = 20
LINE_TOKENS: Final = 96
ANSWER_TOKENS: Final = 24
ENDLESS: Final = 5000
"""Lines of a batch that is still at work when the clients have ended."""
RESAMPLED: Final = 1000


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked of a model. Random weights have no chat template, so they get plain prompts."""

    shape: str

    @property
    def endpoint(self) -> str:
        return ENDPOINT if self.shape == "demo" else "/v1/completions"

    def body(self, text: str, tokens: int, **more: object) -> dict[str, object]:
        asked = {"messages": [{"role": "user", "content": text}]} if self.shape == "demo" else {"prompt": text}
        return {**asked, "max_tokens": tokens, **more}

    def lines(self, count: int) -> bytes:
        made = []
        for n in range(count):
            text = f"{n}번 손님이에요. 오늘은 무슨 도시락이 있어요? 가격도 알려 주세요."
            body = self.body(text, LINE_TOKENS, ignore_eos=True, temperature=1, seed=n)
            made.append(json.dumps({"custom_id": f"{n}", "method": "POST", "url": self.endpoint, "body": body}))
        return "\n".join(made).encode()

    def of_client(self, number: int) -> dict[str, object]:
        text = f"안녕하세요, {number % 7}개 주세요. 불고기 도시락은 얼마예요?"
        return self.body(text, ANSWER_TOKENS, temperature=0, stream=True)


class Api:
    def __init__(self, client: aiohttp.ClientSession, service: Service, work: Work) -> None:
        self._client = client
        self._service = service
        self._work = work

    async def batch(self, lines: int) -> str:
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", self._work.lines(lines), filename="lines.jsonl")
        async with self._client.post(f"{self._service.url}/v1/files", data=form) as response:
            file = (await response.json())["id"]
        body = {"input_file_id": file, "endpoint": self._work.endpoint, "completion_window": "24h"}
        async with self._client.post(f"{self._service.url}/v1/batches", json=body) as response:
            return str((await response.json())["id"])

    async def get(self, id: str) -> dict[str, Any]:
        async with self._client.get(f"{self._service.url}/v1/batches/{id}") as response:
            found: dict[str, Any] = await response.json()
            return found

    async def cancel(self, id: str) -> None:
        async with self._client.post(f"{self._service.url}/v1/batches/{id}/cancel") as response:
            response.raise_for_status()

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
            if found["status"] in ("completed", "failed", "expired", "cancelled"):
                return found
            await asyncio.sleep(0.1)

    async def outputs(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        found = []
        for id in filter(None, (batch["output_file_id"], batch["error_file_id"])):
            async with self._client.get(f"{self._service.url}/v1/files/{id}/content") as response:
                found += [json.loads(line) for line in (await response.text()).splitlines()]
        return found

    async def first_token(self, number: int) -> float:
        """Returns the seconds to the first token of a streamed answer, which is read to its end. Raises RuntimeError,
        also for an answer that an error ended."""
        marks = (b'"content":', b'"content":""') if self._work.shape == "demo" else (b'"text":', b'"text":""')
        started, first, last = time.perf_counter(), None, b""
        url = self._service.url + self._work.endpoint
        async with self._client.post(url, json=self._work.of_client(number)) as response:
            async for line in response.content:
                if first is None and marks[0] in line and marks[1] not in line:
                    first = time.perf_counter() - started
                last = line.strip() or last
        if last != b"data: [DONE]":
            raise RuntimeError(f"an answer ended by {last[:200].decode(errors='replace')}")
        if response.status != 200 or first is None:
            raise RuntimeError(f"a request was answered {response.status}")
        return first


async def clients(api: Api, rate: float, seconds: float, seed: int = 1) -> list[float]:
    """Returns the times to the first token of requests that arrive at random, `rate` a second."""
    draw, tasks, at = random.Random(seed), list[asyncio.Task[float]](), time.monotonic()
    until = at + seconds
    while (at := at + draw.expovariate(rate)) < until:
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        tasks.append(asyncio.create_task(api.first_token(len(tasks))))
    return await asyncio.gather(*tasks)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def ratios(beside: list[float], alone: list[float], share: float) -> list[float]:
    """Returns the ratio of a percentile, and the ends of its 90 % interval by resampling."""
    draw = random.Random(1)
    found = sorted(
        percentile(draw.choices(beside, k=len(beside)), share) / percentile(draw.choices(alone, k=len(alone)), share)
        for _ in range(RESAMPLED)
    )
    ratio = percentile(beside, share) / percentile(alone, share)
    return [ratio, percentile(found, 0.05), percentile(found, 0.95)]


def told(name: str, values: list[float]) -> str:
    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95}
    shown = ", ".join(f"{each} {1000 * percentile(values, share):.1f} ms" for each, share in shares.items())
    return f"{name:<14} {len(values)} requests, first token {shown}"


def wrong_lines(outputs: list[dict[str, Any]], lines: int) -> list[str]:
    """Returns what is wrong with a batch's outputs: each line must be there once, answered."""
    seen = Counter(each["custom_id"] for each in outputs)
    found = [f"line {n} is there {seen[str(n)]} times" for n in range(lines) if seen[str(n)] != 1]
    refused = [each["custom_id"] for each in outputs if (each["response"] or {}).get("status_code") != 200]
    return found + [f"line {name} was not answered" for name in refused]


async def beside_batch(api: Api, options: argparse.Namespace, seed: int) -> tuple[list[float], int]:
    """Returns the clients' times beside a batch, and how many of its lines were answered meanwhile."""
    id = await api.batch(ENDLESS)
    before = (await api.reach(id, 1))["request_counts"]["completed"]
    times = await clients(api, options.rate, options.seconds, seed)
    answered = (await api.get(id))["request_counts"]["completed"] - before
    await api.cancel(id)
    await api.ended(id)
    return times, answered


async def measure(api: Api, options: argparse.Namespace) -> list[str]:
    await clients(api, WARM_UP, 2.0)
    alone, beside, lines = list[float](), list[float](), 0
    for n in range(options.rounds):
        if n % 2:
            alone += await clients(api, options.rate, options.seconds, n)
        times, answered = await beside_batch(api, options, n)
        beside, lines = beside + times, lines + answered
        if not n % 2:
            alone += await clients(api, options.rate, options.seconds, n)
    print(told("alone", alone), told("beside a batch", beside), sep="\n")
    for name, share in (("p50", 0.5), ("p95", 0.95)):
        ratio, low, high = ratios(beside, alone, share)
        print(f"ratio of {name}: {ratio:.2f} ({low:.2f} to {high:.2f})")
    print(f"{lines / (options.rounds * options.seconds):.1f} lines a second beside the clients")
    wrong = [] if lines else ["a batch did nothing beside the clients"]
    return wrong + [f"p95 is {ratio:.2f} times that without a batch"] * (ratio > MOST_RATIO)


async def alone_seconds(api: Api, lines: int) -> list[str]:
    """Measures a batch with no client beside it. Returns what is wrong with its outputs."""
    started = time.monotonic()
    batch = await api.ended(await api.batch(lines))
    seconds = time.monotonic() - started
    print(f"{lines} lines without clients took {seconds:.1f} s: {lines / seconds:.0f} a second")
    return wrong_lines(await api.outputs(batch), lines)


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


def model_of(shape: str, data_dir: Path) -> dict[str, str]:
    """Publishes the model; the demo model publishes itself. Returns the settings of a server that serves it."""
    if shape == "demo":
        return {}
    data_dir.mkdir()
    publish(Repository(data_dir), shape)
    return {"DOSIRAK_DEFAULT_MODEL": f"{shape}:2"}


async def run(options: argparse.Namespace, data_dir: Path) -> list[str]:
    service = Service(data_dir, settings=model_of(options.shape, data_dir))
    limits = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as client:
        try:
            await service.start(client)
            api = Api(client, service, Work(options.shape))
            wrong = await measure(api, options) if options.rounds else []
            wrong += await alone_seconds(api, options.lines)
            return wrong + (await crash(api, service, client, options.lines, options.kills) if options.kills else [])
        finally:
            with suppress(ProcessLookupError):
                await service.kill()


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("demo", *sorted(SHAPES)), default="demo")
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second")
    parser.add_argument("--rounds", type=int, default=6, help="0 measures nothing beside clients")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each half of a round")
    return parser.parse_args(given)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(run(arguments(), Path(folder) / "data"))
    print("\n".join(wrong) or "nothing wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
