"""Keys of callers: they close an open server, have owners of their own, end everywhere, and bound what they may use."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from pydantic import SecretStr

from models.errors import Unreachable
from models.repository.disk.records import FileRecords
from models.repository.repository import Repository
from service.api.edge.bearers import Bearers
from service.errors import RateLimited, Unavailable
from service.generation import quotas, usage
from service.storage import keys as stored
from service.storage.keys import KeyLimits, Keys
from service.storage.records.mirror import Mirror, changes_of
from service.storage.usage import DAY
from tests import postgres
from tests.api.batching import create, ended, hurry, jsonl, request, with_batches
from tests.api.conftest import KEY
from tests.api.reading import error, openai_error
from tests.fake_service import World, over_http, publish, serving
from tests.fakes import FakeClock
from tests.sessions import Clock, needs_postgresql
from tests.waiting import until

Headers = Mapping[str, str]
OPERATOR = {"Authorization": f"Bearer {KEY}"}
ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    publish(Repository(tmp_path), "other")
    publish(Repository(tmp_path), "demo")
    async with serving(tmp_path, admin_key=KEY) as served:
        yield served


async def made(world: World, *scopes: str, headers: Headers = OPERATOR, **more: Any) -> tuple[str, dict[str, str]]:
    """A new key's id, and the headers of its bearer."""
    body = {"name": "shop", "scopes": scopes or ["generate", "sessions", "models:read"], **more}
    answer = await world.client.post("/v1/keys", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"], {"Authorization": f"Bearer {answer.json()['key']}"}


async def passes(world: World, headers: Headers) -> bool:
    answer = await world.client.get("/v1/models", headers=headers)
    assert answer.status_code in (200, 401), answer.text
    return answer.status_code == 200


async def test_the_first_key_closes_an_open_server_and_the_last_opens_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        client = world.client
        for scopes, more in ((["generate"], {}), (["admin"], {"expires_at": "2999-01-01T00:00:00Z"})):
            body = {"name": "shop", "scopes": scopes, **more}
            assert "would be left" in error(await client.post("/v1/keys", json=body), 409, "conflict")["error"]
        assert await passes(world, {})
        first, admin = await made(world, "admin", headers={})
        assert not await passes(world, {}) and await passes(world, admin)
        shop, _ = await made(world, headers=admin)
        left = await client.delete(f"/v1/keys/{first}", headers=admin)
        assert left.status_code == 409 and await passes(world, admin)
        assert "sign-out" in (await client.get("/ui/models", headers=admin)).text
        for id in (shop, first):
            assert (await client.delete(f"/v1/keys/{id}", headers=admin)).status_code == 204
        assert await passes(world, {})


async def test_a_key_is_told_once_and_kept_nowhere(world: World) -> None:
    id, bearer = await made(world)
    told = bearer["Authorization"].removeprefix("Bearer ")
    listed = await world.client.get("/v1/keys", headers=OPERATOR)
    one = await world.client.get(f"/v1/keys/{id}", headers=OPERATOR)
    assert "key" not in one.json() and listed.json() == {"data": [one.json()]}
    secret = told.split("-", 3)[3].encode()  # which may hold more of these
    assert len(secret) > 40
    files = [path for path in world.settings.data_dir.rglob("*") if path.is_file()]
    assert any(path.parent.name == "server" for path in files)
    assert not [path for path in files if secret in path.read_bytes()]


async def test_a_rotation_sent_again_leaves_the_key_that_clients_have_its_grace(world: World) -> None:
    """The first answer may be lost, and with it the only text of the new key."""
    id, first = await made(world)
    path = f"/v1/keys/{id}/rotate"
    bearers = [first]
    for seconds in (60, 30, 90):
        rotated = await world.client.post(path, json={"grace_seconds": seconds}, headers=OPERATOR)
        bearers.append({"Authorization": f"Bearer {rotated.json()['key']}"})
    assert [await passes(world, each) for each in bearers] == [True] * 4
    for _ in range(20):
        await world.client.post(path, json={"grace_seconds": 10}, headers=OPERATOR)
    assert await passes(world, bearers[2]), "of too many, those that end first are dropped"
    last = (await world.client.post(path, json={"grace_seconds": 0}, headers=OPERATOR)).json()["key"]
    assert [await passes(world, each) for each in bearers] == [False] * 4
    assert await passes(world, {"Authorization": f"Bearer {last}"})


async def test_a_rotated_key_keeps_what_it_stored(world: World) -> None:
    id, before = await made(world)
    client = world.client
    session = (await client.post("/v1/sessions", json={"title": "tea"}, headers=before)).json()["id"]
    path = f"/v1/keys/{id}/rotate"
    rotated = await client.post(path, json={"grace_seconds": 60}, headers=OPERATOR)
    after = {"Authorization": f"Bearer {rotated.json()['key']}"}
    for bearer in (before, after):
        assert (await client.get(f"/v1/sessions/{session}", headers=bearer)).json()["title"] == "tea"
    await client.post(path, headers=OPERATOR)
    assert not await passes(world, before) and not await passes(world, after)


async def test_what_a_key_stored_is_nobody_elses(world: World) -> None:
    """Not the operator's either: 404, not 403."""
    (_, mine), (_, other) = await made(world), await made(world)
    client = world.client
    document = {"file": ("in.jsonl", jsonl([request("a")]))}
    answers = {
        "sessions": await client.post("/v1/sessions", json={}, headers=mine),
        "conversations": await client.post("/v1/conversations", json={}, headers=mine),
        "knowledge": await client.post("/v1/knowledge", json={"text": "tea"}, headers=mine),
        "responses": await client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 2}, headers=mine),
        "chat/completions": await client.post("/v1/chat/completions", json={**ASK, "store": True}, headers=mine),
        "files": await client.post("/v1/files", data={"purpose": "batch"}, files=document, headers=mine),
    }
    batch = {"input_file_id": answers["files"].json()["id"], "endpoint": "/v1/chat/completions"}
    batch["completion_window"] = "24h"
    answers["batches"] = await client.post("/v1/batches", json=batch, headers=mine)
    for kind, answer in answers.items():
        assert answer.is_success, answer.text
        path = f"/v1/{kind}/{answer.json()['id']}"
        for bearer, status in ((mine, 200), (other, 404), (OPERATOR, 404)):
            assert (await client.get(path, headers=bearer)).status_code == status, path
        for verb, tail in (("DELETE", ""), ("POST", "/cancel")):
            refused = await client.request(verb, path + tail, headers=other)
            assert refused.status_code in (404, 405), f"{verb} {path}{tail}: {refused.text}"
    assert (await client.post("/v1/batches", json=batch, headers=other)).status_code == 404
    salts = {each.cache_salt for engine in world.engines for each in engine.requests}
    assert len(salts) == 1 and KEY not in str(salts), "its prefix blocks are its own"


