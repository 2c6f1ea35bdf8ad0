"""Two real servers behind nginx, with one PostgreSQL and one store: whichever answers, the answer is the same."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import httpx
import pytest

from loadtest.crashes import Load
from loadtest.histories import differences
from loadtest.moves import GOAL_SECONDS, measure
from models.imports.starter import WEIGHTS
from tests.e2e.server import Server, free_port, python, running
from tests.stores import KINDS
from tests.two_instances import ALIAS, KEY, Pair, missing, two_instances
from tests.waiting import block_until, until

pytestmark = [pytest.mark.skipif(missing() is not None, reason=str(missing())), pytest.mark.nightly]
TURNS = 100
POLICIES = ("window", "retrieve")
OUTAGE_SECONDS = 30.0
BACK_SECONDS = 15.0
"""How long after PostgreSQL's start all must be there again: a look a second, and a machine with other work."""
MENU = ("불고기 도시락", "김치볶음밥", "비빔밥", "제육 도시락", "돈까스", "잡채밥", "함박 스테이크")


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_instances(tmp_path_factory.mktemp("pair"), request.param) as made:
        made.load_both_versions()
        yield made


@pytest.fixture
def alone(pair: Pair, tmp_path: Path) -> Iterator[Server]:
    """One server with SQLite and no store, on copies of the versions and of the measurements of this machine."""
    for known in ("models", "engine"):
        shutil.copytree(pair.instances[0].directory / known, tmp_path / "data" / known, symlinks=True)
    command, folder = python("-m", "service.cli", "serve"), tmp_path
    with running(command, folder / "data", folder / "log", free_port(), DOSIRAK_THREADS="1") as server:
        yield server


