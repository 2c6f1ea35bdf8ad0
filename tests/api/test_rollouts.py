"""A version on trial: its share, conversations that stay, limits that roll it back, shadows that nobody waits for."""

from __future__ import annotations

import asyncio
import errno
import itertools
import math
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from models.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from models.repository import rollouts
from models.repository.disk.journal import timestamp
from models.repository.repository import Repository
from service.deployments.deployments import FOLLOW_ALIASES
from service.errors import GenerationFailed
from tests.api.reading import error
from tests.fake_service import WINDOW, World, publish, serving
from tests.reports import COMPARED, report
from tests.versions import FACTS, write_weights
from tests.waiting import until

ALIAS = "/v1/repository/models/demo/aliases/production"
URL = f"{ALIAS}/rollout"
PATIENT = {"ttft_p95_ratio": 1000}
"""Answers here take 2 ms: a busy machine makes three times that of one, which would end the rollout."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """demo:1 is production; demo:2 waits."""
    repository = Repository(tmp_path)
    for number in range(2):
        publish(repository, other={"number": number})
    repository.promote("demo", "production", "1", "first")
    async with serving(tmp_path) as served:
        yield served


async def begin(world: World, **body: Any) -> dict[str, Any]:
    """A rollout of demo:2 whose candidate is loaded."""
    response = await world.client.put(URL, json={"candidate": "2", "weight": 50, "guards": PATIENT, **body})
    assert response.status_code == 200, response.text
    await until(lambda: [each.state.value for each in world.deployments.all()] == ["ready", "ready"])
    shown: dict[str, Any] = response.json()
    return shown


def chat(opening: str, *more: str) -> dict[str, Any]:
    roles = ["user", "assistant"] * 8
    messages = [{"role": role, "content": text} for role, text in zip(roles, [opening, *more], strict=False)]
    return {"messages": messages, "parameters": {"max_new_tokens": 3}}


async def ask(world: World, body: dict[str, Any]) -> dict[str, Any]:
    response = await world.client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("weight", [0, 5, 50, 100])
async def test_the_candidate_gets_its_share_of_2000(world: World, weight: float) -> None:
    await begin(world, weight=weight)
    sticky = [(await world.deployments.choose_loaded("demo", f"conversation {at}")).deployment for at in range(2000)]
    alone = [(await world.deployments.choose_loaded("demo", None)).deployment for _ in range(2000)]
    for chosen in (sticky, alone):
        got = sum(each.manifest.version == "2" for each in chosen)
        mean = 2000 * weight / 100
        assert abs(got - mean) <= 6 * math.sqrt(mean * (1 - weight / 100))


async def test_a_conversation_stays_where_it_began_whatever_becomes_of_the_weight(world: World) -> None:
    await begin(world, weight=30)
    openings = [f"opening {at}" for at in range(40)]
    first = [(await ask(world, chat(opening)))["model"] for opening in openings]
    assert set(first) == {"demo:1", "demo:2"}
    for weight in (90, 5):
        await begin(world, weight=weight)
        later = [(await ask(world, chat(opening, "answer", "more")))["model"] for opening in openings]
        assert later == first
    assert (await world.client.get(URL)).json()["rollout"]["observed"]["candidate"]["requests"] == 3 * first.count(
        "demo:2"
    )


async def test_users_are_told_apart(world: World) -> None:
    await begin(world)
    answers = [(await ask(world, {**chat("hi"), "user": f"user {at}"}))["model"] for at in range(40)]
    assert set(answers) == {"demo:1", "demo:2"}
    assert len({(await ask(world, chat("hi")))["model"] for _ in range(10)}) == 1


async def test_exact_references_and_other_aliases_are_left_alone(world: World) -> None:
    await begin(world, weight=100)
    assert (await ask(world, {**chat("hi"), "model": "demo:1"}))["model"] == "demo:1"
    assert (await ask(world, chat("hi")))["model"] == "demo:2"
    world.deployments.repository.promote("demo", "other", "1", "a test")
    assert (await ask(world, {**chat("hi"), "model": "demo@other"}))["model"] == "demo:1"


async def ended(world: World) -> dict[str, Any]:
    """Returns the rollouts once the records have the end of the last one, which is written beside the answers."""
    async with asyncio.timeout(30):
        while (body := (await world.client.get(URL)).json())["rollout"] or body["history"][-1]["state"] == "running":
            await asyncio.sleep(0.01)
    found: dict[str, Any] = body
    return found


async def test_a_bad_candidate_is_rolled_back_and_its_conversations_are_told(world: World) -> None:
    await begin(world, weight=50, guards={"min_requests": 5, "ttft_p95_ratio": 1000})
    openings = [f"opening {at}" for at in range(40)]
    moved = [opening for opening in openings if (await ask(world, chat(opening)))["model"] == "demo:2"]
    world.engines[-1].failure, world.engines[-1].fail_after = GenerationFailed("bad"), 0
    statuses = [(await world.client.post("/generate", json=chat(opening))).status_code for opening in moved]
    assert 500 in statuses and statuses[-1] == 200, "it was taken back before they all failed"
    body = await ended(world)
    assert body["history"][-1]["state"] == "rolled_back" and "error rate" in body["history"][-1]["reason"]
    answer = await ask(world, chat(moved[-1], "answer", "again"))
    assert answer["model"] == "demo:1"
    told = [note for opening in moved for note in (await ask(world, chat(opening)))["context"]["notes"]]
    assert all("demo:2" in note and "rolled back" in note for note in told)
    assert (await ask(world, chat(moved[-1])))["context"]["notes"] == [], "once"
    world.deployments.follow_all()
    await until(lambda: [each.manifest.version for each in world.deployments.all()] == ["1"])


async def test_a_candidate_that_refuses_what_the_version_before_takes_has_failed(world: World) -> None:
    """Its clients get the answer of the version before. What both refuse is the client's mistake, and fails nobody."""
    publish(world.deployments.repository, chat_template="{{ raise_exception('no chat') }}")
    await begin(world, candidate="3", weight=100, guards={"min_requests": 5, "ttft_p95_ratio": 1000})
    too_long = {"inputs": "x" * (2 * WINDOW), "parameters": {"max_new_tokens": 1}}
    for _ in range(6):
        error(await world.client.post("/generate", json=too_long), 422, "context_overflow")
    observed = (await world.client.get(URL)).json()["rollout"]["observed"]
    assert (observed["candidate"]["requests"], observed["base"]["requests"]) == (0, 0)
    preview = await world.client.post("/v1/context/preview", json=chat("hi"))
    assert (preview.status_code, preview.json()["model"]) == (200, "demo:1")
    assert [(await ask(world, chat(f"opening {at}")))["model"] for at in range(4)] == ["demo:1"] * 4
    body = await ended(world)
    assert body["history"][-1]["state"] == "rolled_back" and "error rate" in body["history"][-1]["reason"]


