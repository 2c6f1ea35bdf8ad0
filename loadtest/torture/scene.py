"""The scene is what clients and faults share: a service, its ledger, and one way to send a request.

Every exchange is judged as soon as it ends; the scene keeps counts and findings, so that an hour of load takes no more
memory than a minute.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from loadtest.histories import History
from loadtest.service import Service
from loadtest.torture.endings import canonical
from loadtest.torture.ledger import Exchange, Lives
from loadtest.torture.oracles import judged
from loadtest.torture.requests import QUESTIONS, SHAPES, Body

MOST_FINDINGS: Final = 200
PROBE_SECONDS: Final = 5.0
_SERIES: Final = re.compile(r"^(dosirak_\w+)(\{.*?\})? (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Scene:
    service: Service
    client: aiohttp.ClientSession
    lives: Lives = field(default_factory=Lives)
    references: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    histories: list[History] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    """Numbers of the exchanges that run."""
    sent: int = 0
    answered_at: float = 0.0
    compared: set[str] = field(default_factory=set)
    """Sessions that were read when they were full."""

    async def ask(self, kind: str, question: str, model: str = "", leave_after: int | None = None) -> Exchange:
        """Sends a request of a kind and judges what came; the client leaves once it has so many bytes."""
        shape = SHAPES[kind]
        body = shape.body(question) | ({"model": model} if model else {})
        exchange = Exchange(kind, time.monotonic(), shape.dialect, question)
        return self.judge(await self.send(exchange, shape.path, body, leave_after=leave_after))

    async def send(
        self, exchange: Exchange, path: str, body: Body | None, key: str = "", leave_after: int | None = None
    ) -> Exchange:
        """Sends a POST, or a GET without a body, and fills in the exchange."""
        number = self.sent = self.sent + 1
        self.running.add(number)
        headers = {"Idempotency-Key": key} if key else {}
        method, url = ("GET" if body is None else "POST"), self.service.url + path
        try:
            async with self.client.request(method, url, json=body, headers=headers) as response:
                await _read(exchange, response, leave_after)
        except aiohttp.ClientConnectorError:
            exchange.lost = "refused"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            exchange.lost = type(error).__name__
        finally:
            exchange.ended_at = time.monotonic()
            self.running.discard(number)
        return exchange

    def judge(self, exchange: Exchange) -> Exchange:
        wrong = judged(exchange, self.lives, self.references)
        if wrong:
            self.find(wrong)
        self.counts[f"asked {exchange.kind}"] += 1
        if exchange.lost or exchange.has_left:
            self.counts["left" if exchange.has_left else "lost to a kill or an end"] += 1
        elif exchange.status >= 400:
            self.counts[f"refused {exchange.status}"] += 1
        else:
            self.answered_at = exchange.ended_at
            self.counts["answered"] += 1
            self.counts["compared"] += (exchange.kind, exchange.question, exchange.version) in self.references
        return exchange

    def find(self, wrong: str) -> None:
        self.counts["findings"] += 1
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(wrong)
            print(f"FOUND {wrong}", flush=True)

    async def record(self, versions: tuple[str, ...]) -> None:
        """Asks everything alone, of each version, and keeps the answers."""
        for version in versions:
            for kind, shape in SHAPES.items():
                for question in QUESTIONS:
                    exchange = await self.ask(kind, question, model=version)
                    if exchange.status != 200:
                        raise RuntimeError(f"{kind} alone is {exchange.status}: {exchange.body[:300]!r}")
                    self.references[kind, question, version] = canonical(shape.dialect, exchange.body)

    async def get(self, path: str) -> Any:
        async with self.client.get(self.service.url + path) as response:
            return await response.json()

    async def metrics(self) -> Counter[str]:
        """Returns every counter and gauge, summed over its versions; labels beside those stay in the name."""
        async with self.client.get(f"{self.service.url}/metrics") as response:
            found = Counter[str]()
            for name, labels, value in _SERIES.findall(await response.text()):
                rest = re.sub(r",?(model|version)=\"[^\"]*\"", "", labels).replace("{,", "{").replace("{}", "")
                found[name + rest] += float(value)  # type: ignore[assignment]
            return found

    async def up(self) -> None:
        """Waits until the service is up."""
        while not self.service.is_up:  # noqa: ASYNC110 - faults end and start it
            await asyncio.sleep(0.02)


async def _read(exchange: Exchange, response: aiohttp.ClientResponse, leave_after: int | None) -> None:
    exchange.status = response.status
    exchange.retry_after = response.headers.get("Retry-After", "")
    exchange.version = response.headers.get("X-Model-Version", "")
    exchange.is_replayed = "Idempotent-Replayed" in response.headers
    async for piece in response.content.iter_any():
        exchange.body += piece
        if leave_after is not None and len(exchange.body) >= leave_after:
            exchange.has_left = True
            response.close()
            return