def turn(client: httpx.Client, session: str, number: int) -> httpx.Response:
    """One turn of the chat. Pairs of turns have one policy, so that both instances have both. The depth of a cut is
    given: else it follows from what an engine's steps cost, as each instance measures it."""
    asked = f"{number}번째 손님이에요. {MENU[number % 7]} {number % 5 + 1}개 주세요. {number // 3}번째 주문은 뭐였어요?"
    body = {
        "session_id": session,
        "messages": [{"role": "user", "content": asked}],
        "context": {"policy": POLICIES[number // 2 % 2], "low_water": 0.5},
        "parameters": {"max_new_tokens": 16, "ignore_eos": True},
    }
    response = client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return response


def messages(client: httpx.Client, session: str) -> list[dict[str, Any]]:
    found, cursor = list[dict[str, Any]](), ""
    while cursor is not None:
        query = {"limit": "100", **({"cursor": cursor} if cursor else {})}
        page = client.get(f"/v1/sessions/{session}/messages", params=query).raise_for_status().json()
        found += page["data"]
        cursor = page["next_cursor"]
    return found


def by_position(told: Any, positions: dict[str, int]) -> Any:
    """Returns a receipt with places in the chat instead of ids, which differ from chat to chat. What the cache of an
    instance had is its own."""
    if isinstance(told, dict):
        return {name: by_position(each, positions) for name, each in told.items() if name != "cached_tokens"}
    if isinstance(told, list):
        return [by_position(each, positions) for each in told]
    return positions.get(told, told) if isinstance(told, str) else told


def test_a_chat_of_a_hundred_turns_alternates_and_is_that_of_one_instance(pair: Pair, alone: Server) -> None:
    chats = dict[str, tuple[list[httpx.Response], list[dict[str, Any]]]]()
    with pair.client() as through, alone.client() as single:
        for name, client in (("pair", through), ("single", single)):
            session = client.post("/v1/sessions", json={}).raise_for_status().json()["id"]
            answers = [turn(client, session, number) for number in range(TURNS)]
            chats[name] = answers, messages(client, session)
            if name == "pair":
                for each in pair.instances:
                    with each.client() as direct:
                        assert messages(direct, session) == chats["pair"][1]
    answered = [response.headers["X-Instance"] for response in chats["pair"][0]]
    assert len(set(answered)) == 2 and all(before != after for before, after in pairwise(answered)), answered
    recalled, cuts, shown = 0, set[str](), dict[str, list[Any]]()
    for name, (answers, stored) in chats.items():
        positions = {each["id"]: place for place, each in enumerate(stored)}
        assert [each["role"] for each in stored] == ["user", "assistant"] * TURNS
        assert [each["content"] for each in stored[1::2]] == [each.json()["generated_text"] for each in answers]
        receipts = [each.json()["context"] for each in answers]
        recalled += sum(bool(each.get("recalled")) for each in receipts)
        cuts |= {each["cut"]["at"] for each in receipts if each["cut"]}
        assert all(each["used"] == sum(each["parts"].values()) for each in receipts)
        texts = [(each["role"], each["content"]) for each in stored]
        shown[name] = [*texts, *(by_position(each, positions) for each in receipts)]
        shown[name] += [each.json()["digest"] for each in answers]
    for ours, theirs in zip(shown["pair"], shown["single"], strict=True):
        assert ours == theirs
    assert recalled > 20 and len(cuts) > 4, "the chat is too short to need its policies"


def test_fifty_moves_under_load_fail_nothing_mix_nothing_and_are_seen_by_both(pair: Pair) -> None:
    seen = asyncio.run(measure(pair.url, [each.url for each in pair.instances], 50, 4))
    assert seen.wrong == [] and min(seen.answers.values()) > 20
    assert len(seen.seconds) == 100 and seen.p99 <= GOAL_SECONDS, sorted(seen.seconds)[-5:]


def test_a_version_in_use_by_the_other_cannot_be_deleted_and_409_names_it(pair: Pair) -> None:
    """Version 3 is published at the one, served by the other alone, and deleted when nobody uses it."""
    one, two = pair.instances
    with one.client() as first, two.client() as second:
        body = {"source": str(WEIGHTS), "version": "3", "evaluate": "none"}
        job = first.post("/v1/repository/models/demo/versions", json=body)
        assert job.status_code == 202, job.text
        block_until(lambda: "3" in versions(first), 120)
        block_until(lambda: "3" in versions(second), 10)
        answer = second.post("/generate", json={"model": "demo:3", "inputs": "hi", "parameters": {"max_new_tokens": 4}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "demo:3"
        holder = answer.headers["X-Instance"]
        refused = first.delete("/v1/repository/models/demo/versions/3")
        assert refused.status_code == 409 and f"in use by instance {holder}" in refused.text
        assert second.delete("/v1/deployments/demo:3").status_code == 202
        block_until(lambda: first.delete("/v1/repository/models/demo/versions/3").status_code in (200, 204), 30)
        block_until(lambda: "3" not in versions(second), 10)


def versions(client: httpx.Client) -> list[str]:
    listed = client.get("/v1/repository/models/demo").raise_for_status().json()
    return [each["version"] for each in listed["versions"]]


def test_one_connection_of_a_server_listens(pair: Pair) -> None:
    """The process of `dosirak serve` that waits for its server has none."""
    listening = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{pair.database_name}' AND query LIKE 'LISTEN%'"
    block_until(lambda: pair.database.sql(listening) == str(len(pair.instances)), 10)


class Stateless:
    """Clients that ask without a session, all the time, through nginx."""

    def __init__(self, pair: Pair) -> None:
        self._url = pair.url
        self._stop = asyncio.Event()
        self.answers, self.wrong = 0, list[str]()

    @asynccontextmanager
    async def asking(self, clients: int) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._ask()) for _ in range(clients)]
        try:
            yield
        finally:
            self._stop.set()
            await asyncio.gather(*tasks)

    async def _ask(self) -> None:
        async with httpx.AsyncClient(base_url=self._url, headers=KEY, timeout=60) as client:
            while not self._stop.is_set():
                answer = await client.post("/generate", json={"inputs": "hi", "parameters": {"max_new_tokens": 8}})
                self.answers += 1
                if answer.status_code != 200 or answer.json()["version"] != "2":
                    self.wrong.append(answer.text)


async def refusals(client: httpx.AsyncClient) -> list[httpx.Response]:
    """Returns the answers to changes and to a session's turn."""
    session = {"session_id": "s_0123456789abcdef0123456789abcdef", "messages": [{"role": "user", "content": "hi"}]}
    return [
        await client.put(ALIAS, json={"version": "1", "override": True, "reason": "now"}),
        await client.post("/v1/deployments", json={"model": "demo:1"}),
        await client.delete("/v1/repository/models/demo/versions/1"),
        await client.post("/v1/sessions", json={}),
        await client.post("/generate", json=session),
    ]


async def back(is_so: Callable[[], Awaitable[bool]]) -> float:
    """Waits until it is so. Returns how long that took."""
    began = time.monotonic()
    async with asyncio.timeout(BACK_SECONDS):
        while not await is_so():
            await asyncio.sleep(0.1)
    return time.monotonic() - began


async def test_postgresql_away_stops_changes_and_turns_alone_and_all_comes_back_by_itself(pair: Pair) -> None:
    sessions = aiohttp.ClientSession(headers=KEY, timeout=aiohttp.ClientTimeout(total=120))
    stateless, stop = Stateless(pair), asyncio.Event()
    async with sessions, httpx.AsyncClient(base_url=pair.url, headers=KEY, timeout=60) as client:
        (await client.put(ALIAS, json={"version": "2", "override": True, "reason": "before"})).raise_for_status()
        load = Load(sessions, [], Random(5), through=pair.url)
        talks = [asyncio.create_task(load.group(size, stop)) for size in (2, 1)]
        async with stateless.asking(2):
            await until(lambda: load.answered > 10 and stateless.answers > 10)
            await asyncio.to_thread(pair.database.stop)
            began, turns, answers = time.monotonic(), load.answered, stateless.answers
            while time.monotonic() - began < OUTAGE_SECONDS:
                for refused in await refusals(client):
                    assert refused.status_code == 503, refused.text
                    assert int(refused.headers["Retry-After"]) > 0 and len(refused.json()["error"]) > 20
                await asyncio.sleep(1)
            assert stateless.answers - answers > OUTAGE_SECONDS, "they go on by the last known aliases"
            assert load.answered - turns <= len(talks) + 1, "only what was in the making when it was stopped"
            await asyncio.to_thread(pair.database.start)
            turns = load.answered

            async def turns_go_on() -> bool:
                return load.answered > turns + 3

            async def both_are_there() -> bool:
                listed = await client.get("/v1/instances")
                ready = [each["ready"] and each["living"] for each in listed.json().get("data", [])]
                return ready == [True, True]

            async def changes_are_taken() -> bool:
                told = await client.put(ALIAS, json={"version": "2", "override": True, "reason": "after"})
                return told.status_code in (200, 409)

            seconds = [await back(each) for each in (turns_go_on, both_are_there, changes_are_taken)]
            print(f"back after {seconds} s; refused meanwhile: {dict(load.refused)}")
        stop.set()
        await asyncio.gather(*talks)
        assert stateless.wrong == []
        assert load.refused.keys() <= {"503 unavailable", "200 unavailable"}, "the latter: a stream that had begun"
        for history in load.histories:
            assert history.answered == len(history.turns)
            assert differences(history, await load.read(history.session)) == []
