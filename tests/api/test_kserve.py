"""The KServe v2 protocol: state and metadata, Triton's generate extension and model repository, errors in its words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from service.deployments.deployment import DeploymentState
from service.deployments.deployments import FOLLOW_ALIASES
from service.engine.client.engine import EngineState
from service.errors import Unavailable
from tests.api.conftest import KEY, Serve
from tests.api.reading import events
from tests.api.reading import triton_error as error
from tests.fake_service import REPLY, WINDOW, World, publish, serving
from tests.waiting import until

DEMO = "/v2/models/demo"
REPOSITORY = "/v2/repository"
ANSWER = {"model_name": "demo", "model_version": "1", "text_output": REPLY}


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[World]:
    """A server with a repository of its own, to publish into."""
    async with serving(tmp_path) as served:
        yield served


async def generate(world: World, path: str = DEMO, **body: Any) -> httpx.Response:
    return await world.client.post(f"{path}/generate", json={"text_input": "x", **body})


async def test_server_state_and_metadata(world: World) -> None:
    client = world.client
    assert (await client.get("/v2/health/live")).json() == {"live": True}
    assert (await client.get("/v2/health/ready")).json() == {"ready": True}
    metadata = (await client.get("/v2")).json()
    assert (metadata["name"], metadata["version"]) == ("Dosirak", world.app.state.service.version)
    assert {"generate", "model_repository", "binary_tensor_data"} <= set(metadata["extensions"])


async def test_a_server_that_is_not_ready(serve: Serve) -> None:
    async with serve(start=False) as world:
        assert (await world.client.get("/v2/health/live")).status_code == 200
        refused = await world.client.get("/v2/health/ready")
        assert "The default model is not ready" in error(refused, 503)
        assert refused.headers["retry-after"] == "2"
        assert "demo:1 is not loaded" in error(await world.client.get(f"{DEMO}/ready"), 503)


async def test_probes_leave_no_line_in_the_log_unless_they_fail(serve: Serve) -> None:
    for start, levels in ((True, []), (False, ["info"])):
        async with serve(start=start) as world:
            with capture_logs() as lines:
                for path in ("/v2/health/live", "/v2/health/ready"):
                    await world.client.get(path)
        assert [each["log_level"] for each in lines if each["event"] == "request"] == levels


async def test_model_metadata_names_versions_and_tensors(own: World) -> None:
    publish(own.deployments.repository, parent=own.deployments.resolve("demo"))
    versions = {
        "demo": ["1", "2"],
        "demo/versions/1": ["1"],
        "demo:2": ["2"],
        "demo%3A2": ["2"],
    }
    own.deployments.repository.promote("demo", "production", "1", "a test")
    versions["demo@production"] = ["1"]
    for path, expected in versions.items():
        metadata = (await own.client.get(f"/v2/models/{path}")).json()
        assert (metadata["name"], metadata["versions"]) == ("demo", expected), path
    assert metadata["inputs"] == [{"name": "text_input", "datatype": "BYTES", "shape": [1]}]
    assert metadata["outputs"] == [{"name": "text_output", "datatype": "BYTES", "shape": [1]}]


async def test_a_model_is_ready_where_it_would_answer_at_once(own: World) -> None:
    client = own.client
    await own.deployments._tasks.stop((FOLLOW_ALIASES,))
    assert (await client.get(f"{DEMO}/ready")).json() == {"name": "demo", "ready": True}
    publish(own.deployments.repository, parent=own.deployments.resolve("demo"))
    assert "demo:2 is not loaded" in error(await client.get(f"{DEMO}/versions/2/ready"), 503)
    assert (await client.get(f"{DEMO}/versions/1/ready")).status_code == 200
    own.engine.state, own.engine.why_not_ready = EngineState.RESTARTING, "its process ended"
    assert error(await client.get(f"{DEMO}:1/ready"), 503) == "demo:1 is restarting: its process ended"


async def test_the_version_before_a_swap_is_ready_until_its_end(own: World) -> None:
    await generate(own)
    publish(own.deployments.repository, parent=own.deployments.resolve("demo"))
    assert own.deployments.resolve("demo").version == "2"
    assert (await own.client.get(f"{DEMO}/ready")).status_code == 200, "requests for demo are answered by demo:1"


@pytest.mark.parametrize("path", ["demo", "demo:1", "demo@production", "demo/versions/1"])
async def test_generate_by_every_reference(own: World, path: str) -> None:
    own.deployments.repository.promote("demo", "production", "1", "a test")
    response = await generate(own, f"/v2/models/{path}")
    assert response.json() == ANSWER
    assert response.headers["x-model-version"] == "demo:1"


async def test_it_says_the_same_as_the_native_route(world: World) -> None:
    sampled: dict[str, Any] = {"temperature": 0.8, "seed": 5, "max_tokens": 7}
    native = await world.client.post("/generate", json={"text_input": "x", "parameters": sampled})
    assert (await generate(world, **sampled)).json() == native.json()


async def test_an_id_is_told_again(world: World) -> None:
    assert (await generate(world, id="any words 1")).json() == {**ANSWER, "id": "any words 1"}
    streamed = await world.client.post(f"{DEMO}/generate_stream", json={"text_input": "x", "id": "s"})
    assert {each["id"] for each in events(streamed)} == {"s"}


async def test_tritons_names_act_in_both_places(world: World) -> None:
    for name, ours, value in (
        ("random_seed", "seed", 7),
        ("min_length", "min_tokens", 2),
        ("min_tokens", "min_tokens", 3),
    ):
        for body in ({name: value}, {"parameters": {name: value}}):
            assert (await generate(world, **body, temperature=1.0)).status_code == 200
            assert getattr(world.engine.requests[-1].params, ours) == value, body


@pytest.mark.parametrize("body", [{"stop_words": ["하나"]}, {"parameters": {"stop": "하나"}}, {"stop_words": "하나"}])
async def test_stop_words_end_the_answer(world: World, body: dict[str, Any]) -> None:
    assert (await generate(world, **body)).json()["text_output"] == "안녕하세요, 도시락 "


async def test_empty_stop_words_beside_others_ask_for_nothing(world: World) -> None:
    for words in (["", "하나"], ["하나", "", ""], ["", *["☂"] * 15, "하나"]):
        assert (await generate(world, stop_words=words)).json()["text_output"] == "안녕하세요, 도시락 "
    assert "`bad_words` cannot act" in error(await generate(world, bad_words=["", "x"]), 400)


NOTHING: list[dict[str, Any]] = [
    *({"stop_words": none, "bad_words": none} for none in (None, "", [], [""], ["", ""])),
    {"parameters": None, "id": None, "stream": None, "max_tokens": None},
    {"parameters": {"max_tokens": 64, "bad_words": [""], "stop_words": [""]}, "stream": False},
    {"parameters": {"stream": False, "temperature": 0}},
    {"beam_width": 1, "length_penalty": 1.0, "exclude_input_in_output": True, "return_log_probs": False},
    {"n": 1, "best_of": 1, "details": False, "top_n_tokens": 0, "return_full_text": False},
]


@pytest.mark.parametrize("body", NOTHING)
async def test_what_asks_for_nothing_is_taken(shared: World, body: dict[str, Any]) -> None:
    assert (await generate(shared, **body)).json() == ANSWER


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"text_input": ""}, "`text_input` holds no token"),
    ({"model": "demo"}, "`model` is not a field"),
    ({"parameters": {"max_tokenz": 4}}, "`parameters.max_tokenz` is not a field"),
    ({"parameters": []}, "`parameters` must be an object"),
    ({"parameters": {"text_input": "y"}}, "`parameters.text_input`"),
    ({"parameters": {"max_tokens": 4}, "max_tokens": 4}, "`parameters.max_tokens` stands beside"),
    ({"parameters": {"max_tokens": 4}, "max_new_tokens": 4}, "`max_tokens` is another name of max_new_tokens"),
    ({"seed": 1, "random_seed": 1}, "`random_seed` is another name of seed"),
    ({"stop_words": ["a" * 65]}, "`stop_words[0]` must have at most 64"),
    ({"n": 2}, "`n` must be 1"),
    ({"details": True}, "`details` adds"),
    ({"min_tokens": 4, "max_tokens": 3}, "`min_tokens` must not be larger than max_tokens"),
    ({"min_length": 4, "parameters": {"max_new_tokens": 3}}, "`min_length` must not be larger than max_new_tokens"),
    ({"grammar": {"type": "regex", "value": "a"}, "min_tokens": 1}, "`min_tokens` cannot act beside `grammar.value`"),
    ({"grammar": {"type": "regex", "value": "("}}, "`grammar.value` cannot be followed"),
    ({"parameters": {"stream": True}}, "generate_stream"),
    ({"text_input": "a" * WINDOW}, f"the window has {WINDOW}"),
]


async def test_what_cannot_act_is_refused_by_name(world: World) -> None:
    for body, sentence in REFUSED:
        assert sentence in error(await generate(world, **body), 400), body
    assert world.engine.requests == []


async def test_a_stream_has_an_event_for_each_token(world: World) -> None:
    response = await world.client.post(f"{DEMO}/versions/1/generate_stream", json={"text_input": "x", "max_tokens": 5})
    shown = events(response)
    assert len(shown) == 5
    assert all(each.keys() == {"model_name", "model_version", "text_output"} for each in shown)
    whole = await generate(world, max_tokens=5)
    assert "".join(each["text_output"] for each in shown) == whole.json()["text_output"]


@pytest.mark.parametrize("stream", [True, None])
async def test_a_stream_is_what_the_route_says(world: World, stream: bool | None) -> None:
    response = await world.client.post(f"{DEMO}/generate_stream", json={"text_input": "x", "stream": stream})
    assert len(events(response)) > 5


async def test_without_stream_it_is_one_event(world: World) -> None:
    body = {"text_input": "x", "id": "1", "parameters": {"stream": False}}
    assert events(await world.client.post(f"{DEMO}/generate_stream", json=body)) == [{"id": "1", **ANSWER}]


async def test_without_stream_the_event_has_the_likeliest_of_several_answers(world: World) -> None:
    body: dict[str, Any] = {"text_input": "x", "best_of": 3, "seed": 1, "temperature": 1.0}
    whole = (await world.client.post(f"{DEMO}/generate", json=body)).json()
    streamed = await world.client.post(f"{DEMO}/generate_stream", json={**body, "stream": False})
    assert events(streamed) == [whole]
    refused = await world.client.post(f"{DEMO}/generate_stream", json=body)
    assert error(refused, 400) == "`best_of` cannot act in a stream: remove it, or send stream false"


async def test_a_failure_in_mid_stream_is_the_last_event(serve: Serve) -> None:
    failure = Unavailable("planted")
    async with serve(engine={"failure": failure, "fail_after": 2}) as world:
        response = await world.client.post(f"{DEMO}/generate_stream", json={"text_input": "x"})
        assert response.status_code == 200
        name, data = response.text.rstrip().split("\n\n")[-1].split("\n")
        assert (name, json.loads(data.removeprefix("data: "))) == ("event: error", {"error": "planted"})


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "application/json", "text/plain"])
async def test_bodies_are_read_whatever_their_type_says(world: World, kind: str | None) -> None:
    """Triton's client names none, and `curl -d` a form."""
    headers = {"Content-Type": kind} if kind else {}
    for path, content in ((f"{DEMO}/generate", b'{"text_input": "x"}'), (f"{REPOSITORY}/index", b'{"ready": true}')):
        assert (await world.client.post(path, content=content, headers=headers)).status_code == 200
        compressed = await world.client.post(path, content=content, headers={**headers, "Content-Encoding": "gzip"})
        assert "Compressed" in error(compressed, 415)
    assert (await world.client.post("/generate", content=b'{"text_input": "x"}')).status_code == 415


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models/nope", 404),
        ("GET", "/v2/models/nope/ready", 404),
        ("GET", f"{DEMO}:9", 404),
        ("GET", f"{DEMO}@nobody", 404),
        ("GET", f"{DEMO}/versions/9", 404),
        ("POST", "/v2/models/nope/generate", 404),
        ("POST", f"{REPOSITORY}/models/nope/load", 404),
        ("POST", f"{REPOSITORY}/models/nope/unload", 404),
        ("GET", "/v2/models/DEMO", 400),
        ("GET", f"{DEMO}:1/versions/1", 400),
        ("GET", f"{DEMO}@production/versions/1", 400),
        ("GET", f"{DEMO}/versions/.", 404),
        ("DELETE", DEMO, 405),
        ("GET", f"{DEMO}/generate", 405),
    ],
)
async def test_errors_have_tritons_body(shared: World, method: str, path: str, status: int) -> None:
    json_body = {"text_input": "x"} if path.endswith("generate") and method == "POST" else None
    assert error(await shared.client.request(method, path, json=json_body), status)