async def test_a_bad_candidate_is_taken_back_on_a_full_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once for its clients; the record ends when there is room."""
    await begin(world, weight=100, guards={"min_requests": 5, "ttft_p95_ratio": 1000})
    world.engines[-1].failure, world.engines[-1].fail_after = GenerationFailed("bad"), 0

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("models.repository.disk.durable.write", full)
        statuses = [(await world.client.post("/generate", json=chat(f"{n}"))).status_code for n in range(10)]
        assert statuses == [500] * 5 + [200] * 5
        world.deployments.follow_all()
        assert (await ask(world, chat("more")))["model"] == "demo:1"
    async with asyncio.timeout(10):
        while (await world.client.get(URL)).json()["history"][-1]["state"] != "rolled_back":
            await asyncio.sleep(0.05)


async def test_a_bad_candidate_is_taken_back_while_another_holds_the_lock(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once for its clients, none of whom waits for the lock; the record ends once the lock is free."""
    await begin(world, weight=100, guards={"min_requests": 5, "ttft_p95_ratio": 1000})
    world.engines[-1].failure, world.engines[-1].fail_after = GenerationFailed("bad"), 0
    repository, waiting = world.deployments.repository, list[int]()
    locked = repository.locked

    def noted(name: str) -> AbstractContextManager[None]:
        waiting.append(threading.get_ident())
        return locked(name)

    monkeypatch.setattr(repository, "_lock_timeout", 0.1)
    with Repository(repository.layout.data_dir).locked("demo"):
        monkeypatch.setattr(repository, "locked", noted)
        statuses = [(await world.client.post("/generate", json=chat(f"{n}"))).status_code for n in range(10)]
        assert statuses == [500] * 5 + [200] * 5
        await until(lambda: len(waiting) >= 3)
        assert threading.get_ident() not in waiting, "the event loop waited"
        world.deployments.follow_all()
        assert (await ask(world, chat("more")))["model"] == "demo:1"
    assert (await ended(world))["history"][-1]["state"] == "rolled_back"


