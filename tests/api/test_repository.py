"""The model repository over HTTP: listings, the gate, compare-and-set, history, swaps, deletions, jobs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from models.repository.disk.journal import History
from models.repository.intervals import Interval
from models.repository.report import Amounts
from models.repository.repository import Repository
from service.storage.cursors import encode
from tests.api.conftest import KEY
from tests.api.reading import error
from tests.fake_service import World, publish, serving
from tests.reports import beside, report
from tests.waiting import until

MODELS = "/v1/repository/models"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Three versions of demo, the last one a bad conversion of the first; production is demo:1."""
    repository = Repository(tmp_path)
    for number in range(3):
        parent = repository.get("demo", "1") if number == 2 else None
        publish(repository, parent=parent, chat_template=f"{{# {number} #}}{{{{ messages[-1]['content'] }}}}")
    repository.promote("demo", "production", "1", "first")
    bad = repository.get("demo", "3")
    repository.put_report(bad, report(bad, beside(repository.get("demo", "1"), clear_top1_agreement=0.5)))
    async with serving(tmp_path) as served:
        yield served


async def test_models_are_listed_in_pages_and_searched(world: World) -> None:
    publish(world.deployments.repository, "other")
    body = (await world.client.get(MODELS)).json()
    assert [each["name"] for each in body["data"]] == ["demo", "other"] and body["next_cursor"] is None
    assert body["data"][0] | {"bytes": 0} == {
        "name": "demo",
        "versions": 3,
        "newest": "3",
        "aliases": {"production": "1"},
        "bytes": 0,
    }
    assert [each["name"] for each in (await world.client.get(MODELS, params={"query": "OTH"})).json()["data"]] == [
        "other"
    ]


async def test_models_come_by_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.repository.routes.PAGE", 1)
    publish(world.deployments.repository, "other")
    names, cursor = list[str](), dict[str, str]()
    for _ in range(2):
        page = (await world.client.get(MODELS, params=cursor)).json()
        names += [each["name"] for each in page["data"]]
        cursor = {"cursor": page["next_cursor"]}
    assert names == ["demo", "other"] and page["next_cursor"] is None


@pytest.mark.parametrize("cursor", ["demo", "nope", "", encode("versions", "demo", ""), encode("models", 7, "")])
async def test_a_wrong_cursor_of_models_is_named(world: World, cursor: str) -> None:
    refused = error(await world.client.get(MODELS, params={"cursor": cursor}), 422, "invalid_request")
    assert "`cursor` is not one of this list" in refused["error"]