async def test_other_paths_keep_their_bodies(shared: World) -> None:
    assert (await shared.client.get("/v2x")).json().keys() >= {"error", "code", "request_id"}
    assert (await shared.client.get("/v1/x")).json()["error"].keys() >= {"message"}


async def test_a_defect_is_told_in_tritons_body(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.deployments, "resolve", lambda _: 1 / 0)
    assert "the log has the reason" in error(await world.client.get(DEMO), 500)


async def test_a_missing_key_is_told_in_tritons_body(serve: Serve) -> None:
    async with serve(admin_key=KEY) as world:
        for path in ("/v2", "/v2/health/live", "/v2/health/ready", DEMO):
            assert "key" in error(await world.client.get(path), 401)
        keyed = {"Authorization": f"Bearer {KEY}"}
        assert (await world.client.get("/v2/health/ready", headers=keyed)).status_code == 200


def states(index: httpx.Response) -> dict[str, tuple[str, str]]:
    return {f"{each['name']}:{each['version']}": (each["state"], each["reason"]) for each in index.json()}


async def index(world: World, **body: Any) -> dict[str, tuple[str, str]]:
    return states(await world.client.post(f"{REPOSITORY}/index", json=body))


async def test_the_index_lists_every_version_with_its_state(own: World) -> None:
    await own.deployments._tasks.stop((FOLLOW_ALIASES,))
    publish(own.deployments.repository, "other")
    ready, absent = ("READY", ""), ("UNAVAILABLE", "not loaded")
    assert await index(own) == {"demo:1": ready, "other:1": absent}
    assert await index(own, ready=False) == {"demo:1": ready, "other:1": absent}
    assert await index(own, ready=True) == {"demo:1": ready}
    [deployment] = own.deployments.all()
    for state, failure, told in (
        (DeploymentState.LOADING, "", "LOADING"),
        (DeploymentState.DRAINING, "", "UNLOADING"),
        (DeploymentState.FAILED, "no memory", "UNAVAILABLE"),
    ):
        deployment.state, deployment.failure = state, failure
        assert (await index(own))["demo:1"] == (told, failure)
        assert await index(own, ready=True) == {}
    deployment.state, deployment.failure = DeploymentState.READY, ""
    own.engine.state, own.engine.why_not_ready = EngineState.RESTARTING, "its process ended"
    assert (await index(own))["demo:1"] == ("UNAVAILABLE", "its process ended")