async def test_only_its_models_answer_a_key(world: World) -> None:
    _, bearer = await made(world, models=["demo:1"])
    client, before = world.client, len(world.engines)
    assert (await client.get("/v1/models", headers=bearer)).text.count('"root":"other') == 0
    tags = (await client.get("/api/tags", headers=bearer)).json()["models"]
    assert {each["name"] for each in tags} == {"demo:1", "demo:latest"}
    assert (await client.post("/v1/chat/completions", json=ASK, headers=bearer)).status_code == 200
    session = (await client.post("/v1/sessions", json={"model": "other"}, headers=bearer)).json()["id"]
    prompt = {"model": "other", "prompt": "hi", "max_tokens": 2}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/generate", {"inputs": "hi", "model": "other"}),
        ("/generate", {"messages": ASK["messages"], "session_id": session}),
        ("/v1/chat/completions", {**ASK, "model": "other:1"}),
        ("/v1/completions", prompt),
        ("/v1/embeddings", {"model": "other", "input": "hi"}),
        ("/v1/responses", {"model": "other", "input": "hi"}),
        ("/v1/messages", {**ASK, "model": "other"}),
        ("/v1/messages/count_tokens", {"messages": ASK["messages"], "model": "other"}),
        ("/v1/context/preview", {"inputs": "hi", "model": "other"}),
        ("/api/chat", {"model": "other", "messages": ASK["messages"]}),
        ("/api/chat", {"model": "other", "messages": []}),
        ("/api/show", {"model": "other"}),
        ("/tokenize", {"model": "other", "inputs": "hi"}),
        ("/v2/models/other/generate", {"text_input": "hi"}),
    ]
    for path, body in bodies:
        refused = await client.post(path, json=body, headers=bearer)
        assert refused.status_code == 404 and "for this key" in refused.text, f"{path}: {refused.text}"
    for path in ("/v1/models/other", "/v2/models/other", "/tokenizer_info?model=other"):
        assert (await client.get(path, headers=bearer)).status_code == 404, path
    unload = {"model": "demo:1", "messages": [], "keep_alive": 0}
    assert (await client.post("/api/chat", json=unload, headers=bearer)).status_code == 403, "it is not theirs alone"
    assert len(world.engines) == before, "no refused request loads a model"
    body = {"name": "x", "scopes": ["generate", "models:write"], "models": ["demo"]}
    wide = await client.post("/v1/keys", json=body, headers=OPERATOR)
    assert "models:write" in error(wide, 422, "invalid_request")["error"]


