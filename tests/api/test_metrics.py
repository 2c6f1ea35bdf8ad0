"""The exposition: parses, follows the conventions, agrees with what clients were told, and does not grow."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from service.engine.protocol.messages import EngineStats
from service.observability.metrics import FELT, Metrics, spaced
from tests.api.conftest import Serve
from tests.api.reading import events
from tests.fake_service import INFO, World

MODEL = 'model="demo",version="1"'


async def exposition(world: World) -> str:
    response = await world.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return response.text


def value(text: str, series: str) -> float:
    [line] = [line for line in text.splitlines() if line.startswith(f"dosirak_{series} ")]
    return float(line.rsplit(" ", 1)[1])


async def test_counts_are_those_of_usage(world: World) -> None:
    usages = []
    for body in ({"inputs": "abc"}, {"inputs": "hello", "parameters": {"n": 2, "stop": ["하나"]}}):
        usages.append((await world.client.post("/generate", json=body)).json()["usage"])
    usages.append(events(await world.client.post("/generate_stream", json={"inputs": "x"}))[-1]["usage"])
    text = await exposition(world)
    assert value(text, f"prompt_tokens_total{{{MODEL}}}") == sum(each["prompt_tokens"] for each in usages)
    assert value(text, f"generation_tokens_total{{{MODEL}}}") == sum(each["completion_tokens"] for each in usages)
    assert value(text, f"cached_prompt_tokens_total{{{MODEL}}}") == sum(each["cached_tokens"] for each in usages)
    assert value(text, f'request_success_total{{finish_reason="stop",{MODEL}}}') == 3
    assert value(text, f"time_to_first_token_seconds_count{{{MODEL}}}") == 3
    tokens = sum(each["completion_tokens"] for each in usages)
    assert value(text, f"inter_token_latency_seconds_count{{{MODEL}}}") == tokens - 4, "one less for each sequence"
    for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"):
        assert value(text, f"{name}_seconds_count{{{MODEL}}}") == 3
    assert value(text, f"request_prompt_tokens_sum{{{MODEL}}}") == sum(each["prompt_tokens"] for each in usages)


async def test_latencies_are_those_of_a_stopwatch(serve: Serve) -> None:
    async with serve(engine={"step_seconds": 0.02}) as world:
        started = time.monotonic()
        answer = (await world.client.post("/generate", json={"inputs": "x"})).json()
        elapsed = time.monotonic() - started
        text = await exposition(world)
        first = value(text, f"time_to_first_token_seconds_sum{{{MODEL}}}")
        between = value(text, f"inter_token_latency_seconds_sum{{{MODEL}}}")
        assert first == pytest.approx(answer["timings"]["ttft_ms"] / 1000, abs=0.001)
        assert between == pytest.approx(answer["timings"]["decode_ms"] / 1000, abs=0.001)
        assert 0.02 * (answer["usage"]["completion_tokens"] - 1) <= first + between <= elapsed


async def test_answers_without_a_token_have_no_time_to_the_first_and_none_between(world: World) -> None:
    chat = [{"role": "user", "content": "hi"}]
    for path, body in (
        ("/v1/embeddings", {"input": ["one", "two"]}),
        ("/generate", {"choices": ["a", "b"], "messages": chat}),
        ("/v1/completions", {"prompt": "hello", "max_tokens": 0, "echo": True}),
        ("/v1/messages", {"max_tokens": 0, "messages": chat, "model": "demo"}),
    ):
        response = await world.client.post(path, json=body)
        assert response.status_code == 200, response.text
    assert set(response.json()["timings"].values()) == {None}
    text = await exposition(world)
    for name in ("time_to_first_token", "inter_token_latency", "request_decode_time"):
        assert value(text, f"{name}_seconds_count{{{MODEL}}}") == 0, name
    assert value(text, f"e2e_request_latency_seconds_count{{{MODEL}}}") == 5
    await world.client.post("/generate", json={"inputs": "hello"})
    assert value(await exposition(world), f"time_to_first_token_seconds_count{{{MODEL}}}") == 1


def test_quantiles_of_felt_latencies_are_within_five_percent() -> None:
    assert FELT[0] == 0.002
    assert FELT[-1] >= 60
    assert all(high / low < 1.11 for low, high in pairwise(FELT)), "half a bucket is 5 %"
    assert spaced(1, 8, 2) == (1, 2, 4, 8)


async def test_failures_are_counted_by_code(world: World) -> None:
    await world.client.post("/generate", json={"inputs": ""})
    await world.client.post("/generate", json={"inputs": "x", "banana": 1})
    await world.client.get("/nope")
    text = await exposition(world)
    for code in ("invalid_request", "unsupported_field", "not_found"):
        assert value(text, f'errors_total{{code="{code}"}}') == 1
    assert value(text, 'http_requests_total{method="POST",route="/generate",status="422"}') == 2
    assert value(text, 'http_requests_total{method="GET",route="other",status="404"}') == 1


async def test_random_paths_and_names_make_no_series(world: World) -> None:
    for _ in range(2):  # the second round adds nothing that the first did not
        for n in range(30):
            await world.client.get(f"/scan/{n}/{'x' * n}")
            await world.client.get(f"/v1/models/m{n}")
            await world.client.post("/generate", json={"inputs": "x", "model": f"m{n}"})
            await world.client.request(f"M{n}", f"/v{n}")
            await world.client.post(
                "/generate", json={"inputs": ""}, headers={"User-Agent": f"a{n}", "X-Request-Id": f"r{n}"}
            )
        lines = (await exposition(world)).count("\n")
        await exposition(world)
    assert (await exposition(world)).count("\n") == lines
    assert 'route="/v1/models/{id}"' in await exposition(world)


def test_engine_steps_become_gauges_and_totals() -> None:
    metrics = Metrics()
    model = metrics.model("demo", "1")
    steps: dict[str, Any] = {"steps_total": 5, "step_sequences": 3, "step_tokens": 40, "step_seconds": 0.02}
    totals: dict[str, Any] = {"preemptions_total": 2, "prefix_queried_tokens_total": 100, "prefix_hit_tokens_total": 60}
    stats = EngineStats(
        3, 4, 100, 50, 20, **totals, **steps, token_budget=512, cost=(0.1, 0.2, 0.3, 0.4), cost_error=0.05
    )
    stats = replace(stats, blocks_offloaded=7, restored_tokens_total=32)
    model.on_step(stats)
    model.on_step(stats)  # nothing new: no step
    text = metrics.exposition().decode()
    assert value(text, f"num_requests_running{{{MODEL}}}") == 3
    assert value(text, f"num_requests_waiting{{{MODEL}}}") == 4
    assert value(text, f"kv_cache_usage_ratio{{{MODEL}}}") == 0.3
    assert value(text, f"num_preemptions_total{{{MODEL}}}") == 2
    assert value(text, f"prefix_cache_hits_total{{{MODEL}}}") == 60
    assert value(text, f"kv_offloaded_blocks{{{MODEL}}}") == 7
    assert value(text, f"kv_restored_tokens_total{{{MODEL}}}") == 32
    assert value(text, f"step_duration_seconds_count{{{MODEL}}}") == 1
    assert value(text, 'step_cost_coefficient{model="demo",term="kv_tokens",version="1"}') == 0.3


def test_a_restarted_engine_counts_on() -> None:
    metrics = Metrics()
    model = metrics.model("demo", "1")
    model.on_step(EngineStats(blocks_total=10, preemptions_total=7, steps_total=9))
    model.on_step(EngineStats())  # it died
    model.on_step(EngineStats(blocks_total=10, preemptions_total=2, steps_total=1))
    text = metrics.exposition().decode()
    assert value(text, f"num_preemptions_total{{{MODEL}}}") == 9
    assert value(text, f"engine_restarts_total{{{MODEL}}}") == 1


def test_a_process_that_dies_in_its_first_step_counts() -> None:
    """As each does that a request kills, which is given first again: the alert on restarts stayed silent."""
    metrics = Metrics()
    model = metrics.model("demo", "1")
    for _ in range(3):
        model.on_ready(structs.replace(INFO, blocks_total=10))
        assert value(metrics.exposition().decode(), f"kv_cache_usage_ratio{{{MODEL}}}") == 0
        model.on_step(EngineStats())  # it died
    assert value(metrics.exposition().decode(), f"engine_restarts_total{{{MODEL}}}") == 3


async def test_conventions(world: World) -> None:
    await world.client.post("/generate", json={"inputs": "x"})
    families = list(text_string_to_metric_families(await exposition(world)))
    assert len(families) > 25
    for family in families:
        assert family.name.startswith(("dosirak_", "gen_ai_server_"))
        assert family.documentation.endswith(".")
        assert not family.name.endswith(("_ms", "_milliseconds", "_count", "_sum", "_bucket", "_created"))
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        if family.type != "counter":
            assert not family.name.endswith("_total")
    labelled = [sample for family in families for sample in family.samples if "model" in sample.labels]
    assert all(sample.labels["version"] == "1" for sample in labelled)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
async def test_promtool_finds_nothing(world: World) -> None:
    command, text = ["promtool", "check", "metrics"], await exposition(world)
    checked = await asyncio.to_thread(subprocess.run, command, input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
