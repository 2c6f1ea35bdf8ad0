"""Health, info, tokenizers, deployments, documents, unknown routes, keys, the log line."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from models.repository.repository import Repository
from service.api.http.errors import ErrorDialect, error_dialect
from service.api.router import plain_routes
from service.engine.client.engine import EngineState
from service.engine.protocol.messages import EngineStats
from service.engine.protocol.work import SlowPath
from service.evaluation.host import measured
from service.evaluation.host.machine import Host, processor
from service.ui import routes as ui
from tests.api.conftest import KEY, Serve
from tests.api.reading import error, openai_error
from tests.fake_service import INFO, URL, WINDOW, World, publish, serving
from tests.hosts import MEASURED
from tests.waiting import until

CHAT = [{"role": "user", "content": "안녕하세요"}]


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/healthz"])
async def test_health(world: World, path: str) -> None:
    assert (await world.client.get(path)).status_code == 200


async def test_info_has_tgis_words_and_masks_the_key(serve: Serve) -> None:
    async with serve(admin_key=KEY) as world:
        response = await world.client.get("/info", headers={"Authorization": f"Bearer {KEY}"})
        body = response.json()
        assert body["model_id"] == "demo:1"
        assert body["max_total_tokens"] == WINDOW
        assert body["engine"]["forward"] == "decoder"
        assert body["settings"]["max_in_progress"] == 512
        assert body["precision"] == "bf16"
        assert KEY not in response.text


async def test_info_describes_the_host_and_measures_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "service.evaluation.host.measured.subprocess.run", lambda *_, **__: pytest.fail("a request must not measure")
    )
    body = (await world.client.get("/info")).json()
    assert body["host"].keys() == msgspec.json.schema(Host)["$defs"]["Host"]["properties"].keys()
    assert body["host"]["memory"]["total"] >= body["host"]["memory"]["available"] > 0
    assert body["measured"] is None, "the doctor never ran"
    assert body["engine"]["version"] == body["version"]
    directory = Path(body["settings"]["data_dir"])
    measured.keep(msgspec.structs.replace(MEASURED, processor=processor().name), directory)
    assert (await world.client.get("/info")).json()["measured"]["memory_read_gb_s"] == 40.0
    measured.keep(MEASURED, directory)
    assert (await world.client.get("/info")).json()["measured"] is None, "another processor's"


async def test_tokenize_in_tgis_shape(world: World) -> None:
    text = "안녕하세요 hello 😀"
    rows = (await world.client.post("/tokenize", json={"inputs": text})).json()
    assert all(row.keys() == {"id", "text", "start", "stop"} for row in rows)
    assert all(text[row["start"] : row["stop"]] == row["text"] for row in rows)
    assert [row["id"] for row in rows] == world.tokenizer.encode(text)


async def test_tokenize_in_vllms_shape(world: World) -> None:
    body = (await world.client.post("/tokenize", json={"prompt": "a" * 2000})).json()
    assert (body["count"], len(body["tokens"]), body["max_model_len"]) == (2000, 2000, WINDOW), "past the window"
    body = (await world.client.post("/tokenize", json={"messages": CHAT})).json()
    answer = (await world.client.post("/generate", json={"messages": CHAT})).json()
    assert body["count"] == answer["usage"]["prompt_tokens"]
    short = await world.client.post("/tokenize", json={"messages": CHAT, "add_generation_prompt": False})
    assert short.json()["count"] < body["count"]


async def test_chat_tokenize_includes_the_generation_prompt(world: World) -> None:
    body = (await world.client.post("/chat_tokenize", json={"messages": CHAT})).json()
    assert body["templated_text"] == "<s><|im_start|>user\n안녕하세요<|im_end|>\n<|im_start|>assistant\n"
    rows, text = body["tokenize_response"], body["templated_text"]
    assert "".join(text[row["start"] : row["stop"]] for row in rows) == text
    answer = (await world.client.post("/generate", json={"messages": CHAT})).json()
    assert len(rows) == answer["usage"]["prompt_tokens"]


async def test_a_slow_path_is_no_secret(serve: Serve) -> None:
    slow = SlowPath(reasons=("its layer 3 differs from the library's",), step_seconds=0.02, weights_seconds=0.005)
    with capture_logs() as logged:
        async with serve(engine={"info": msgspec.structs.replace(INFO, slow_path=slow, shared_bytes=77)}) as world:
            await until(lambda: world.deployments.describe() and world.deployments.describe()[0]["state"] == "ready")
            [shown] = (await world.client.get("/v1/deployments")).json()["data"]
    assert shown["slow_path"] == {"reasons": list(slow.reasons), "step_ms": 20, "weights_ms": 5, "slowdown": 4}
    assert shown["shared_bytes"] == 77
    [warning] = [each for each in logged if each["event"] == "slow_path"]
    assert warning["log_level"] == "warning"
    assert warning["cost"] == (
        "a decode step takes 20 ms, up to 4 times what memory allows (5 ms), because a faster way was refused: "
        "its layer 3 differs from the library's"
    )


async def test_deployments_load_list_and_drain(world: World) -> None:
    [shown] = (await world.client.get("/v1/deployments")).json()["data"]
    assert shown.keys() >= {"model", "digest", "state", "precision", "memory_bytes", "load_seconds", "replicas"}
    assert (shown["model"], shown["state"]) == ("demo:1", "ready")
    assert shown["replicas"][0]["kv_blocks"] == {"total": 64, "free": 64, "cached": 0, "offloaded": 0}
    again = await world.client.post("/v1/deployments", json={"model": "demo:1"})
    assert (again.status_code, again.json()["model"]) == (202, "demo:1")
    gone = await world.client.delete("/v1/deployments/demo:1")
    assert gone.status_code == 202
    await until(lambda: not world.deployments.describe())
    assert (await world.client.get("/v1/deployments")).json() == {"data": []}
    error(await world.client.delete("/v1/deployments/demo:1"), 404, "not_found")
    loading = await world.client.post("/v1/deployments", json={"model": "demo"})
    assert (loading.status_code, loading.json()["state"]) == (202, "loading")
    error(await world.client.post("/v1/deployments", json={"model": "nope"}), 404, "not_found")


@pytest.mark.parametrize("by_setting", [True, False])
async def test_a_window_is_cut_by_the_setting_and_by_a_deployment(tmp_path: Path, by_setting: bool) -> None:
    """Every place that tells the window tells the cut one, and prompts are held against it."""
    publish(Repository(tmp_path), "demo")
    publish(Repository(tmp_path), "small", window=100)
    asked = {"model": "demo:1", "max_model_len": 200}
    settings: dict[str, Any] = {"max_model_len": 200} if by_setting else {"default_model": "small:1"}
    async with serving(tmp_path, **settings) as world:
        client = world.client
        if not by_setting:
            more = await client.post("/v1/deployments", json=asked | {"max_model_len": WINDOW + 1})
            assert more.status_code == 422 and "max_model_len" in more.json()["error"]
            assert (await client.post("/v1/deployments", json=asked)).status_code == 202
            await until(lambda: all(each.is_serving for each in world.deployments.all()))
            other = await client.post("/v1/deployments", json=asked | {"max_model_len": 300})
            assert other.status_code == 409 and "200 positions" in other.json()["error"]
        windows = {each["id"]: each["max_model_len"] for each in (await client.get("/v1/models")).json()["data"]}
        assert (windows["demo:1"], windows["small:1"]) == (200, 100)
        shown = await client.get("/v1/models/demo:1", headers={"anthropic-version": "2023-06-01"})
        assert shown.json()["max_input_tokens"] == 200
        assert (await client.get("/info")).json()["max_total_tokens"] == (200 if by_setting else 100)
        deployed = {each["model"]: each for each in (await client.get("/v1/deployments")).json()["data"]}
        assert deployed["demo:1"]["max_model_len"] == 200
        answer = (await client.post("/generate", json={"model": "demo:1", "messages": CHAT})).json()
        assert answer["context"]["window"] == 200
        long = await client.post("/generate", json={"model": "demo:1", "inputs": "a" * 400})
        assert long.status_code == 422 and "the window has 200" in long.json()["error"]


async def test_documents_come_from_nowhere_else(world: World) -> None:
    page = await world.client.get("/docs")
    assert not re.search(r"https?://|//[a-z]", page.text), "no external address"
    assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.asyncio(loop_scope="module")
async def test_unknown_routes_are_json(shared: World) -> None:
    for path in ("/nope", "/generate/", "//generate", "/GENERATE", "/v1", "/%2e%2e/etc/passwd", "/a\u00e9"):
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"):
            error(await shared.client.request(method, f"{URL}{path}"), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/generate", "POST"),
        ("DELETE", "/", "GET, POST, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("PUT", "/v1/deployments", "GET, POST, HEAD"),
        ("GET", "/v1/deployments/demo:1", "DELETE"),
        ("BREW", "/generate", "POST"),
        ("OPTIONS", "/generate", "POST"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_wrong_methods_name_the_right_ones(shared: World, method: str, path: str, allow: str) -> None:
    response = await shared.client.request(method, path)
    error(response, 405, "method_not_allowed")
    assert response.headers["allow"] == allow


ROUTES = [
    ("GET", "/"),
    ("POST", "/generate"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/health"),
    ("GET", "/healthz"),
    ("GET", "/info"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/nope"),
    ("DELETE", "/v1/deployments/demo:1"),
    ("GET", "//livez"),
    ("GET", "/livez/"),
    ("GET", "/LIVEZ"),
    ("GET", "/livez/../metrics"),
]
WRONG = [
    "",
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    f"Bearer {KEY}x",
    f"Bearer {KEY[:-1]}",
    f"Basic {KEY}",
    KEY,
    "Bearer " + "x" * 5000,
    "Bearer ' OR 1=1 --",
    "Bearer é",
]


@pytest.mark.asyncio(loop_scope="module")
async def test_without_the_key_only_probes_answer(guarded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.edge.wrong_keys.ALMOST_FULL", 1e9)  # one peer sends all of these keys
    client = guarded.client
    for method, path in ROUTES:
        bodies = set()
        for value in WRONG:
            headers = [(b"authorization", value.encode())] if value else []
            response = await client.request(method, f"{URL}{path}", headers=headers)
            assert response.status_code == 401, (path, value)
            assert response.headers["www-authenticate"] == "Bearer"
            bodies.add(response.text.replace(response.headers["x-request-id"], ""))
        assert len(bodies) == 1, "always the same"
        check = openai_error if path.startswith(("/v1/chat", "/v1/models")) else error
        check(response, 401, "unauthorized")
    for probe in ("/livez", "/readyz"):
        assert (await client.get(probe)).status_code == 200


async def test_one_log_line_a_request_and_never_a_prompt(world: World) -> None:
    secret = "my blood type is secret"
    with capture_logs() as lines:
        await world.client.post("/generate", json={"inputs": secret, "user": "u-1"})
        await world.client.post("/generate_stream", json={"inputs": secret, "parameters": {"stop": ["hello"]}})
        await world.client.post("/generate", json={"inputs": secret, "parameters": {"banana": secret}})
        await world.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": secret}]})
    assert [line["route"] for line in lines] == ["/generate", "/generate_stream", "/generate", "/v1/chat/completions"]
    assert [line["status"] for line in lines] == [200, 200, 422, 200]
    assert secret not in str(lines)
    assert "안녕" not in str(lines)
    assert lines[0].items() >= {"model": "demo:1", "finish_reason": "stop", "user": "u-1", "streamed": False}.items()
    assert {"prompt_tokens", "completion_tokens", "cached_tokens", "ttft_ms", "total_ms", "request_id"} <= lines[
        1
    ].keys()
    assert lines[2]["code"] == "unsupported_field"


def test_a_route_that_openai_lacks_errs_in_our_words() -> None:
    theirs = {"openai", "anthropic", "responses", "files", "batches"}
    routes = [route for route in plain_routes(ui) if route.path.startswith("/v1/")]
    for route in routes:
        tags: list[str] = route.tags  # type: ignore[attr-defined]
        assert (error_dialect(route.path) is ErrorDialect.NATIVE) != bool(theirs & set(tags)), route.path
    assert len(routes) > 50


@pytest.mark.parametrize(("path", "asked"), [("/v1/chat/completions", "messages"), ("/v1/responses", "input")])
async def test_the_log_has_the_beginnings_of_metadata(world: World, path: str, asked: str) -> None:
    body = {"model": "demo", asked: [{"role": "user", "content": "hi"}], "store": False}
    told = {"order": "7" * 512, "k" * 64: "v"}
    with capture_logs() as lines:
        response = await world.client.post(path, json={**body, "metadata": told, "prompt_cache_key": "a chat"})
    assert response.status_code == 200, response.text
    assert lines[0]["metadata"] == {"order": "7" * 32, "k" * 32: "v"} and lines[0]["prompt_cache_key"] == "a chat"


async def test_a_defect_of_ours_is_logged_once_and_tells_nothing(world: World) -> None:
    def broken() -> object:
        raise RuntimeError("secret path /root/x")

    world.deployments.describe = broken  # type: ignore[method-assign,assignment]
    with capture_logs() as lines:
        response = await world.client.get("/v1/deployments")
    error(response, 500, "internal")
    assert "secret" not in response.text
    assert [line["event"] for line in lines] == ["request_failed", "request"]


async def test_header_injection_through_the_request_id(world: World) -> None:
    for value in (b"a\r\nX-Evil: 1", b"\x1b[31m", b"x" * 200, "é".encode()):
        response = await world.client.get("/health", headers=[(b"x-request-id", value)])
        assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])
        assert "x-evil" not in response.headers


async def test_lifespan_starts_and_stops_the_deployments(serve: Serve) -> None:
    async with serve(start=False) as world:
        async with world.app.router.lifespan_context(world.app):
            await until(lambda: world.deployments.ready)
            transport = httpx.ASGITransport(world.app)
            async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
                assert (await client.post("/generate", json={"inputs": "x"})).status_code == 200
        assert not world.deployments.ready


async def test_batching_shows_the_fit_and_the_decisions(world: World) -> None:
    world.engine.stats = EngineStats(
        steps_total=9,
        step_seconds=0.02,
        step_tokens=12,
        step_sequences=3,
        token_budget=640,
        cost=(0.01, 2e-4, 1e-7, 1e-9),
        cost_error=0.04,
        preemptions_total=1,
        backlog_seconds=0.5,
        hopeless_total=3,
        draft_tokens_total=40,
        accepted_tokens_total=30,
    )
    (shown,) = (await world.client.get("/v1/batching")).json()["data"]
    assert (shown["model"], shown["state"], shown["steps"]) == ("demo:1", "ready", 9)
    assert shown["cost"] == {
        "constant_seconds": 0.01,
        "seconds_per_token": 2e-4,
        "seconds_per_kv_token": 1e-7,
        "seconds_per_attention_pair": 1e-9,
        "error_ratio": 0.04,
    }
    assert shown["last_step"] == {"seconds": 0.02, "tokens": 12, "sequences": 3}
    assert shown["decisions"] == {
        "token_budget": 640,
        "preemptions": 1,
        "backlog_seconds": 0.5,
        "deadlines_out_of_reach": 3,
        "draft_tokens": 40,
        "accepted_draft_tokens": 30,
    }


async def test_batching_before_the_first_step(world: World) -> None:
    (shown,) = (await world.client.get("/v1/batching")).json()["data"]
    assert shown["cost"]["constant_seconds"] is None


async def test_probes_and_state_tell_of_an_engine_that_is_started_again(world: World) -> None:
    world.engine.state = EngineState.RESTARTING
    world.engine.why_not_ready = "the engine process died and is being started again: it ended with exit code -9"
    for path in ("/readyz", "/healthz", "/health"):
        response = await world.client.get(path)
        assert (response.status_code, response.json()["code"]) == (503, "unavailable")
        assert world.engine.why_not_ready in response.json()["error"]
    [deployment] = (await world.client.get("/v1/deployments")).json()["data"]
    assert (deployment["state"], deployment["error"]) == ("restarting", world.engine.why_not_ready)
    assert deployment["replicas"][0]["state"] == "restarting"
    world.engine.state, world.engine.why_not_ready = EngineState.READY, ""
    assert (await world.client.get("/readyz")).status_code == 200


async def test_an_answer_in_flight_counts_once(serve: Serve) -> None:
    async with serve(engine={"hold": asyncio.Event()}) as world:

        async def in_flight() -> int:
            return int((await world.client.get("/v1/deployments")).json()["data"][0]["in_flight"])

        answering = asyncio.create_task(world.client.post("/generate", json={"inputs": "hi"}))
        await until(lambda: world.engine.alive)
        assert await in_flight() == 1
        assert world.engine.hold is not None
        world.engine.hold.set()
        await answering
        assert await in_flight() == 0