async def test_a_slow_candidate_is_rolled_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.deployments.rollouts.LEAST_TIMES", 5)
    await begin(world, weight=50, guards={"min_requests": 5, "ttft_p95_ratio": 3})
    world.engines[-1].step_seconds = 0.5
    numbers = itertools.count()
    while (await world.client.get(URL)).json()["rollout"] is not None:  # a busy machine spoils some of them
        await ask(world, chat(f"opening {next(numbers)}"))
    assert "TTFT p95" in (await ended(world))["history"][-1]["reason"]


async def test_a_candidate_that_cannot_be_loaded_is_taken_back(world: World) -> None:
    repository = world.deployments.repository
    weights = repository.path(repository.get("demo", "2")) / "model.safetensors"
    weights.chmod(0o644)
    weights.write_text("changed")
    await world.client.put(URL, json={"candidate": "2", "weight": 100})
    async with asyncio.timeout(60):
        while (await world.client.get(URL)).json()["rollout"] is not None:
            assert (await ask(world, chat("hi")))["model"] == "demo:1"
    assert "model.safetensors" in (await ended(world))["history"][-1]["reason"]


async def test_a_candidate_is_not_unloaded_during_its_trial(world: World) -> None:
    """The rollout would load it again."""
    await begin(world, weight=50)
    refused = error(await world.client.delete("/v1/deployments/demo:2"), 409, "conflict")["error"]
    assert "abort the rollout first" in refused
    assert (await world.client.delete(URL)).status_code == 200
    unloaded = await world.client.delete("/v1/deployments/demo:2")
    assert unloaded.status_code in (202, 404), "it may have left by itself"


async def test_a_candidate_whose_files_are_gone_is_taken_back(world: World) -> None:
    await world.deployments._tasks.stop((FOLLOW_ALIASES,))
    repository = world.deployments.repository
    rollouts.put(
        repository, rollouts.Rollout("demo", "production", "", "2", 50, True, False, rollouts.RolloutLimits(), "")
    )
    refused = error(await world.client.delete("/v1/repository/models/demo/versions/2"), 409, "conflict")["error"]
    assert "on trial under demo@production; abort that rollout first" in refused
    shutil.rmtree(repository.path(repository.get("demo", "2")))
    world.deployments.follow_all()
    assert "no model version" in (await ended(world))["history"][-1]["reason"]
    assert (await ask(world, chat("hi")))["model"] == "demo:1"


async def test_promoting_and_aborting(world: World) -> None:
    assert (await world.client.get(URL)).status_code == 404
    await begin(world, weight=0)
    assert (await world.client.delete(URL, params={"reason": "no"})).json()["state"] == "aborted"
    error(await world.client.delete(URL), 404, "not_found")
    await until(lambda: [each.manifest.version for each in world.deployments.all()] == ["1"])
    await begin(world, weight=0)
    assert (await world.client.post(f"{URL}/promote", json={"reason": "good"})).json()["state"] == "promoted"
    assert (await world.client.get(ALIAS)).json()["change"]["reason"] == "good"
    assert (await ask(world, chat("hi")))["model"] == "demo:2"
    await until(lambda: [each.manifest.version for each in world.deployments.all()] == ["2"])
    states = [each["state"] for each in (await world.client.get(URL)).json()["history"]]
    assert states == ["aborted", "promoted"]
    error(await world.client.post(f"{URL}/promote", json={}), 404, "not_found")


async def test_a_candidate_that_was_found_worse_in_its_trial_is_promoted_only_with_a_reason(world: World) -> None:
    repository = world.deployments.repository
    await begin(world, weight=0)
    worse = repository.get("demo", "2")
    repository.put_report(worse, report(worse, msgspec.structs.replace(COMPARED, kl=9.0, perplexity_change=1.0)))
    for body in ({}, {"reason": "it is hot"}, {"override": True}, {"override": True, "reason": " "}):
        assert "perplexity" in error(await world.client.post(f"{URL}/promote", json=body), 409, "conflict")["error"]
    assert (await world.client.get(URL)).json()["rollout"]["state"] == "running"
    body = {"override": True, "reason": "it is hot"}
    assert (await world.client.post(f"{URL}/promote", json=body)).json()["state"] == "promoted"
    change = (await world.client.get(ALIAS)).json()["change"]
    assert (change["version"], change["reason"]) == ("2", "it is hot") and "perplexity" in change["overridden"][0]


