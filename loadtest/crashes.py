"""The whole service killed under session load, again and again: is every acknowledged turn there, once and whole?

    python -m loadtest.crashes --rounds 100          starts servers of its own on a data directory of its own

Each client has one session and adds numbered turns to it, one after the other. The service and its engine are ended by
SIGKILL in mid-load and started again; then every session is read back and compared: a list-append history, as in
Jepsen. Exit status 1 when a turn was lost, doubled, out of order or torn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

START_SECONDS = 120.0
Pair = tuple[str, str]


@dataclass(slots=True)
class History:
    """What one client knows of its session: turns that were acknowledged, and by index those whose answer it never saw,
    which may be there or not."""

    session: str
    sent: list[str] = field(default_factory=list)
    answers: dict[int, str] = field(default_factory=dict)


def differences(history: History, stored: Sequence[dict[str, Any]]) -> list[str]:
    """Why the stored messages are not what the client's history allows; nothing where they are."""
    found = [(message["role"], message["content"]) for message in stored]
    if [role for role, _ in found] != ["user", "assistant"] * (len(found) // 2):
        return [f"{history.session}: torn, {[role for role, _ in found][-3:]}"]
    pairs: list[Pair] = [(found[at][1], found[at + 1][1]) for at in range(0, len(found), 2)]
    place = {text: at for at, text in enumerate(history.sent)}
    order = [place.get(text, -1) for text, _ in pairs]
    wrong = [f"{history.session}: {text!r} was never sent" for text, _ in pairs if text not in place]
    if sorted(set(order)) != order:
        wrong.append(f"{history.session}: doubled or out of order, {order[-5:]}")
    answered = {place.get(text, -1): answer for text, answer in pairs}
    for at, answer in history.answers.items():
        if at not in answered:
            wrong.append(f"{history.session}: turn {at} was acknowledged and is lost")
        elif answered[at] != answer:
            wrong.append(f"{history.session}: turn {at} has another answer than was acknowledged")
    return wrong


class Service:
    """One server after the other on the same data."""

    def __init__(self, data_dir: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = data_dir.parent / "serve.log"
        self._environment = {
            **os.environ,
            "DOSIRAK_DATA_DIR": str(data_dir),
            "BENTOML_HOME": str(data_dir),
            "DOSIRAK_PORT": str(self.port),
            "BENTOML_DO_NOT_TRACK": "true",
        }

    async def start(self, client: aiohttp.ClientSession) -> None:
        """Raises RuntimeError where it does not become ready."""
        with self._log.open("a") as log:
            command = [sys.executable, "-m", "service.cli", "serve"]
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)  # noqa: ASYNC220
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                async with client.get(f"{self.url}/readyz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the server did not become ready: see {self._log}")

    def kill(self) -> None:
        """It and all that it has started, at once."""
        family = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=30)


async def create(client: aiohttp.ClientSession, url: str) -> History:
    async with client.post(f"{url}/v1/sessions", json={}) as response:
        return History((await response.json())["id"])


async def talk(client: aiohttp.ClientSession, url: str, history: History) -> None:
    """Turns until the server is gone."""
    while True:
        text = f"{history.session} {len(history.sent)}"
        at = len(history.sent)
        history.sent.append(text)
        body = {"session_id": history.session, "messages": [{"role": "user", "content": text}]}
        try:
            async with client.post(f"{url}/generate", json={**body, "parameters": {"max_new_tokens": 4}}) as response:
                told = await response.json()
                if response.status != 200:
                    raise RuntimeError(f"{response.status} {told}")
                history.answers[at] = told["generated_text"]
        except (aiohttp.ClientError, ConnectionError):
            return


async def read(client: aiohttp.ClientSession, url: str, session: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        parameters = {"limit": "100", **({"cursor": cursor} if cursor else {})}
        async with client.get(f"{url}/v1/sessions/{session}/messages", params=parameters) as response:
            page = await response.json()
        messages += page["data"]
        cursor = page["next_cursor"]
    return messages


async def run(rounds: int, clients: int, seconds: float, folder: Path) -> tuple[int, list[str]]:
    """Acknowledged turns, and what was wrong."""
    service, draw = Service(folder / "data"), random.Random(0)
    wrong: list[str] = []
    acknowledged = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as client:
        await service.start(client)
        for number in range(rounds):
            histories = [await create(client, service.url) for _ in range(clients)]
            talks = [asyncio.create_task(talk(client, service.url, history)) for history in histories]
            await asyncio.sleep(draw.uniform(0.3, 1.0) * seconds)
            service.kill()
            await asyncio.gather(*talks)
            await service.start(client)
            for history in histories:
                wrong += differences(history, await read(client, service.url, history.session))
            acknowledged += sum(len(history.answers) for history in histories)
            print(f"{number + 1:3} kills, {acknowledged:6} acknowledged turns, {len(wrong)} wrong", flush=True)
        service.kill()
    return acknowledged, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load before a kill, at most")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        acknowledged, wrong = asyncio.run(run(options.rounds, options.clients, options.seconds, Path(folder)))
    print("\n".join([*wrong, f"{acknowledged} acknowledged turns over {options.rounds} kills, {len(wrong)} wrong"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