async def test_load_answers_when_the_version_is_ready(own: World) -> None:
    client, repository = own.client, own.deployments.repository
    publish(repository, "other")
    loaded = await client.post(f"{REPOSITORY}/models/other/load")
    assert (loaded.status_code, loaded.json()) == (200, {"name": "other", "version": "1", "load": True})
    assert (await index(own))["other:1"] == ("READY", "")
    assert [each.pinned for each in own.deployments.all() if each.manifest.name == "other"] == [True]
    again = await client.post(f"{REPOSITORY}/models/other:1/load", json={"parameters": {}})
    assert again.status_code == 200
    unloaded = await client.post(f"{REPOSITORY}/models/other/unload")
    assert (unloaded.status_code, unloaded.json()) == (200, {"name": "other", "version": "1", "unload": True})
    await until(lambda: len(own.deployments.all()) == 1)
    assert (await index(own))["other:1"] == ("UNAVAILABLE", "not loaded")
    assert "not deployed" in error(await client.post(f"{REPOSITORY}/models/other/unload"), 404)


async def test_a_load_that_fails_says_why(own: World) -> None:
    manifest = publish(own.deployments.repository, "broken")
    directory = own.deployments.repository.path(manifest)
    next(directory.glob("*.safetensors")).write_bytes(b"other bytes")
    refused = error(await own.client.post(f"{REPOSITORY}/models/broken/load"), 503)
    assert refused.startswith("broken:1 could not be loaded: ")
    state, reason = (await index(own))["broken:1"]
    assert (state, bool(reason)) == ("UNAVAILABLE", True)