async def test_a_client_that_knows_another_version_changes_no_rollout(world: World) -> None:
    publish(world.deployments.repository, other={"number": 3})
    stale, known = {"If-Match": '"2"'}, {"If-Match": '"1"'}
    body = {"candidate": "2", "weight": 5}
    error(await world.client.delete(URL, headers=stale), 412, "stale")
    error(await world.client.put(URL, json=body, headers=stale), 412, "stale")
    assert (await world.client.get(URL)).status_code == 404
    assert (await world.client.put(URL, json=body, headers=known)).headers["etag"] == '"1"'
    error(await world.client.put(URL, json={**body, "weight": 50}, headers=stale), 412, "stale")
    error(await world.client.delete(URL, headers=stale), 412, "stale")
    error(await world.client.post(f"{URL}/promote", json={}, headers=stale), 412, "stale")
    shown = await world.client.get(URL)
    assert shown.headers["etag"] == '"1"' and shown.json()["rollout"]["weight"] == 5
    assert (await world.client.delete(URL, headers=known)).headers["etag"] == '"1"'
    await world.client.put(URL, json=body)
    assert (await world.client.post(f"{URL}/promote", json={}, headers=known)).headers["etag"] == '"2"'
    assert (await world.client.get(URL)).headers["etag"] == '"2"'
    error(await world.client.post(f"{URL}/promote", json={}, headers=known), 412, "stale")


async def test_what_a_change_does_not_send_stays_as_it_runs(world: World) -> None:
    guards = {"error_rate": 0.5, "min_requests": 7}
    began = await begin(world, weight=5, sticky=False, shadow=True, guards=guards)
    put = (await world.client.put(URL, json={"candidate": "2", "weight": 50})).json()
    assert put | {"observed": 0} == began | {"weight": 50, "observed": 0}
    sent = {"shadow": False, "guards": {"min_requests": 9, "error_rate": None}}
    put = (await world.client.put(URL, json={"candidate": "2", "weight": 50, **sent})).json()
    assert (put["sticky"], put["shadow"]) == (False, False)
    assert put["guards"] == {"error_rate": 0.5, "min_requests": 9, "ttft_p95_ratio": 3.0}
    await world.client.delete(URL)
    again = (await world.client.put(URL, json={"candidate": "2", "weight": 50})).json()
    assert (again["sticky"], again["shadow"], again["guards"]["error_rate"]) == (True, False, 0.05), "it is a new one"


async def test_an_alias_that_is_moved_by_hand_ends_the_rollout(world: World) -> None:
    await begin(world, weight=100)
    await world.client.put(ALIAS, json={"version": "2", "reason": "by hand"})
    assert (await world.client.get(URL)).json()["rollout"] is None
    await world.client.put(ALIAS, json={"version": "1", "reason": "and back"})
    await begin(world, weight=10)
    assert [each["state"] for each in (await world.client.get(URL)).json()["history"]] == ["aborted", "running"]


async def test_what_cannot_be_rolled_out(world: World) -> None:
    repository = world.deployments.repository
    error(await world.client.put(URL, json={"candidate": "1", "weight": 5}), 409, "conflict")
    error(await world.client.put(URL, json={"candidate": "9", "weight": 5}), 404, "not_found")
    other = "/v1/repository/models/demo/aliases/none/rollout"
    error(await world.client.put(other, json={"candidate": "2", "weight": 5}), 404, "not_found")
    for wrong in ({"weight": 101}, {"weight": -1}, {"weight": 5, "guards": {"error_rate": 2}}, {"weight": "5"}):
        error(await world.client.put(URL, json={"candidate": "2", **wrong}), 422, "invalid_request")
    bad = repository.get("demo", "2")
    repository.put_report(bad, report(bad, msgspec.structs.replace(COMPARED, kl=9.0, perplexity_change=1.0)))
    assert (
        "perplexity"
        in error(await world.client.put(URL, json={"candidate": "2", "weight": 5}), 409, "conflict")["error"]
    )
    assert (await world.client.put(URL, json={"candidate": "2", "weight": 5, "override": True})).status_code == 200
    publish(repository, other={"number": 3})
    error(await world.client.put(URL, json={"candidate": "3", "weight": 5}), 409, "conflict")