async def test_a_key_ends_by_itself_and_a_change_acts_at_once(world: World) -> None:
    id, bearer = await made(world, expires_at="2001-01-01T00:00:00+09:00")
    ended = await world.client.get("/v1/models", headers=bearer)
    assert ended.status_code == 401 and "has ended" in ended.text
    later = {"expires_at": "2999-01-01T00:00:00Z", "scopes": ["sessions"]}
    changed = await world.client.patch(f"/v1/keys/{id}", json=later, headers=OPERATOR)
    assert changed.json()["expires_at"] == "2999-01-01T00:00:00+00:00"
    assert (await world.client.get("/v1/models", headers=bearer)).status_code == 403
    await world.client.patch(f"/v1/keys/{id}", json={"scopes": ["admin"]}, headers=OPERATOR)
    assert await passes(world, bearer), "admin has every scope"
    assert (await world.client.delete(f"/v1/keys/{id}", headers=bearer)).status_code == 204
    assert not await passes(world, bearer)
    assert (await world.client.get(f"/v1/keys/{id}", headers=OPERATOR)).status_code == 404


async def test_a_change_of_one_limit_leaves_the_others(world: World) -> None:
    id, _ = await made(world, limits={"requests_per_day": 5, "tokens_per_day": 50})
    absent = dict.fromkeys(("requests_per_minute", "tokens_per_minute", "concurrent"))
    for limits, left in (
        ({"concurrent": 2}, {"requests_per_day": 5, "tokens_per_day": 50, "concurrent": 2}),
        ({"requests_per_day": None}, {"requests_per_day": None, "tokens_per_day": 50, "concurrent": 2}),
        ({}, {"requests_per_day": None, "tokens_per_day": 50, "concurrent": 2}),
    ):
        changed = await world.client.patch(f"/v1/keys/{id}", json={"limits": limits}, headers=OPERATOR)
        assert changed.json()["limits"] == absent | left
        assert (await world.client.get(f"/v1/keys/{id}", headers=OPERATOR)).json()["limits"] == absent | left
    changed = await world.client.patch(f"/v1/keys/{id}", json={"limits": None}, headers=OPERATOR)
    assert changed.json()["limits"] is None
    changed = await world.client.patch(f"/v1/keys/{id}", json={"limits": {"concurrent": 3}}, headers=OPERATOR)
    assert changed.json()["limits"] == absent | {"requests_per_day": None, "tokens_per_day": None, "concurrent": 3}


async def test_changes_of_limits_at_one_time_all_count(world: World) -> None:
    id, _ = await made(world)
    limits = ("requests_per_minute", "tokens_per_minute", "requests_per_day", "tokens_per_day", "concurrent")
    patch = partial(world.client.patch, f"/v1/keys/{id}", headers=OPERATOR)
    await asyncio.gather(*(patch(json={"limits": {name: 7}}) for name in limits))
    assert (await world.client.get(f"/v1/keys/{id}", headers=OPERATOR)).json()["limits"] == dict.fromkeys(limits, 7)


async def test_an_end_may_be_the_last_moment_there_is(world: World) -> None:
    for never in ("9999-12-31T23:59:59.9999999Z", "9999-12-31T23:59:59Z"):
        id, _ = await made(world, expires_at=never)
        listed = (await world.client.get("/v1/keys", headers=OPERATOR)).json()["data"]
        assert {each["id"]: each["expires_at"] for each in listed}[id] == "9999-12-31T23:59:59+00:00"


