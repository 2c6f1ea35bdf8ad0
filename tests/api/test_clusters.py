"""The server has what routers and autoscalers of clusters ask for: `docs/clusters.md` has the table."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.engine.protocol.messages import EngineStats
from tests.api.conftest import KEY, Serve
from tests.fake_service import World

GAUGES = {
    "": ("dosirak_num_requests_waiting", "dosirak_num_requests_running", "dosirak_kv_cache_usage_ratio"),
    "?compat=vllm": ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"),
}


async def gauges(world: World, query: str) -> dict[str, float]:
    """The queue, what runs and the cache, each one sample of a gauge."""
    text = (await world.client.get(f"/metrics{query}")).text
    families = {each.name: each for each in text_string_to_metric_families(text)}
    found = {}
    for name in GAUGES[query]:
        assert families[name].type == "gauge"
        (sample,) = families[name].samples
        found[name] = sample.value
    return found


@pytest.mark.parametrize("query", GAUGES)
async def test_queue_and_cache_are_gauges_from_the_first_scrape_on(serve: Serve, query: str) -> None:
    waiting, running, usage = GAUGES[query]
    async with serve() as world:
        assert await gauges(world, query) == {waiting: 0, running: 0, usage: 0}
        assert world.engine.on_step is not None
        world.engine.on_step(EngineStats(waiting=3, running=2, blocks_total=64, blocks_free=48))
        assert await gauges(world, query) == {waiting: 3, running: 2, usage: 0.25}


async def test_metrics_need_no_key_where_the_operator_says_so(serve: Serve) -> None:
    async with serve(admin_key=KEY) as world:
        assert (await world.client.get("/metrics")).status_code == 401
    async with serve(admin_key=KEY, open_metrics=True) as world:
        shown = await world.client.get("/metrics", headers={"X-Forwarded-For": "203.0.113.7"})
        assert shown.status_code == 200 and "dosirak_num_requests_waiting" in shown.text
        for path in ("/v1/models", "/metrics/", "/info", "/v1/batching"):
            assert (await world.client.get(path)).status_code == 401, path
    async with serve(open_metrics=True) as world:
        told = await world.client.get("/metrics", headers={"X-Forwarded-For": "203.0.113.7"})
        assert told.status_code == 403, "a server without a key answers its own machine only"


async def test_probes_need_no_key(serve: Serve) -> None:
    async with serve(admin_key=KEY) as world:
        for path in ("/livez", "/readyz"):
            assert (await world.client.get(path)).status_code == 200


async def test_not_ready_while_the_model_loads_and_alive_all_the_time(serve: Serve) -> None:
    async with serve(start=False) as world:
        assert (await world.client.get("/readyz")).status_code == 503
        assert (await world.client.get("/livez")).status_code == 200


async def test_openai_routes_answer_by_the_models_name(world: World) -> None:
    listed = [each["id"] for each in (await world.client.get("/v1/models")).json()["data"]]
    name = listed[0]
    chat = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", {**chat, "prompt": "hi"})):
        sent = {key: value for key, value in body.items() if path.endswith("chat/completions") or key != "messages"}
        answer = await world.client.post(path, json=sent)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 4
        streamed = await world.client.post(
            path, json={**sent, "stream": True, "stream_options": {"include_usage": True}}
        )
        assert '"completion_tokens":4' in streamed.text and streamed.text.endswith("data: [DONE]\n\n")
    assert (await world.client.post("/v1/completions", json={"model": "none", "prompt": "hi"})).status_code == 404


async def test_headers_of_gateways_change_nothing(world: World) -> None:
    headers = {"X-Session-Id": "chat-1", "x-gateway-destination-endpoint": "10.0.0.1:3000", "x-request-id": "gw-1"}
    plain = await world.client.post("/generate", json={"inputs": "hi"})
    through = await world.client.post("/generate", json={"inputs": "hi"}, headers=headers)
    assert through.json()["generated_text"] == plain.json()["generated_text"]
    assert through.headers["x-request-id"] == "gw-1"