async def test_versions_come_by_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newest first, each version once, also where one comes and one goes between two pages."""
    url = f"{MODELS}/demo"
    whole = (await world.client.get(url)).json()
    assert [each["version"] for each in whole["versions"]] == ["3", "2", "1"] and whole["next_cursor"] is None
    first = (await world.client.get(url, params={"limit": 2})).json()
    assert first["versions"] == whole["versions"][:2] and first["aliases"] == whole["aliases"]
    publish(world.deployments.repository)
    world.deployments.repository.delete("demo", "2")
    read, plain = list[str](), Path.read_bytes

    def watched(path: Path) -> bytes:
        read.append(path.parent.name)
        return plain(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", watched)
        rest = (await world.client.get(url, params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert rest["versions"] == whole["versions"][2:] and rest["next_cursor"] is None
    assert not {"3", "4"} & set(read), "a page reads no version of another page"


@pytest.mark.parametrize("cursor", ["", "demo", "1", "WyJ2ZXJzaW9ucyIsIDEsICIxIl0", "WyJzZXNzaW9ucyIsIDEsICJhIl0"])
async def test_a_wrong_cursor_of_versions_is_named(world: World, cursor: str) -> None:
    refused = await world.client.get(f"{MODELS}/demo", params={"cursor": cursor})
    assert "`cursor` is not one of this list" in error(refused, 422, "invalid_request")["error"]
    for limit in ("0", "101", "x"):
        error(await world.client.get(f"{MODELS}/demo", params={"limit": limit}), 422, "invalid_request")


async def test_a_version_shows_its_files_and_its_report(world: World) -> None:
    body = (await world.client.get(f"{MODELS}/demo/versions/3")).json()
    manifest = world.deployments.repository.get("demo", "3")
    assert (body["model"], body["digest"], body["aliases"]) == ("demo:3", manifest.digest, [])
    assert [(file["path"], file["sha256"]) for file in body["files"]] == [(f.path, f.sha256) for f in manifest.files]
    assert body["layers"] == [{"pattern": "text", "dtype": "U8"}]
    assert body["report"]["compared"]["clear_top1_agreement"] == 0.5
    listed = (await world.client.get(f"{MODELS}/demo")).json()
    assert [each["model"] for each in listed["versions"]] == ["demo:3", "demo:2", "demo:1"]
    assert listed["versions"][2]["aliases"] == ["production"] and listed["versions"][2]["report"] is None
    assert [each["report_state"] for each in listed["versions"]] == ["measured", "not_measured", "not_measured"]
    assert [each["breaks_gate"] for each in listed["versions"]] == [[], [], []], "no alias points to what breaks it"
    world.deployments.repository.promote("demo", "production", "3", "all the same")
    listed = (await world.client.get(f"{MODELS}/demo")).json()
    broken = ["top-1 agreement where clear 50.00%, at least 95.00% of demo:1"]
    assert [each["breaks_gate"] for each in listed["versions"]] == [broken, [], []]
    assert (await world.client.get(f"{MODELS}/demo/versions/3")).json()["breaks_gate"] == broken
    with world.deployments.repository.measuring(world.deployments.repository.get("demo", "2")):
        listed = (await world.client.get(f"{MODELS}/demo")).json()
    assert [each["report_state"] for each in listed["versions"]] == ["measured", "measuring", "not_measured"]


async def test_a_report_with_intervals_is_shown_whole(world: World) -> None:
    repository = world.deployments.repository
    manifest = repository.get("demo", "2")
    amounts, interval = Amounts(2, 8, 64, 0, 6, 512, 32), Interval(1.2, 1.3, 120)
    made = msgspec.structs.replace(
        report(manifest, None, losses=(1.5, 2.5)),
        intervals={"perplexity": interval},
        amounts=amounts,
        budget_seconds=60.0,
    )
    repository.put_report(manifest, made)
    shown = (await world.client.get(f"{MODELS}/demo/versions/2")).json()["report"]
    assert shown["intervals"] == {"perplexity": {"low": 1.2, "high": 1.3, "items": 120}}
    assert shown["amounts"]["answer_tokens"] == 64 and [part["loss"] for part in shown["texts"]["parts"]] == [1.5, 2.5]


@pytest.mark.parametrize(
    "path",
    [
        "nobody",
        "nobody/aliases",
        "nobody/aliases/production/history",
        "nobody/aliases/production/rollback",
        "demo/versions/9",
        "..%2fdemo",
        "demo/versions/9/verify",
        "demo/aliases/canary",
    ],
)
async def test_what_is_not_there_is_named(world: World, path: str) -> None:
    method = "POST" if path.endswith(("verify", "rollback")) else "GET"
    response = await world.client.request(method, f"{MODELS}/{path}")
    if "%2f" in path:  # a route of its own to the server
        assert response.status_code == 404
    else:
        error(response, 404, "not_found")


async def test_the_history_of_a_model_stays_when_its_last_version_is_deleted(world: World) -> None:
    repository, url = world.deployments.repository, f"{MODELS}/other/aliases"
    publish(repository, "other")
    assert (await world.client.get(url)).json() == {"data": {}}
    assert (await world.client.get(f"{url}/canary/history")).json() == {"data": []}
    repository.promote("other", "canary", "1", "a test")
    repository.remove_alias("other", "canary", "over")
    repository.delete("other", "1")
    assert (await world.client.get(url)).json() == {"data": {}}
    changes = (await world.client.get(f"{url}/canary/history")).json()["data"]
    assert [each["action"] for each in changes] == ["promote", "remove"]


async def test_a_changed_byte_is_named(world: World) -> None:
    repository = world.deployments.repository
    url = f"{MODELS}/demo/versions/2/verify"
    assert (await world.client.post(url)).json()["ok"] is True
    (repository.path(repository.get("demo", "1")) / "model.yaml").unlink()
    body = (await world.client.post(f"{MODELS}/demo/versions/1/verify")).json()
    assert body["ok"] is False and "model.yaml is missing" in body["error"]
    weights = repository.path(repository.get("demo", "2")) / "model.safetensors"
    weights.chmod(0o644)
    weights.write_text("changed")
    body = (await world.client.post(url)).json()
    assert body["ok"] is False and "model.safetensors" in body["error"]


async def test_the_gate_and_its_override(world: World) -> None:
    url = f"{MODELS}/demo/aliases/production"
    response = await world.client.put(url, json={"version": "3", "reason": "new"})
    assert "top-1 agreement where clear 50.00%" in error(response, 409, "conflict")["error"]
    assert (await world.client.get(url)).json()["version"] == "1"
    response = await world.client.put(url, json={"version": "3", "reason": "we must", "override": True})
    assert response.status_code == 200 and response.headers["etag"] == '"3"'
    assert response.json()["change"]["overridden"] == ["top-1 agreement where clear 50.00%, at least 95.00% of demo:1"]


async def test_a_rollback_says_what_it_breaks(world: World) -> None:
    url = f"{MODELS}/demo/aliases/production"
    await world.client.put(url, json={"version": "3", "reason": "we must", "override": True})
    await world.client.put(url, json={"version": "1"})
    back = (await world.client.post(f"{url}/rollback", json={"reason": "at night"})).json()
    assert back["version"] == "3"
    assert back["change"]["overridden"] == ["top-1 agreement where clear 50.00%, at least 95.00% of demo:1"]
    assert (await world.client.get(f"{url}/history")).json()["data"][-1] == back["change"]


async def test_an_alias_to_try_things_on_is_not_gated(world: World) -> None:
    tried = await world.client.put(f"{MODELS}/demo/aliases/staging", json={"version": "3"})
    assert tried.status_code == 200 and tried.json()["change"]["overridden"] == []
    rolled = f"{MODELS}/demo/aliases/staging/rollout"
    await world.client.put(f"{MODELS}/demo/aliases/staging", json={"version": "1"})
    assert (await world.client.put(rolled, json={"candidate": "3", "weight": 5})).status_code == 200


async def test_a_newly_trained_version_need_not_agree_with_production(world: World) -> None:
    """It was measured beside demo:1, and answers otherwise: better."""
    repository = world.deployments.repository
    trained, url = repository.get("demo", "2"), f"{MODELS}/demo/aliases/production"
    compared = beside(repository.get("demo", "1"), top1_agreement=0.61, kl=1.2, perplexity_change=-0.3)
    repository.put_report(trained, report(trained, compared))
    assert (await world.client.put(url, json={"version": "2"})).status_code == 200
    worse = msgspec.structs.replace(compared, perplexity_change=0.3)
    repository.put_report(trained, report(trained, worse))
    await world.client.put(url, json={"version": "1"})
    refused = error(await world.client.put(url, json={"version": "2"}), 409, "conflict")["error"]
    assert "perplexity +30.00%" in refused and "agreement" not in refused


async def test_aliases_are_compared_and_set(world: World) -> None:
    url = f"{MODELS}/demo/aliases/production"
    assert (await world.client.get(url)).headers["etag"] == '"1"'
    stale = await world.client.put(url, json={"version": "2"}, headers={"If-Match": '"3"'})
    error(stale, 412, "stale")
    assert (await world.client.put(url, json={"version": "2"}, headers={"If-Match": '"1"'})).status_code == 200
    for header in ("2", "*", 'W/"2"', '"2", "3"'):
        assert (await world.client.put(url, json={"version": "1"}, headers={"If-Match": header})).status_code == 422
    new = f"{MODELS}/demo/aliases/canary"
    assert (await world.client.put(new, json={"version": "2"}, headers={"If-Match": '""'})).status_code == 200
    assert (await world.client.put(new, json={"version": "1"}, headers={"If-Match": '""'})).status_code == 412
    assert (await world.client.delete(new, params={"reason": "over"})).json()["version"] is None
    assert (await world.client.get(new)).status_code == 404
    assert (await world.client.get(f"{MODELS}/demo/aliases")).json() == {"data": {"production": "2"}}


async def test_rollback_and_what_was_in_production_then(world: World) -> None:
    url = f"{MODELS}/demo/aliases/production"
    moved = (await world.client.put(url, json={"version": "2", "reason": "better"})).json()["change"]["time"]
    back = await world.client.post(f"{url}/rollback", json={"reason": "worse"})
    assert back.json()["version"] == "1" and back.headers["etag"] == '"1"'
    entries = (await world.client.get(f"{url}/history")).json()["data"]
    assert [each["actor"] for each in entries[1:]] == ["anonymous", "anonymous"]
    assert [(each["action"], each["version"], each["reason"]) for each in entries] == [
        ("promote", "1", "first"),
        ("promote", "2", "better"),
        ("rollback", "1", "worse"),
    ]
    assert [
        each["version"] for each in (await world.client.get(f"{url}/history", params={"at": moved})).json()["data"]
    ] == ["2"]
    assert (await world.client.get(f"{url}/history", params={"at": "1999-01-01"})).json()["data"] == []
    for wrong in ("yesterday", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"):
        assert (await world.client.get(f"{url}/history", params={"at": wrong})).status_code == 422


async def test_swaps_under_load_fail_nobody_and_mix_nothing(world: World) -> None:
    url = f"{MODELS}/demo/aliases/production"
    stop, answers = asyncio.Event(), list[str]()

    async def ask() -> None:
        while not stop.is_set():
            response = await world.client.post("/generate", json={"inputs": "hi", "parameters": {"max_new_tokens": 3}})
            assert response.status_code == 200, response.text
            assert response.headers["x-model-version"] == response.json()["model"]
            answers.append(response.json()["model"])

    asking = [asyncio.create_task(ask()) for _ in range(8)]
    for swap in range(20):
        seen = len(answers)
        version = "2" if swap % 2 == 0 else "1"
        assert (await world.client.put(url, json={"version": version})).status_code == 200
        async with asyncio.timeout(60):
            while f"demo:{version}" not in answers[seen:]:
                await asyncio.sleep(0.001)
    stop.set()
    await asyncio.gather(*asking)
    assert set(answers) == {"demo:1", "demo:2"}
    await until(lambda: len(world.deployments.all()) == 1)


async def test_deletions(world: World) -> None:
    held = await world.client.delete(f"{MODELS}/demo/versions/1")
    assert "production" in error(held, 409, "conflict")["error"]
    await world.deployments.ensure_loaded("demo:2")
    served = await world.client.delete(f"{MODELS}/demo/versions/2")
    assert "in use" in error(served, 409, "conflict")["error"]
    assert (await world.client.delete(f"{MODELS}/demo/versions/3", params={"reason": "bad"})).json() == {
        "deleted": "demo:3"
    }
    assert (await world.client.get(f"{MODELS}/demo/versions/3")).status_code == 404


async def test_changes_say_whose_key_they_were_made_with(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    for number in range(2):
        publish(repository, chat_template=f"{{# {number} #}}")
    publish(repository, "other")
    repository.promote("demo", "production", "1", "first", "kim")
    async with serving(tmp_path, admin_key=KEY) as world:
        headers, url = {"Authorization": f"Bearer {KEY}"}, f"{MODELS}/demo/aliases/production"
        who = f"key:{hashlib.sha256(KEY.encode()).hexdigest()[:8]}"
        await world.client.put(url, json={"version": "2"}, headers=headers)
        await world.client.post(f"{url}/rollback", json={}, headers=headers)
        await world.client.put(f"{url}/rollout", json={"candidate": "2", "weight": 1}, headers=headers)
        await world.client.post(f"{url}/rollout/promote", json={}, headers=headers)
        await world.client.delete(url, headers=headers)
        await world.client.delete(f"{MODELS}/other/versions/1", headers=headers)
        entries = [
            each
            for name in ("demo", "other")
            for each in History.read(repository.layout.journal(name).read_bytes()).entries
        ]
        assert [(each.action, each.actor) for each in entries] == [
            ("promote", "kim"),
            ("promote", who),
            ("rollback", who),
            ("promote", who),
            ("remove", who),
            ("delete", who),
        ]
        for ask, body in (("/tiny/versions", {"source": "/nonexistent"}), ("/demo/versions/1/quantize", {})):
            job = (await world.client.post(MODELS + ask, json=body, headers=headers)).json()
            assert job["arguments"]["author"] == who
        assert KEY not in repr(entries)


async def test_two_versions_side_by_side(world: World) -> None:
    body = (await world.client.get(f"{MODELS}/demo/compare", params={"a": "1", "b": "3"})).json()
    assert (body["a"]["model"], body["b"]["model"]) == ("demo:1", "demo:3")
    assert {"digest", "aliases", "precision", "version"} <= set(body["differs"])
    assert "context_window" not in body["differs"]
    assert "model.safetensors" in body["files"]["same"] and "tokenizer_config.json" in body["files"]["differ"]
    assert (await world.client.get(f"{MODELS}/demo/compare")).status_code == 422


async def test_an_import_is_a_job(world: World) -> None:
    response = await world.client.post(f"{MODELS}/tiny/versions", json={"source": "/nonexistent", "evaluate": "none"})
    assert response.status_code == 202
    job = response.json()
    assert response.headers["location"] == f"/v1/jobs/{job['id']}" and job["state"] in ("queued", "running")
    async with asyncio.timeout(60):
        while (body := (await world.client.get(f"/v1/jobs/{job['id']}")).json())["state"] in ("queued", "running"):
            await asyncio.sleep(0.05)
    assert body["state"] == "failed" and "is no source" in body["error"] and body["result"] is None
    assert [each["id"] for each in (await world.client.get("/v1/jobs")).json()["data"]] == [job["id"]]
    assert (await world.client.delete(f"/v1/jobs/{job['id']}")).status_code == 409
    assert (await world.client.get("/v1/jobs/none")).status_code == 404


async def test_a_conversion_that_cannot_be_is_refused_before_its_job(world: World) -> None:
    for version, body, status, code, sentence in (
        (2, {"group_size": 128}, 422, "invalid_request", "int8 has no groups; leave group_size out, or choose int4"),
        (3, {"precision": "int4"}, 409, "conflict", "demo:3 is int8 and cannot become int4"),
    ):
        refused = await world.client.post(f"{MODELS}/demo/versions/{version}/quantize", json=body)
        assert sentence in error(refused, status, code)["error"]
    assert (await world.client.get("/v1/jobs")).json()["data"] == []


async def test_an_adapter_s_base_must_be_there(world: World) -> None:
    body = {"source": "/nonexistent", "evaluate": "none"}
    missing = await world.client.post(f"{MODELS}/tiny/versions", json={**body, "adapter_of": "demo:9"})
    assert missing.status_code == 404 and "demo:9" in missing.json()["error"]
    accepted = await world.client.post(f"{MODELS}/tiny/versions", json={**body, "adapter_of": "demo:1"})
    assert accepted.status_code == 202
    job = accepted.json()["id"]
    async with asyncio.timeout(60):
        while (found := (await world.client.get(f"/v1/jobs/{job}")).json())["state"] in ("queued", "running"):
            await asyncio.sleep(0.05)
    assert found["state"] == "failed" and "is no source" in found["error"]
