"""This test kills the engine again and again under load, and checks that no answer fails and no probe is wrong.

    python -m loadtest.engine_kills                       20 kills in two minutes under 16 clients, the demo model
    python -m loadtest.engine_kills --kills 6 --seconds 15 --clients 8

The test starts its own server with the demo model. Clients send greedy questions, streaming or not, and send no request
twice. SIGKILL ends the engine process each time it is ready, and every fourth time also while it loads. The test polls
`/readyz` between two reads of `/v1/deployments`. It must be 200 if both show the same ready engine, and 503 if both
show the same restarting one. Exit status 1 if an answer failed or differs from another to the same question, if a probe
was wrong, or if the server did not become ready by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from loadtest.crashes import Service

QUESTIONS = [f"{number}번 도시락은 얼마예요? 그리고 무엇이 들어 있어요?" for number in range(1, 24)]
NEW_TOKENS = 48
READY_SECONDS = 120.0
ANSWER_SECONDS = 600.0
ANY_TIME = 4
POLL_SECONDS = 0.01


@dataclass(slots=True)
class Outcome:
    """The results. `answers` holds the distinct texts by question."""

    kills: int = 0
    answered: int = 0
    longest: float = 0.0
    failed: Counter[str] = field(default_factory=Counter)
    answers: dict[str, set[str]] = field(default_factory=dict)
    probes: Counter[str] = field(default_factory=Counter)
    lies: list[str] = field(default_factory=list)
    came_back: bool = False

    @property
    def wrong(self) -> list[str]:
        differing = [question for question, texts in self.answers.items() if len(texts) > 1]
        found = [f"{number} x {what}" for what, number in self.failed.items()] + self.lies
        found += [f"{len(differing)} questions had different answers"] * bool(differing)
        return found + ["it was not ready again"] * (not self.came_back)


@dataclass(slots=True)
class Attack:
    client: aiohttp.ClientSession
    url: str
    draw: random.Random
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: Outcome = field(default_factory=Outcome)

    async def ask(self) -> None:
        for number in count(self.draw.randrange(len(QUESTIONS))):
            if self.stop.is_set():
                return
            question, started = QUESTIONS[number % len(QUESTIONS)], time.monotonic()
            text = await self._answer(question, streaming=self.draw.random() < 0.5)
            self.outcome.longest = max(self.outcome.longest, time.monotonic() - started)
            if text is not None:
                self.outcome.answered += 1
                self.outcome.answers.setdefault(question, set()).add(text)

    async def _answer(self, question: str, streaming: bool) -> str | None:
        body = {
            "messages": [{"role": "user", "content": question}],
            "parameters": {"max_new_tokens": NEW_TOKENS, "do_sample": False},
        }
        route = "/generate_stream" if streaming else "/generate"
        try:
            async with self.client.post(self.url + route, json=body) as response:
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.outcome.failed[type(error).__name__] += 1
            return None
        line = raw.strip().rsplit(b"\n", 1)[-1].removeprefix(b"data:")
        told: dict[str, Any] = json.loads(line)
        if response.status != 200 or not isinstance(told.get("generated_text"), str):
            self.outcome.failed[f"{response.status} {told.get('code')}"] += 1
            return None
        return str(told["generated_text"])

    async def probe(self) -> None:
        """Checks `/readyz`. If both reads of the deployments differ, the state has changed and either answer is
        right."""
        before = await self._engine()
        while not self.stop.is_set():
            async with self.client.get(f"{self.url}/readyz") as response:
                status = response.status
            after = await self._engine()
            self.outcome.probes[f"{status} {after[0]}"] += 1
            if before == after and (status == 200) != (after[0] == "ready"):
                self.outcome.lies.append(f"/readyz was {status} while the deployment was {after}")
            before = after
            await asyncio.sleep(POLL_SECONDS)

    async def kill(self) -> None:
        """Kills the present process, also one that loads. From its death on no probe may say ready."""
        pid, process = await self._process()
        signal.pidfd_send_signal(process, signal.SIGKILL)
        await asyncio.to_thread(select.select, [process], [], [])  # all of its threads have ended
        os.close(process)
        self.outcome.kills += 1
        state, now, _ = await self._engine()
        if state == "ready" and now == pid:
            self.outcome.lies.append(f"the deployment was ready with process {pid}, which was dead")

    async def _process(self) -> tuple[int, int]:
        """Returns id and descriptor, or nothing between two processes."""
        while True:
            _, pid, _ = await self._engine()
            with suppress(ProcessLookupError):
                process = os.pidfd_open(pid)
                if not select.select([process], [], [], 0)[0]:
                    return pid, process
                os.close(process)
            await asyncio.sleep(POLL_SECONDS)

    async def ready(self) -> bool:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            async with self.client.get(f"{self.url}/readyz") as response:
                if response.status == 200:
                    return True
            await asyncio.sleep(POLL_SECONDS)
        return False

    async def _engine(self) -> tuple[str, int, int]:
        """State, pid and restarts."""
        async with self.client.get(f"{self.url}/v1/deployments") as response:
            [deployment] = (await response.json())["data"]
        replica = deployment["replicas"][0]
        return deployment["state"], replica["pid"], replica["restarts"]


async def run(kills: int, seconds: float, clients: int, data_dir: Path) -> Outcome:
    service, draw = Service(data_dir), random.Random(0)
    limits = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as client:
        try:
            await service.start(client)
            attack = Attack(client, service.url, draw)
            tasks = [asyncio.create_task(attack.ask()) for _ in range(clients)] + [asyncio.create_task(attack.probe())]
            for _ in range(kills):
                await asyncio.sleep(draw.uniform(0.5, 1.5) * seconds / kills)
                if (attack.outcome.kills + 1) % ANY_TIME:
                    await attack.ready()
                await attack.kill()
            attack.outcome.came_back = await attack.ready()
            attack.stop.set()
            await asyncio.gather(*tasks)
        finally:
            await service.kill()
    return attack.outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        outcome = asyncio.run(run(options.kills, options.seconds, options.clients, Path(folder) / "data"))
    spent = time.monotonic() - started
    print(f"{outcome.kills} kills in {spent:.0f} s under {options.clients} clients: {outcome.answered} answers, the")
    print(f"longest took {outcome.longest:.1f} s; {sum(outcome.failed.values())} failed; probes {dict(outcome.probes)}")
    print("\n".join(outcome.wrong) or "nothing wrong")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
