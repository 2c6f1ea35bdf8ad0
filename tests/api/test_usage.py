"""Usage: what each key has used of each model, which quotas go by after a restart and beside other instances."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from models.repository.repository import Repository
from service.errors import RateLimited, Unavailable
from service.generation.quotas import Quotas
from service.generation.usage import FORGOTTEN_SECONDS, Usage
from service.storage.keys import KeyLimits
from service.storage.sessions import SessionStore
from service.storage.usage import DAY, HOUR, KEPT, MINUTE
from tests.api.batching import create, jsonl, request, upload
from tests.api.conftest import KEY
from tests.api.reading import error
from tests.fake_service import CACHED, World, publish, serving
from tests.sessions import KINDS, Clock, new_database

OPERATOR = {"Authorization": f"Bearer {KEY}"}


async def made(world: World, *scopes: str, **more: Any) -> tuple[str, dict[str, str]]:
    body = {"name": "shop", "scopes": scopes or ["generate"], **more}
    answer = (await world.client.post("/v1/keys", json=body, headers=OPERATOR)).json()
    return answer["id"], {"Authorization": f"Bearer {answer['key']}"}


async def ask(world: World, headers: dict[str, str], model: str = "demo") -> int:
    body = {"inputs": "hi", "model": model, "parameters": {"max_new_tokens": 4}}
    return (await world.client.post("/generate", json=body, headers=headers)).status_code


async def used(world: World, headers: dict[str, str], **query: str) -> list[dict[str, Any]]:
    answer = await world.client.get("/v1/usage", params=query, headers=headers)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


async def test_each_key_sees_its_own_and_the_operator_all(tmp_path: Path) -> None:
    publish(Repository(tmp_path), "other")
    publish(Repository(tmp_path), "demo")
    async with serving(tmp_path, admin_key=KEY) as world:
        clock, usage = Clock(), world.app.state.service.answers.usage
        usage.clock = lambda: clock.now.timestamp()
        (mine, headers), (other, others) = await made(world, limits={"requests_per_minute": 2}), await made(world)
        assert [await ask(world, headers, name) for name in ("demo", "other:1", "demo")] == [200, 200, 429]
        clock.move(2 * HOUR)
        assert (await ask(world, headers), await ask(world, others), await ask(world, OPERATOR)) == (200, 200, 200)
        await usage.write()
        rows = await used(world, headers, by="day")
        assert {(row["model"], row["requests"], row["refused"]) for row in rows} == {
            ("demo:1", 2, 0),
            ("other:1", 1, 0),
            (None, 0, 1),
        }
        (row,) = await used(world, headers, by="hour", model="demo", since=f"{clock.now:%Y-%m-%dT%H}:00:00Z")
        answer = await world.client.post("/generate", json={"inputs": "hi"}, headers=others)
        prompt = answer.json()["usage"]["prompt_tokens"]
        tokens = {"prompt_tokens": prompt, "cached_tokens": CACHED, "completion_tokens": 4}
        start = "2026-11-21T14:00:00+00:00"
        assert row == {"start": start, "key": mine, "model": "demo:1", "requests": 1, "refused": 0, **tokens}
        everybody = await used(world, OPERATOR)
        assert len(everybody) == 5 and [row for row in everybody if row["key"] == mine] == rows
        assert {row["key"] for row in everybody} > {mine, other} and KEY not in str(everybody)
        assert await used(world, OPERATOR, key=other) == await used(world, others, key=other)
        refused = await world.client.get("/v1/usage", params={"key": mine}, headers=others)
        assert "no key" in error(refused, 404, "not_found")["error"]
        for wrong in ({"key": "a\x00"}, {"model": "a\x00"}, {"since": "tea"}, {"cursor": "tea"}):
            told = await world.client.get("/v1/usage", params=wrong, headers=OPERATOR)
            assert next(iter(wrong)) in error(told, 422, "invalid_request")["error"]
        paged, cursor = list[Any](), ""
        while cursor is not None:
            query: dict[str, Any] = {"limit": 1, **({"cursor": cursor} if cursor else {})}
            page = (await world.client.get("/v1/usage", params=query, headers=OPERATOR)).json()
            paged, cursor = paged + page["data"], page["next_cursor"]
        assert paged == everybody


async def test_a_spent_day_stays_spent_after_a_restart(tmp_path: Path) -> None:
    """And until midnight, though the key is rotated; a limit that is set later counts what was used before."""
    moments = Clock()
    moments.move(6 * HOUR)
    async with serving(tmp_path, admin_key=KEY) as world:
        id, headers = await made(world)
        usage = world.app.state.service.answers.usage
        usage.clock = lambda: moments.now.timestamp()
        assert await ask(world, headers) == 200
        await usage.stop()
    async with serving(tmp_path, admin_key=KEY) as world:
        world.app.state.service.answers.usage.clock = lambda: moments.now.timestamp()
        await world.client.patch(f"/v1/keys/{id}", json={"limits": {"tokens_per_day": 4}}, headers=OPERATOR)
        rotated = (await world.client.post(f"/v1/keys/{id}/rotate", headers=OPERATOR)).json()
        headers = {"Authorization": f"Bearer {rotated['key']}"}
        refused = await world.client.post("/generate", json={"inputs": "hi"}, headers=headers)
        assert error(refused, 429, "rate_limited")["tokens_per_day"] == 4
        assert refused.headers["retry-after"] == str(6 * HOUR)
        assert (await world.client.get("/v1/models", headers=headers)).status_code == 200
        moments.move(6 * HOUR)
        assert await ask(world, headers) == 200


@pytest.mark.parametrize("limits", [{"tokens_per_day": 4}, {"requests_per_day": 3}])
async def test_a_spent_key_still_reads_ends_and_deletes_its_own(tmp_path: Path, limits: dict[str, int]) -> None:
    async with serving(tmp_path, admin_key=KEY) as world:
        _, headers = await made(world, limits=limits)
        client = world.client
        client.headers.update(headers)
        for _ in range(5):
            assert (await client.get("/v1/batches")).status_code == 200
        batch, file = await create(world, jsonl([request("a")])), await upload(world, jsonl([request("b")]))
        chat = {"messages": [{"role": "user", "content": "hi"}], "store": True, "max_tokens": 4}
        completion = (await client.post("/v1/chat/completions", json=chat)).json()["id"]
        response = (await client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 4})).json().get("id")
        assert await ask(world, headers) == 429 and (await client.post("/v1/batches", json={})).status_code == 429
        stored = f"/v1/chat/completions/{completion}"
        for method, path, body in (
            ("GET", f"/v1/batches/{batch['id']}", None),
            ("POST", f"/v1/batches/{batch['id']}/cancel", None),
            ("GET", f"/v1/files/{file}/content", None),
            ("DELETE", f"/v1/files/{file}", None),
            ("POST", stored, {"metadata": {"a": "b"}}),
            ("DELETE", stored, None),
            ("DELETE", f"/v1/responses/{response}", None),
        ):
            answer = await client.request(method, path, json=body, headers=headers)
            assert answer.status_code == (404 if "None" in path else 200), (method, path, answer.text)
        assert await upload(world, jsonl([request("c")]))


# What instances of one database count


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


async def instance(url: str, clock: Clock) -> tuple[SessionStore, Usage]:
    store = await SessionStore.open(url)

    async def opened() -> SessionStore:
        return store

    return store, Usage(opened, lambda: clock.now.timestamp())


@contextmanager
def refused() -> Iterator[Any]:
    with pytest.raises(RateLimited) as told:
        yield told


@pytest.mark.parametrize("period", ["minute", "day"])
async def test_instances_share_a_quota_after_a_write(url: str, period: str) -> None:
    clock = Clock()
    (one_store, one), (two_store, two) = await instance(url, clock), await instance(url, clock)
    limits = KeyLimits(**{f"requests_per_{period}": 4})
    await two.known("shop")
    for _ in range(3):
        (await Quotas(one).enter("shop", limits))()
    await asyncio.gather(one.write(), two.write())
    await two.write()
    (await Quotas(two).enter("shop", limits))()
    with refused() as told:
        await Quotas(two).enter("shop", limits)
    assert told.value.retry_after > 1
    (await Quotas(one).enter("shop", limits))()  # what two has let in since: so far a quota is passed
    await asyncio.gather(*(each.write() for each in (one, two)))
    clock.move(2 * MINUTE if period == "minute" else DAY)
    for each in (one, two):
        (await Quotas(each).enter("shop", limits))()
        await each.write()
    await one_store.close()
    await two_store.close()


async def test_counts_of_many_writers_add_up_and_old_ones_leave(url: str) -> None:
    clock = Clock()
    made = [await instance(url, clock) for _ in range(3)]
    for _ in range(10):
        for _, usage in made:
            for owner in ("b", "a"):
                usage.answered(owner, "demo:1", {"prompt_tokens": 2, "total_tokens": 9})
        await asyncio.gather(*(usage.write() for _, usage in made))
    _, usage = made[0]
    await usage.known("a")
    for seconds in (MINUTE, DAY):
        assert usage.spent("a", seconds, usage.clock())["prompt_tokens"] == 60
    clock.move(KEPT[HOUR] + HOUR)
    swept = await SessionStore.open(url, clock=clock)
    await swept.sweep()
    async with swept._database.reading() as connection:
        assert (await connection.exec_driver_sql("SELECT count(*) FROM usage")).scalar_one() == 0
    for each in (swept, *(store for store, _ in made)):
        await each.close()


async def no_row(counts: object) -> None:
    raise Unavailable("away")


@pytest.mark.parametrize("fails", [True, False])
async def test_a_stop_during_a_write_loses_no_count_and_writes_none_twice(tmp_path: Path, fails: bool) -> None:
    clock, begun, ends = Clock(), asyncio.Event(), asyncio.Event()
    store, usage = await instance(new_database("sqlite", tmp_path), clock)
    count = store.usage.count

    async def slow(counts: Any) -> None:
        begun.set()
        await ends.wait()
        if fails:
            raise Unavailable("away")
        await count(counts)

    usage.answered("shop", "demo:1", {"prompt_tokens": 5})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store.usage, "count", slow)
        write = asyncio.create_task(usage.write())
        await begun.wait()
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
        usage.answered("shop", "demo:1", {"prompt_tokens": 2})
        stop = asyncio.create_task(usage.stop())
        await asyncio.sleep(0)
    ends.set()
    await stop
    [spent] = (await store.usage.spent(["shop"], usage.clock())).values()
    assert [counts["prompt_tokens"] for counts in spent.values()] == [7] * len(spent) and spent
    assert not usage._new and not usage._writing
    await store.close()


async def test_while_the_database_is_away_requests_pass_and_counts_wait(tmp_path: Path) -> None:
    clock, is_away = Clock(), True
    store, _ = await instance(new_database("sqlite", tmp_path), clock)

    async def opened() -> SessionStore:
        if is_away:
            raise Unavailable("away")
        return store

    usage = Usage(opened, lambda: clock.now.timestamp())
    quotas, limits = Quotas(usage), KeyLimits(requests_per_day=2)
    (await quotas.enter("shop", limits))()
    with pytest.raises(Unavailable):
        await usage.write()
    clock.move(3 * MINUTE)
    (await quotas.enter("shop", limits))()
    is_away = False
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Unavailable):
        patched.setattr(store.usage, "count", no_row)
        await usage.write()
    await usage.write()
    with refused():
        await quotas.enter("shop", limits)
    clock.move(FORGOTTEN_SECONDS + 1)
    await usage.write()
    assert not usage.known_owners and not usage._new, "who is gone leaves the memory"
    with refused():
        await quotas.enter("shop", limits)
    await store.close()