async def test_a_key_of_a_version_is_answered_by_no_other(world: World) -> None:
    """While a rollout tries a candidate, and when the alias has just moved."""
    repository = world.deployments.repository
    publish(repository, "demo", other={"number": 2})
    repository.promote("demo", "production", "1", "first")
    _, one = await made(world, models=["demo:1"])
    _, two = await made(world, models=["demo:2"])
    _, all_of_it = await made(world, models=["demo"])
    rollout = {"candidate": "2", "weight": 100}
    url = "/v1/repository/models/demo/aliases/production"

    async def version(bearer: Headers) -> str:
        answer = await world.client.post("/generate", json={"inputs": "hi", "model": "demo"}, headers=bearer)
        return str(answer.json()["model"]).removeprefix("demo:") if answer.is_success else str(answer.status_code)

    assert (await world.client.put(f"{url}/rollout", json=rollout, headers=OPERATOR)).status_code == 200
    await until(lambda: [each.state.value for each in world.deployments.all()] == ["ready", "ready"])
    assert [await version(each) for each in (all_of_it, one, two)] == ["2", "1", "404"]
    assert (await world.client.delete(f"{url}/rollout", headers=OPERATOR)).status_code == 200
    repository.promote("demo", "production", "2", "second")
    assert [await version(each) for each in (two, one)] == ["2", "404"]


@pytest.mark.parametrize(
    "moment", ["tomorrow", "2030-01-01", "2030-01-01T00:00:00", "0001-01-01T00:00:00+23:59", 5, True, ""]
)
async def test_a_moment_that_is_none_is_refused_by_name(world: World, moment: Any) -> None:
    body = {"name": "shop", "scopes": ["generate"], "expires_at": moment}
    answer = await world.client.post("/v1/keys", json=body, headers=OPERATOR)
    assert "`expires_at`" in error(answer, 422, "invalid_request")["error"]


async def test_refusals_have_the_form_of_their_dialect(world: World) -> None:
    _, reads = await made(world, "models:read")
    async with over_http(world) as url:
        for key, openais, anthropics in (
            ("sk-dosirak-0-0", openai.AuthenticationError, anthropic.AuthenticationError),
            (reads["Authorization"][7:], openai.PermissionDeniedError, anthropic.PermissionDeniedError),
        ):
            with pytest.raises(openais):
                client: Any = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
                await client.chat.completions.create(model="demo", messages=ASK["messages"])
            with pytest.raises(anthropics):
                other: Any = anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)
                await other.messages.create(model="demo", messages=ASK["messages"], max_tokens=2)
    for path in ("/api/chat", "/v2/models/demo/generate"):
        for headers, status in (({}, 401), (reads, 403)):
            refused = await world.client.post(path, json={}, headers=headers)
            assert (refused.status_code, refused.json().keys()) == (status, {"error"}), path


async def test_a_browser_signs_in_with_a_key_until_it_is_rotated(world: World) -> None:
    id, bearer = await made(world)
    key = bearer["Authorization"].removeprefix("Bearer ")
    answer = await world.client.post("/ui/sign-in", data={"key": key, "path": "models"})
    assert answer.status_code == 303 and key not in answer.headers["set-cookie"]
    world.client.cookies.clear()
    jar = {"Cookie": answer.headers["set-cookie"].partition(";")[0], "Sec-Fetch-Site": "same-origin"}
    session = (await world.client.post("/v1/sessions", json={}, headers=jar)).json()["id"]
    assert (await world.client.get(f"/v1/sessions/{session}", headers=bearer)).status_code == 200
    assert (await world.client.get("/v1/keys", headers=jar)).status_code == 403
    out = await world.client.post("/ui/sign-out", headers=jar)
    assert "Max-Age=0" in out.headers["set-cookie"]
    await world.client.post(f"/v1/keys/{id}/rotate", headers=OPERATOR)
    assert not await passes(world, jar)


async def test_an_open_server_reads_keys_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = list[str]()
    document = FileRecords.document

    def counted(self: FileRecords, kind: str, name: str) -> bytes | None:
        reads.append(kind)
        return document(self, kind, name)

    monkeypatch.setattr(stored, "FRESH_SECONDS", 60.0)
    async with serving(tmp_path) as world:
        monkeypatch.setattr(FileRecords, "document", counted)
        for _ in range(20):
            assert (await world.client.post("/generate", json={"inputs": "hi"})).status_code == 200
    assert reads.count(stored.KIND) <= 1