async def test_a_load_waits_for_its_end(own: World, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(own.deployments.repository, "slow")
    begun, end = asyncio.Event(), asyncio.Event()

    async def held(*_: object) -> None:
        begun.set()
        await end.wait()

    monkeypatch.setattr("service.deployments.deployment.Deployment._load", held)
    loading = asyncio.create_task(own.client.post(f"{REPOSITORY}/models/slow/load"))
    await begun.wait()
    assert (await index(own))["slow:1"] == ("LOADING", "")
    assert not loading.done()
    end.set()
    assert (await loading).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("models/demo/load", {"parameters": {"config": "{}"}}, "`parameters.config`"),
        ("models/demo/load", {"parameters": {"file:1/model.onnx": "x"}}, "`parameters.file:1/model.onnx`"),
        ("models/demo/load", {"replicas": 2}, "`replicas`"),
        ("models/demo/unload", {"parameters": {"unload_dependents": True}}, "`parameters.unload_dependents`"),
        ("index", {"ready": 1}, "`ready`"),
        ("index", {"name": "demo"}, "`name`"),
    ],
)
async def test_what_the_repository_cannot_do_is_refused_by_name(
    shared: World, path: str, body: dict[str, Any], name: str
) -> None:
    assert name in error(await shared.client.post(f"{REPOSITORY}/{path}", json=body), 400)
    assert len(shared.deployments.all()) == 1


async def test_without_an_engine_the_repository_is_told(serve: Serve) -> None:
    async with serve(has_engine=False) as world:
        assert (await world.client.get("/v2/health/ready")).status_code == 200
        assert await index(world) == {"demo:1": ("UNAVAILABLE", "not loaded")}
        assert "There is no engine" in error(await generate(world), 503)
        assert "There is no engine" in error(await world.client.post(f"{REPOSITORY}/models/demo/load"), 503)


async def test_the_same_key_gives_the_same_bytes(serve: Serve, tmp_path: Path) -> None:
    async with serve(database_url=f"sqlite+aiosqlite:///{tmp_path}/sessions.db") as world:
        for path, body in (
            ("generate", {"text_input": "x", "temperature": 1.0}),
            ("generate_stream", {"text_input": "x", "temperature": 1.0}),
        ):
            keyed = {"Idempotency-Key": path}
            first = await world.client.post(f"{DEMO}/{path}", json=body, headers=keyed)
            again = await world.client.post(f"{DEMO}/{path}", json=body, headers=keyed)
            assert (again.content, again.headers["idempotent-replayed"]) == (first.content, "true")
        assert len(world.engine.requests) == 2
