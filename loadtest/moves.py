"""This test moves an alias under load and measures when each of two instances answers by it.

    python -m loadtest.moves [--moves 50] [--store s3]

It starts two servers with data directories of their own, one PostgreSQL, one store and nginx before them. Both versions
of the demo model are loaded at both. Clients send requests through nginx throughout, every other one streams. A move is
sent through nginx too. Its time is that from the request until an instance answers by the moved alias, asked directly.
Exit status 1 if an answer failed or mixed two versions, or if the 99th percentile is over two seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import httpx

from tests.two_instances import ALIAS, KEY, VERSIONS, missing, two_instances

CHAT: Final = [{"role": "user", "content": "불고기 도시락 두 개 주세요. 얼마예요?"}]
SAMPLED: Final = {"temperature": 2.0, "seed": 1, "max_new_tokens": 24, "ignore_eos": True}
"""The two versions draw other tokens with this seed, so a text belongs to one of them."""
GOAL_SECONDS: Final = 2.0
SEEN_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.01


@dataclass(slots=True)
class Seen:
    """Answers by version, what was wrong, and the seconds of each move at each instance."""

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def p99(self) -> float:
        return quantiles(self.seconds, n=100, method="inclusive")[-1]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer's text, and each version that it names, in header, body and digest."""

    text: str
    named: frozenset[str]


async def unary(client: httpx.AsyncClient, **body: Any) -> Answer:
    """Raises RuntimeError for what is no whole answer."""
    response = await client.post("/generate", json={"messages": CHAT, "parameters": SAMPLED, **body})
    if response.status_code != 200:
        raise RuntimeError(f"{response.status_code} {response.text}")
    told = response.json()
    return Answer(told["generated_text"], _named(response, told))


async def streamed(client: httpx.AsyncClient, **body: Any) -> Answer:
    """Does the same by a stream."""
    asked = {"messages": CHAT, "parameters": SAMPLED, **body}
    async with client.stream("POST", "/generate_stream", json=asked) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code} {(await response.aread()).decode()}")
        events = [json.loads(line[5:]) async for line in response.aiter_lines() if line.startswith("data:")]
    if "generated_text" not in events[-1]:
        raise RuntimeError(f"a stream without its end: {events[-1]}")
    text = "".join(each["token"]["text"] for each in events if "token" in each)
    return Answer(text, _named(response, events[-1]))


def _named(response: httpx.Response, told: Mapping[str, Any]) -> frozenset[str]:
    versions = (response.headers["X-Model-Version"], told["model"], f"demo:{told['version']}")
    return frozenset(each.partition(":")[2] for each in versions)


async def texts_of_versions(instances: Sequence[httpx.AsyncClient]) -> dict[str, str]:
    """Returns the text of each version. Raises RuntimeError where instances differ, or versions do not."""
    told = {version: {(await unary(each, model=f"demo:{version}")).text for each in instances} for version in VERSIONS}
    texts = {version: found.pop() for version, found in told.items()}
    if any(told.values()) or len(set(texts.values())) < len(texts):
        raise RuntimeError(f"the texts say nothing of the version: {texts}, {told}")
    return texts


class Moving:
    """The clients and the moves of one run. `through` is nginx, `instances` are asked directly."""

    def __init__(
        self, through: httpx.AsyncClient, instances: Sequence[httpx.AsyncClient], texts: Mapping[str, str]
    ) -> None:
        self._through, self._instances, self._texts = through, instances, texts
        self._stop = asyncio.Event()
        self.seen = Seen()

    async def run(self, moves: int, clients: int) -> Seen:
        """Moves the alias, at least once, while so many clients ask."""
        asking = [asyncio.create_task(self._ask(number)) for number in range(clients)]
        try:
            for number in range(moves):
                self.seen.seconds += await self._move(VERSIONS[number % len(VERSIONS)])
        finally:
            self._stop.set()
            await asyncio.gather(*asking)
        return self.seen

    async def _ask(self, number: int) -> None:
        ask = streamed if number % 2 else unary
        while not self._stop.is_set():
            try:
                answer = await ask(self._through)
            except (RuntimeError, httpx.HTTPError) as error:
                self.seen.wrong.append(f"failed: {type(error).__name__} {error}")
                continue
            version, *others = answer.named
            if others or answer.text != self._texts[version]:
                self.seen.wrong.append(f"mixed: {sorted(answer.named)} said {answer.text!r}")
            self.seen.answers[version] += 1

    async def _move(self, version: str) -> list[float]:
        body = {"version": version, "override": True, "reason": "moves"}
        began = time.perf_counter()
        changed = await self._through.put(ALIAS, json=body)
        changed.raise_for_status()
        return list(await asyncio.gather(*(self._until_it_answers(each, version, began) for each in self._instances)))

    async def _until_it_answers(self, instance: httpx.AsyncClient, version: str, began: float) -> float:
        while time.perf_counter() - began < SEEN_SECONDS:
            if version in (await unary(instance, parameters={"max_new_tokens": 1})).named:
                return time.perf_counter() - began
            await asyncio.sleep(POLL_SECONDS)
        raise RuntimeError(f"{instance.base_url} does not answer by version {version} after {SEEN_SECONDS:g} s")


async def measure(through: str, instances: Sequence[str], moves: int = 50, clients: int = 4) -> Seen:
    """Measures two running instances behind `through`; both have all versions loaded."""
    balancer, *direct = (httpx.AsyncClient(base_url=url, headers=KEY, timeout=60) for url in (through, *instances))
    try:
        texts = await texts_of_versions(direct)
        return await Moving(balancer, direct, texts).run(moves, clients)
    finally:
        for each in (balancer, *direct):
            await each.aclose()


def shown(seen: Seen, moves: int) -> str:
    lines = [f"wrong: {each}" for each in seen.wrong[:5]]
    lines.append(f"{moves} moves, {seen.answers.total()} answers {dict(seen.answers)}, {len(seen.wrong)} wrong")
    milliseconds = [1000 * each for each in (median(seen.seconds), seen.p99, max(seen.seconds))]
    lines.append(
        "until an instance answers by it: median {:.0f} ms, p99 {:.0f} ms, longest {:.0f} ms".format(*milliseconds)
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=50)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--store", choices=("directory", "s3"), default="directory")
    options = parser.parse_args()
    if (why := missing()) is not None:
        raise SystemExit(why)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder, two_instances(Path(folder), options.store) as pair:
        pair.load_both_versions()
        urls = [each.url for each in pair.instances]
        seen = asyncio.run(measure(pair.url, urls, options.moves, options.clients))
    print(shown(seen, options.moves))
    return int(bool(seen.wrong) or seen.p99 > GOAL_SECONDS)


if __name__ == "__main__":
    raise SystemExit(main())