async def test_shadows_are_compared_and_never_received(world: World) -> None:
    await begin(world, weight=0, shadow=True)
    for at in range(5):
        assert (await ask(world, chat(f"opening {at}")))["model"] == "demo:1"
    await until(lambda: len(world.engines[-1].requests) == 5)

    def shadowed() -> Any:
        rollout = rollouts.running(world.deployments.repository, "demo", "production")
        assert rollout is not None
        return world.deployments.rollouts.describe(rollout)["shadow"]

    await until(lambda: shadowed() and shadowed()["compared"] == 5)
    found = (await world.client.get(URL)).json()["rollout"]["observed"]
    assert found["shadow"]["same"] == found["shadow"]["agreement"] == found["shadow"]["length_ratio"] == 1.0
    assert found["candidate"]["requests"] == 0
    world.engines[-1].script = lambda request, tokenizer: [1, 2, 3]
    await ask(world, chat("one more"))
    await until(lambda: shadowed()["compared"] == 6)
    assert shadowed()["same"] == round(5 / 6, 4)


async def test_a_main_answer_never_waits_for_a_shadow(world: World) -> None:
    await begin(world, weight=0, shadow=True)
    shadow, base = world.engines[-1], world.engines[0]
    shadow.hold = asyncio.Event()
    await ask(world, chat("first"))
    await until(lambda: len(shadow.alive) == 1)
    base.hold = asyncio.Event()
    waiting = asyncio.create_task(ask(world, chat("second")))
    await until(lambda: base.alive)
    shadow.hold.set()
    await until(lambda: shadow.aborted)
    assert not waiting.done()
    base.hold.set()
    assert (await waiting)["model"] == "demo:1"


def test_a_rollout_runs_whatever_the_clock_of_who_moved_the_alias_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path)
    for number in range(2):
        publish(repository, other={"number": number})
    repository.promote("demo", "production", "1", "first")
    behind = timestamp(datetime.now(UTC) - timedelta(seconds=1.5))
    monkeypatch.setattr(rollouts, "_now", lambda: behind)
    wanted = rollouts.Rollout("demo", "production", "", "2", 10.0, True, False, rollouts.RolloutLimits(), "")
    for _ in range(2):
        put = rollouts.put(repository, wanted)
        assert rollouts.running(repository, "demo", "production") == put
        rollouts.end(repository, "demo", "production", "aborted", "enough")
    kept = rollouts.history(repository, "demo", "production")
    assert [each.state for each in kept] == ["aborted", "aborted"], "each has a time of its own"


async def test_rollouts_of_another_process_are_followed(world: World) -> None:
    elsewhere = Repository(world.deployments.repository.layout.data_dir)
    wanted = rollouts.Rollout("demo", "production", "", "2", 100.0, True, False, rollouts.RolloutLimits(), "")
    rollouts.put(elsewhere, wanted)
    await until(lambda: len(world.deployments.all()) == 2 and world.deployments.all()[1].state.value == "ready")
    assert (await ask(world, chat("hi")))["model"] == "demo:2"


async def test_an_adapter_on_trial_is_asked_in_its_base_s_engine(world: World) -> None:
    """demo:3 is demo:1 with an adapter; half of the conversations are its own, and one engine computes both."""
    repository = world.deployments.repository
    base = repository.get("demo", "1")
    with repository.stage() as staged:
        for file in base.files:
            (staged / file.path).write_bytes((repository.path(base) / file.path).read_bytes())
        (staged / ADAPTER_CONFIG).write_text("an adapter")
        write_weights(staged, "an adapter", ADAPTER_WEIGHTS)
        adapter = repository.publish(staged, replace(FACTS, context_window=WINDOW, vocab_size=400), "demo")
    assert (adapter.version, adapter.base_digest) == ("3", base.digest)
    await begin(world, candidate="3")
    answers = [await ask(world, chat(f"opening {number}")) for number in range(40)]
    [engine] = world.engines
    asked = {"": 0, adapter.digest: 0}
    for request in engine.requests:
        asked[request.adapter] += 1
    told = [answer["version"] for answer in answers]
    assert (told.count("1"), told.count("3")) == tuple(asked.values()) and min(asked.values()) > 5
    assert (await world.client.delete(URL)).status_code == 200
    await until(lambda: not engine.adapters)
    assert (await ask(world, chat("opening 0")))["version"] == "1"