def test_a_server_that_cannot_read_its_keys_lets_the_operator_in_alone(tmp_path: Path) -> None:
    class Away(FileRecords):
        is_away = True

        def document(self, kind: str, name: str) -> bytes | None:
            if self.is_away:
                raise Unreachable("away")
            return super().document(kind, name)

    records = Away(Repository(tmp_path).layout)
    keys = Keys(records, is_managed=True)
    bearers = Bearers(SecretStr(KEY), keys)
    assert bearers.are_needed and bearers.caller(KEY)
    for call in (lambda: bearers.caller("guess"), lambda: Bearers(None, keys).are_needed):
        with pytest.raises(Unavailable):
            call()
    records.is_away = False
    assert bearers.caller("guess") is None
    _, told = keys.add(name="shop", scopes=frozenset({"generate"}))
    assert bearers.caller(told)
    records.is_away, keys._stale_at = True, 0.0
    assert bearers.caller(told), "what was read stays"


def test_keys_of_a_directory_move_to_an_empty_database(tmp_path: Path) -> None:
    records = FileRecords(Repository(tmp_path).layout)
    Keys(records, is_managed=False).add(name="shop", scopes=frozenset({"admin"}))
    moved = list(changes_of(records))
    assert [(kind, name) for kind, name, _ in moved] == [(stored.KIND, stored.DOCUMENT)]
    assert Mirror("new").documents(stored.KIND) == []


async def test_a_batch_of_a_deleted_key_gets_no_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    publish(Repository(tmp_path), "other")
    publish(Repository(tmp_path), "demo")
    async with with_batches(tmp_path)(admin_key=KEY) as world:
        id, bearer = await made(world, models=["demo"])
        world.client.headers.update(bearer)
        lines = jsonl([request("a", model="demo"), request("b", model="other")])
        batch = await ended(world, await create(world, lines))
        assert (batch["request_counts"]["completed"], batch["request_counts"]["failed"]) == (1, 1)
        await world.app.state.service.answers.usage.write()
        used = (await world.client.get("/v1/usage")).json()["data"]
        assert [(row["key"], row["model"], row["requests"]) for row in used] == [(id, "demo:1", 1)]
        world.engine.hold = asyncio.Event()
        lines = jsonl([request(f"{number}") for number in range(100)])
        batch = await create(world, lines)
        await until(lambda: bool(world.engine.held))
        assert (await world.client.delete(f"/v1/keys/{id}", headers=OPERATOR)).status_code == 204
        world.engine.hold.set()
        store = await world.app.state.service.answers.conversations.store()

        async def done() -> Any:
            while (found := await store.batches.get(id, batch["id"])).status != "completed":
                await asyncio.sleep(0.02)
            return found

        counts = (await asyncio.wait_for(done(), 20)).facts
        assert counts.failed > 50, counts


@needs_postgresql
async def test_a_deleted_key_ends_at_every_instance_within_a_second(tmp_path: Path) -> None:
    database = postgres.server().new_database()
    async with AsyncExitStack() as stack:
        worlds = []
        for name in ("one", "two"):
            publish(Repository(tmp_path / name))
            options: dict[str, Any] = {"database_url": database, "admin_key": KEY}
            worlds.append(await stack.enter_async_context(serving(tmp_path / name, **options)))
        one, two = worlds
        id, bearer = await made(one)
        await _within_a_second(two, bearer, True)
        session = (await one.client.post("/v1/sessions", json={}, headers=bearer)).json()["id"]
        assert (await two.client.get(f"/v1/sessions/{session}", headers=bearer)).status_code == 200
        assert (await two.client.delete(f"/v1/keys/{id}", headers=OPERATOR)).status_code == 204
        await _within_a_second(one, bearer, False)


async def _within_a_second(world: World, bearer: Headers, expected: bool) -> None:
    """By tries, not by a clock: a machine that stands still has a longer second."""
    for _ in range(3):  # a key that is not known yet counts as a wrong one: ten in a row may be
        if await passes(world, bearer) is expected:
            return
        await asyncio.sleep(0.4)
    raise AssertionError(f"{expected} is not seen here")


@pytest.fixture
def clock(world: World) -> Clock:
    moved = Clock()
    world.app.state.service.answers.usage.clock = lambda: moved.now.timestamp()
    return moved


