"""This test kills the whole service under session load, again and again, and checks every turn: once, in order, whole.

    python -m loadtest.crashes --rounds 100                            on SQLite
    python -m loadtest.crashes --rounds 100 --postgres --instances 2   two services on one PostgreSQL of its own
    python -m loadtest.crashes --rounds 50 --postgres --instances 2 --one --store --nginx
                                                                       one of both, through nginx, with a store

Clients add numbered turns to sessions, some to the same session at once, on any of the services, streaming or not.
SIGKILL ends the services and their engines under load, and the test starts them again. A client sends a turn again,
with its Idempotency-Key, until it is answered. In the end the test reads every session and compares it (`histories`).
Exit status 1 if a turn was lost, doubled, out of order or torn, or if there were fewer turns than kills.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from loadtest.histories import History, Turn, differences
from loadtest.service import Service
from tests import nginx, postgres
from tests.stores import fresh_store

END_SECONDS = 120.0
RETRY_SECONDS = 0.1
KEY = "key"
"""Of services behind a balancer: without one they answer their own machine's names alone."""
ROUTES = ("/generate", "/generate_stream")


@dataclass(slots=True)
class Load:
    """The clients of some services, and the results of their turns."""

    client: aiohttp.ClientSession
    services: Sequence[Service]
    draw: random.Random
    through: str = ""
    """The balancer before the services, if there is one: clients then ask it, and know nothing of the services."""
    histories: list[History] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    replayed: int = 0

    @property
    def answered(self) -> int:
        return sum(history.answered for history in self.histories)

    async def group(self, clients: int, stop: asyncio.Event) -> None:
        """Runs a session and its clients. At the stop each client ends its current turn."""
        session = None
        while session is None:
            session = (await self._post("/v1/sessions", {}, {})).get("id")
        history = History(session)
        self.histories.append(history)
        await asyncio.gather(*(self._talk(history, f"{session} {name}", stop) for name in range(clients)))

    async def _talk(self, history: History, name: str, stop: asyncio.Event) -> None:
        route = self.draw.choice(ROUTES)
        for number in count():
            turn = Turn(f"{name} {number}", time.monotonic())
            history.turns.append(turn)
            while turn.answer is None:
                await self._send(history.session, turn, route)
            if stop.is_set():
                return

    async def _send(self, session: str, turn: Turn, route: str) -> None:
        body = {"session_id": session, "messages": [{"role": "user", "content": turn.text}]}
        headers = {"Idempotency-Key": turn.key}
        told = await self._post(route, {**body, "parameters": {"max_new_tokens": 3}}, headers)
        if "generated_text" in told:
            turn.answer, turn.told_at = told["generated_text"], time.monotonic()

    async def _post(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        """Returns the body, or the last event of a stream; nothing if the server was killed or refuses for now."""
        url = self.through or (await self._one_that_is_up()).url
        try:
            async with self.client.post(url + path, json=body, headers=headers) as response:
                raw = await response.read()
                self.replayed += "Idempotent-Replayed" in response.headers
        except (aiohttp.ClientError, OSError, TimeoutError):
            await asyncio.sleep(RETRY_SECONDS)
            return {}
        told = _last(raw) if response.content_type != "text/html" else {}  # nginx's own 502
        if response.status >= 400 or "code" in told:
            self.refused[f"{response.status} {told.get('code')}"] += 1
            await asyncio.sleep(RETRY_SECONDS)
        return told

    async def _one_that_is_up(self) -> Service:
        while not (up := [service for service in self.services if service.is_up]):  # noqa: ASYNC110 - any will do
            await asyncio.sleep(RETRY_SECONDS)
        return self.draw.choice(up)

    async def read(self, session: str) -> list[dict[str, Any]]:
        """Returns a session's messages, from any service."""
        messages: list[dict[str, Any]] = []
        cursor: str | None = ""
        while cursor is not None:
            parameters = {"limit": "100", **({"cursor": cursor} if cursor else {})}
            url = f"{self.through or self.draw.choice(self.services).url}/v1/sessions/{session}/messages"
            async with self.client.get(url, params=parameters) as response:
                page = await response.json()
            messages += page["data"]
            cursor = page["next_cursor"]
        return messages


def _last(raw: bytes) -> dict[str, Any]:
    """A JSON body, or the data of a stream's last event."""
    line = raw.strip().rsplit(b"\n", 1)[-1].removeprefix(b"data: ")
    told: dict[str, Any] = json.loads(line)
    return told


@dataclass(frozen=True, slots=True)
class Outcome:
    kills: int
    answered: int
    wrong: list[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """`instances` services on `database`, and on a store where `store_url` is one. A round is a kill after `turns` at
    most: of `one` service, or of one or more. `is_balanced`: nginx stands before them."""

    rounds: int
    folder: Path
    clients: int = 24
    turns: int = 120
    instances: int = 1
    database: str = ""
    store_url: str = ""
    one: bool = False
    is_balanced: bool = False
    seed: int = 0


async def run(plan: Plan) -> Outcome:
    """Runs the rounds."""
    settings = {"DOSIRAK_STORE_URL": plan.store_url} if plan.store_url else {}
    if plan.is_balanced:
        settings["DOSIRAK_ADMIN_KEY"] = KEY
    services = [Service(plan.folder / f"data-{number}", plan.database, settings) for number in range(plan.instances)]
    limits = aiohttp.ClientTimeout(total=END_SECONDS)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(connector=connector, timeout=limits, headers=headers) as client:
        load, talks, kills = Load(client, services, random.Random(plan.seed)), list[asyncio.Task[None]](), 0
        with ExitStack() as stack:
            stack.callback(lambda: [talk.cancel() for talk in talks])
            try:
                await _start(client, services)
                if plan.is_balanced:
                    load.through = stack.enter_context(_balanced(plan.folder, services))
                for number in range(plan.rounds):
                    stop, started, before = asyncio.Event(), time.monotonic(), load.answered
                    talks += [asyncio.create_task(load.group(size, stop)) for size in _groups(plan.clients)]
                    killed = await _crash(load, plan, stop)
                    kills += killed
                    spent, answered = time.monotonic() - started, load.answered - before
                    print(f"round {number + 1}: {answered} turns, {killed} killed, {spent:.1f} s", flush=True)
                await _ended(talks)
                wrong = [
                    each for known in load.histories for each in differences(known, await load.read(known.session))
                ]
            finally:
                await asyncio.gather(*(service.kill() for service in services))
    print(f"{load.replayed} answers were replays; refused for the time being: {dict(load.refused) or 'none'}")
    return Outcome(kills, load.answered, wrong)


@contextmanager
def _balanced(folder: Path, services: Sequence[Service]) -> Iterator[str]:
    """Yields the address of an nginx before the services."""
    balancer = nginx.Nginx(folder / "balancer", services)
    try:
        yield balancer.url
    finally:
        balancer.end()


async def _crash(load: Load, plan: Plan, stop: asyncio.Event) -> int:
    """Kills services, waits until they serve again, and returns how many were killed."""
    await _loaded(load, plan.turns)
    victims = load.draw.sample(load.services, 1 if plan.one else load.draw.randint(1, len(load.services)))
    await asyncio.gather(*(service.kill() for service in victims))
    stop.set()
    await asyncio.gather(*(service.start(load.client) for service in victims))
    return len(victims)


async def _ended(talks: Sequence[asyncio.Task[None]]) -> None:
    """Waits for the clients. The histories show turns that are not answered in time."""
    started = time.monotonic()
    with suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await asyncio.gather(*talks)
    print(f"the last turns are answered after {time.monotonic() - started:.1f} s", flush=True)


async def _loaded(load: Load, turns: int) -> None:
    """Waits for a random number of turns, at most so many: the same on a busy and on an idle machine."""
    goal, deadline = load.answered + load.draw.randint(0, turns), time.monotonic() + END_SECONDS
    while load.answered < goal and time.monotonic() < deadline:  # noqa: ASYNC110 - it is counted by many
        await asyncio.sleep(RETRY_SECONDS)
    await asyncio.sleep(load.draw.uniform(0.0, 2 * RETRY_SECONDS))


def _groups(clients: int) -> list[int]:
    """Returns sessions by their clients: of four clients, two share one session."""
    return [2, 1, 1] * (clients // 4) + [1] * (clients % 4)


async def _start(client: aiohttp.ClientSession, services: Sequence[Service]) -> None:
    """Starts the services. The first one publishes the demo model and makes its record; the others get a copy."""
    await services[0].start(client)
    for service in services[1:]:
        for known in ("models", "engine"):  # without native kernels there is nothing to remember in the second
            if (source := services[0].data_dir / known).exists():
                shutil.copytree(source, service.data_dir / known, symlinks=True)
    await asyncio.gather(*(service.start(client) for service in services[1:]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--turns", type=int, default=120, help="before a kill, at most; half of it on average")
    parser.add_argument("--instances", type=int, default=1, help="services on one database")
    parser.add_argument("--database", default="", help="URL of an empty PostgreSQL database; else SQLite")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL that is started for this")
    parser.add_argument("--one", action="store_true", help="each round kills one service, and the others go on")
    parser.add_argument("--store", action="store_true", help="versions come from a store, a directory")
    parser.add_argument("--nginx", action="store_true", help="clients ask an nginx before the services")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the services that are killed")
    options = parser.parse_args()
    if options.instances > 1 and not options.database and not options.postgres:
        parser.error("several services need --postgres or --database: SQLite is one service's")
    if options.nginx and (why := nginx.missing()) is not None:
        raise SystemExit(why)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outcome = asyncio.run(run(_plan(options, Path(folder))))
    spent = (time.monotonic() - started) / options.rounds
    each = f"{outcome.answered / options.rounds:.0f} turns and {spent:.1f} s a round"
    wrong = f"{len(outcome.wrong)} wrong"
    print("\n".join([*outcome.wrong, f"{outcome.answered} turns over {outcome.kills} kills, {each}, {wrong}"]))
    return int(bool(outcome.wrong) or outcome.answered < outcome.kills)


def _plan(options: argparse.Namespace, folder: Path) -> Plan:
    return Plan(
        rounds=options.rounds,
        folder=folder,
        clients=options.clients,
        turns=options.turns,
        instances=options.instances,
        database=_own_postgres() if options.postgres else options.database,
        store_url=fresh_store("directory", folder) if options.store else "",
        one=options.one,
        is_balanced=options.nginx,
        seed=options.seed,
    )


def _own_postgres() -> str:
    if (missing := postgres.missing()) is not None:
        raise SystemExit(missing)
    return postgres.server().new_database()


if __name__ == "__main__":
    raise SystemExit(main())