@pytest.mark.parametrize(
    ("limit", "longest"),
    [
        ({"requests_per_minute": 3}, 120),
        ({"tokens_per_minute": 50}, 120),
        ({"requests_per_day": 3}, DAY),
        ({"tokens_per_day": 50}, DAY),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
async def test_a_quota_that_is_spent_says_when_to_come_back(
    world: World, clock: Clock, limit: dict[str, int], longest: int
) -> None:
    """And is true: a second before, it is refused still; then it passes. Other keys and other scopes pass."""
    (_, mine), (_, other) = await made(world, limits=limit), await made(world)
    clock.move(17)
    url = "/v1/chat/completions"
    for _ in range(30):
        answer = await world.client.post(url, json=ASK, headers=mine)
        if answer.status_code == 429:
            break
    refused = openai_error(answer, 429, "rate_limited")
    assert refused["type"] == "rate_limit_error" and next(iter(limit)) in refused["message"]
    seconds = int(answer.headers["retry-after"])
    assert longest / 100 < seconds <= longest
    to_world: Any = {"http_client": world.client, "base_url": "http://localhost/v1"}
    client: Any = openai.AsyncOpenAI(api_key="k", max_retries=0, **to_world)
    with pytest.raises(openai.RateLimitError) as told:
        await client.chat.completions.create(model="demo", extra_headers=dict(mine), **ASK)
    assert told.value.response.headers["retry-after"] == str(seconds)
    assert (await world.client.post(url, json=ASK, headers=other)).status_code == 200
    assert await passes(world, mine)
    clock.move(seconds - 1)
    assert (await world.client.post(url, json=ASK, headers=mine)).status_code == 429
    clock.move(1)
    assert (await world.client.post(url, json=ASK, headers=mine)).status_code == 200


async def test_only_so_many_requests_run_at_a_time(world: World) -> None:
    now = time.time()  # stands: a slow machine's request of seconds would be told as the time to wait
    world.app.state.service.answers.quotas._clock = lambda: now
    _, bearer = await made(world, limits={"concurrent": 2})
    await world.client.post("/generate", json={"inputs": "hi"}, headers=bearer)
    world.engine.hold = asyncio.Event()
    bodies = ({"inputs": "hi"}, {"inputs": "hi", "stream": True})
    running = [asyncio.create_task(world.client.post("/generate", json=body, headers=bearer)) for body in bodies]
    await until(lambda: len(world.engine.held) == 2)
    refused = await world.client.post("/generate", json={"inputs": "hi"}, headers=bearer)
    assert error(refused, 429, "rate_limited")["concurrent"] == 2 and refused.headers["retry-after"] == "1"
    world.engine.hold.set()
    assert [each.status_code for each in await asyncio.gather(*running)] == [200, 200]
    for body in ({"inputs": 5}, {"inputs": "hi"}, {"inputs": "hi"}, {"inputs": "hi"}):
        again = await world.client.post("/generate", json=body, headers=bearer)
        assert again.status_code in (200, 422), "a refused request gives its place back"


async def test_a_step_of_the_clock_does_not_move_the_time_to_wait_for_a_place() -> None:
    wall, moment = FakeClock(), FakeClock()
    quota = quotas.Quotas(usage.Usage(no_store, wall), moment)
    leave = await quota.enter("key", KeyLimits(concurrent=1))
    for seconds in (-3600, 7200):
        wall.advance(seconds)
        with pytest.raises(RateLimited) as told:
            await quota.enter("key", KeyLimits(concurrent=1))
        assert told.value.retry_after == 1
    moment.advance(1)
    leave()
    await quota.enter("key", KeyLimits(concurrent=1))


async def no_store() -> Any:
    raise Unavailable("away")


@pytest.mark.parametrize("seed", range(20))
async def test_a_window_admits_after_its_wait_and_not_before(seed: int) -> None:
    draw = random.Random(seed)
    now, most, counts = draw.uniform(0, 500), draw.randint(1, 50), usage.Usage(no_store, lambda: now)
    await counts.known("key")
    for _ in range(200):
        now += draw.expovariate(most / 30)
        if wait := quotas.Quotas(counts).wait("key", "tokens_per_minute", most):
            assert wait <= 120
            began = now
            now = began + 0.9 * wait
            assert quotas.Quotas(counts).wait("key", "tokens_per_minute", most)
            now = began + wait
            assert not quotas.Quotas(counts).wait("key", "tokens_per_minute", most)
        counts.answered("key", "demo:1", {"prompt_tokens": draw.choice([1, 1, most])})
