"""The series that there are: at 0 from the load on, none by strangers, small, and under other names on demand."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from models.repository.repository import Repository
from service.deployments.deployment import DeploymentState
from service.engine.protocol.messages import EngineStats, FinishReason
from service.engine.protocol.work import Peaks, PhaseWork, SlowPath
from service.errors import GenerationFailed
from service.observability.metrics import Metrics
from service.observability.metrics.metrics import KEPT_SECONDS
from tests.api.conftest import Serve
from tests.api.reading import error
from tests.api.test_disconnect import Client
from tests.fake_service import INFO, World, publish, serving
from tests.reports import beside, report
from tests.waiting import until

PEAKS = Peaks(dtype="bf16", flops=1e9, bytes_per_second=1e8)
MODEL = {"model": "demo", "version": "1"}
LATENCIES = (
    "dosirak_time_to_first_token_seconds",
    "dosirak_inter_token_latency_seconds",
    "dosirak_request_time_per_output_token_seconds",
    "dosirak_e2e_request_latency_seconds",
    "dosirak_request_queue_time_seconds",
    "dosirak_request_prefill_time_seconds",
    "dosirak_request_decode_time_seconds",
    "dosirak_step_duration_seconds",
    "dosirak_session_store_seconds",
    "gen_ai_server_request_duration_seconds",
    "gen_ai_server_time_per_output_token_seconds",
    "gen_ai_server_time_to_first_token_seconds",
)
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(world: World, path: str = "/metrics", **options: Any) -> Series:
    response = await world.client.get(path, **options)
    assert response.status_code == 200
    return series(response.text)


def series(text: str) -> Series:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found: Series = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples), "a series twice"
    return found


def of(found: Series, name: str, **labels: str) -> float:
    """The one series of this name that has these labels."""
    wanted = set(labels.items())
    [value] = [value for (each, has), value in found.items() if each == name and wanted <= has]
    return value


async def test_every_latency_has_the_objectives_as_edges(world: World) -> None:
    edges = defaultdict(set)
    for name, labels in await scraped(world):
        edges[name.removesuffix("_bucket")].add(dict(labels).get("le"))
    for name in LATENCIES:
        assert {"0.2", "0.5", "1.0", "2.0", "5.0"} <= edges[name], name
    timed = {name for name, found in edges.items() if name.endswith("_seconds") and "+Inf" in found}
    assert timed == set(LATENCIES)


async def test_every_series_is_there_before_the_first_answer(serve: Serve) -> None:
    async with serve(engine={"info": structs.replace(INFO, peaks=PEAKS)}) as world:
        before = await scraped(world)
        body = {"inputs": "hello", "parameters": {"n": 2}}
        assert (await world.client.post("/generate", json=body)).status_code == 200
        session = (await world.client.post("/v1/sessions", json={})).json()["id"]
        chat = {"messages": [{"role": "user", "content": "hi"}], "session_id": session}
        assert (await world.client.post("/generate", json=chat)).status_code == 200
        await world.client.post("/generate", json={"inputs": ""})
        new = (await scraped(world)).keys() - before.keys()
        assert {name for name, _ in new} == {"dosirak_http_requests_total"}, "routes, as they are first used"
        answered = {name for (name, labels), value in before.items() if dict(labels).get("model") and value}
        peaks = {"dosirak_peak_flops", "dosirak_peak_bytes_per_second"}
        assert answered <= peaks | {"dosirak_model_info", "dosirak_engine_slowdown_ratio"}


async def test_a_loaded_version_is_small(world: World) -> None:
    await world.client.post("/generate", json={"inputs": "x"})
    assert len((await world.client.get("/metrics")).content) <= 63_000
    alone, metrics = len(Metrics().exposition()), Metrics()
    for version in "123":
        metrics.model("a-model-with-a-long-name", version)
    assert (len(metrics.exposition()) - alone) / 3 <= 60_000


async def test_an_unloaded_version_takes_its_series_along(tmp_path: Path) -> None:
    now = [0.0]
    async with serving(tmp_path) as world:
        world.metrics._clock = lambda: now[0]
        publish(world.deployments.repository, "other")

        async def of_other() -> int:
            return sum(dict(labels).get("model") == "other" for name, labels in await scraped(world))

        aliases = await of_other()
        for _ in range(2):
            body = {"model": "other", "inputs": "hi", "parameters": {"max_new_tokens": 2}}
            assert (await world.client.post("/generate", json=body)).status_code == 200
            assert await of_other() > 400
            await world.deployments.unload("other:1")
            await until(lambda: len(world.deployments.all()) == 1)
            assert await of_other() > 400, "a scraper gets its last numbers"
            now[0] += KEPT_SECONDS - 1
            assert await of_other() > 400
            now[0] += 1
            assert await of_other() == aliases
        assert sum(dict(labels).get("model") == "demo" for name, labels in await scraped(world)) > 400


async def test_an_unloaded_versions_gauges_are_those_of_an_idle_engine(tmp_path: Path) -> None:
    busy = EngineStats(running=3, waiting=2, blocks_total=10, blocks_free=1, steps_total=5, backlog_seconds=1.5)
    async with serving(tmp_path) as world:
        publish(world.deployments.repository, "other")
        body = {"model": "other", "inputs": "hi", "parameters": {"max_new_tokens": 2}}
        for _ in range(2):
            assert (await world.client.post("/generate", json=body)).status_code == 200
            world.metrics.model("other", "1").on_step(busy)
            assert gauges_of(await scraped(world), "other") == [3.0, 2.0, 0.9, 1.5]
            await world.deployments.unload("other:1")
            await until(lambda: len(world.deployments.all()) == 1)
            assert gauges_of(await scraped(world), "other") == [0.0] * 4
        assert of(await scraped(world), "dosirak_engine_restarts_total", model="other") == 0


def test_an_engine_with_fewer_replicas_counts_those_alone() -> None:
    metrics = Metrics()
    model = metrics.model("demo", "1")
    for replica in range(2):
        model.on_ready(structs.replace(INFO, peaks=PEAKS), replica)
        work = working(1e8, 1.0)
        model.on_step(
            EngineStats(running=3, blocks_total=100, blocks_free=100, preemptions_total=4, decode=work), replica
        )
    model.on_queue(7)
    model.begin_engine()
    assert gauges_of(series(metrics.exposition().decode()), "demo") == [0.0] * 4
    model.on_step(EngineStats(running=1, blocks_total=100, blocks_free=10, preemptions_total=6))
    found = series(metrics.exposition().decode())
    assert gauges_of(found, "demo") == [1.0, 0.0, 0.9, 0.0]
    assert of(found, "dosirak_engine_restarts_total", **MODEL) == 0
    assert of(found, "dosirak_num_preemptions_total", **MODEL) == 4 + 4 + 6
    assert of(found, "dosirak_mfu_ratio", phase="decode", **MODEL) == 0
    model.on_ready(structs.replace(INFO, peaks=structs.replace(PEAKS, flops=3e9)))
    assert of(series(metrics.exposition().decode()), "dosirak_peak_flops", **MODEL) == 3e9


def gauges_of(found: Series, model: str) -> list[float]:
    """Sequences that run and wait, the KV cache's use, and the backlog."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio", "backlog_seconds")
    return [of(found, f"dosirak_{name}", model=model) for name in names]


def working(flops: float, seconds: float, recent: float = 1.0) -> PhaseWork:
    return PhaseWork(flops, flops / 10, seconds, flops * recent, flops * recent / 10, seconds * recent)


def test_ratios_are_rates_over_the_peaks() -> None:
    metrics = Metrics()
    model = metrics.model("demo", "1")
    model.on_ready(structs.replace(INFO, peaks=PEAKS))
    model.on_step(EngineStats(blocks_total=1, prefill=working(4e8, 2.0), decode=working(1e8, 4.0, recent=0.5)))
    found = series(metrics.exposition().decode())
    for phase, flops, seconds in (("prefill", 4e8, 2.0), ("decode", 1e8, 4.0)):
        assert of(found, "dosirak_model_flops_total", phase=phase, **MODEL) == flops
        assert of(found, "dosirak_model_bytes_total", phase=phase, **MODEL) == flops / 10
        assert of(found, "dosirak_step_seconds_total", phase=phase, **MODEL) == seconds
        peak = of(found, "dosirak_peak_flops", dtype="bf16", **MODEL)
        assert of(found, "dosirak_mfu_ratio", phase=phase, **MODEL) == pytest.approx(flops / seconds / peak)
        memory = of(found, "dosirak_peak_bytes_per_second", **MODEL)
        expected = pytest.approx(flops / 10 / seconds / memory)
        assert of(found, "dosirak_bandwidth_ratio", phase=phase, **MODEL) == expected


def test_a_slow_path_is_told_with_its_cost() -> None:
    metrics = Metrics()
    model = metrics.model("demo", "1")
    assert of(series(metrics.exposition().decode()), "dosirak_engine_slowdown_ratio", **MODEL) == 1
    slow = SlowPath(reasons=("its layer 3 differs",), step_seconds=0.02, weights_seconds=0.005)
    for told, ratio in ((slow, 4), (structs.replace(slow, weights_seconds=0.0), 2), (None, 1)):
        model.on_ready(structs.replace(INFO, slow_path=told, shared_bytes=77))
        found = series(metrics.exposition().decode())
        assert of(found, "dosirak_engine_slowdown_ratio", **MODEL) == ratio
        assert of(found, "dosirak_shared_weights_bytes", **MODEL) == 77


def test_a_rate_that_was_reached_is_no_more_than_the_peak() -> None:
    metrics = Metrics()
    model = metrics.model("demo", "1")
    model.on_ready(structs.replace(INFO, peaks=PEAKS))
    model.on_step(EngineStats(blocks_total=1, prefill=working(5e9, 1.0)))
    found = series(metrics.exposition().decode())
    assert of(found, "dosirak_peak_flops", **MODEL) == 5e9
    assert of(found, "dosirak_peak_bytes_per_second", **MODEL) == 5e8
    assert of(found, "dosirak_mfu_ratio", phase="prefill", **MODEL) == 1.0


def test_work_counts_on_over_a_death_and_over_replicas() -> None:
    metrics = Metrics()
    model = metrics.model("demo", "1")
    for replica in range(2):
        model.on_ready(structs.replace(INFO, peaks=PEAKS), replica)
        model.on_step(EngineStats(blocks_total=1, decode=working(1e8, 1.0)), replica)
    model.on_step(EngineStats(), 0)
    model.on_step(EngineStats(blocks_total=1, decode=working(5e7, 0.5)), 0)
    found = series(metrics.exposition().decode())
    assert of(found, "dosirak_model_flops_total", phase="decode", **MODEL) == 2.5e8
    assert of(found, "dosirak_peak_flops", **MODEL) == 1e9, "of one process"
    assert of(found, "dosirak_mfu_ratio", phase="decode", **MODEL) == pytest.approx(0.1)


async def test_without_peaks_there_are_no_ratios_and_info_says_why(serve: Serve) -> None:
    why = "the peak of bf16 products could not be measured: out of memory"
    async with serve(engine={"info": structs.replace(INFO, no_peaks=why)}) as world:
        await world.client.post("/generate", json={"inputs": "x"})
        names = {name for name, _ in await scraped(world)}
        assert not names & {"dosirak_mfu_ratio", "dosirak_bandwidth_ratio", "dosirak_peak_flops"}
        assert "dosirak_model_flops_total" in names
        engine = (await world.client.get("/info")).json()["engine"]
        assert (engine["peaks"], engine["no_peaks"]) == (None, why)


async def test_vllms_names_have_the_same_observations(world: World) -> None:
    await world.client.post("/generate", json={"inputs": "x"})
    ours, theirs = await scraped(world), await scraped(world, "/metrics?compat=vllm")
    assert all(name.startswith("vllm:") for name, _ in theirs)
    assert all(dict(labels)["model_name"] == "demo:1" for _, labels in theirs)
    for our, their in (
        ("dosirak_num_requests_waiting", "vllm:num_requests_waiting"),
        ("dosirak_num_requests_running", "vllm:num_requests_running"),
        ("dosirak_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"),
        ("dosirak_generation_tokens_total", "vllm:generation_tokens_total"),
        ("dosirak_prompt_tokens_total", "vllm:prompt_tokens_total"),
        ("dosirak_num_preemptions_total", "vllm:num_preemptions_total"),
        ("dosirak_time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_sum"),
        ("dosirak_inter_token_latency_seconds_count", "vllm:inter_token_latency_seconds_count"),
        ("dosirak_iteration_tokens_count", "vllm:iteration_tokens_total_count"),
    ):
        assert of(theirs, their) == of(ours, our), their
    assert of(theirs, "vllm:request_success_total", finished_reason="stop") == 1
    assert of(theirs, "vllm:time_to_first_token_seconds_bucket", le="2.0") == 1


async def test_gen_ai_names_have_the_same_observations(world: World) -> None:
    await world.client.post("/generate", json={"inputs": "hello"})
    found = await scraped(world)
    for theirs, ours in (
        ("gen_ai_server_request_duration_seconds", "dosirak_e2e_request_latency_seconds"),
        ("gen_ai_server_time_to_first_token_seconds", "dosirak_time_to_first_token_seconds"),
        ("gen_ai_server_time_per_output_token_seconds", "dosirak_request_time_per_output_token_seconds"),
    ):
        for part in ("_sum", "_count"):
            assert of(found, theirs + part, **MODEL) == of(found, ours + part, **MODEL) > 0


async def test_refusals_count_by_reason(serve: Serve) -> None:
    async with serve(engine={"hold": (hold := asyncio.Event())}, max_in_progress=1) as world:
        first = asyncio.create_task(world.client.post("/generate", json={"inputs": "x"}))
        await until(lambda: len(world.engine.held) == 1)
        error(await world.client.post("/generate", json={"inputs": "x"}), 503, "overloaded")
        hold.set()
        await first
        world.engine.stats = replace(world.engine.stats, backlog_seconds=60.0)
        late = await world.client.post("/generate", json={"inputs": "x", "deadline_ms": 50})
        error(late, 504, "deadline_exceeded")
        found = await scraped(world)
        assert of(found, "dosirak_admission_rejected_total", reason="overloaded") == 1
        assert of(found, "dosirak_admission_rejected_total", reason="deadline_exceeded") == 1
        assert of(found, "dosirak_admission_rejected_total", reason="unavailable") == 0
        assert sum(v for (name, _), v in found.items() if name == "dosirak_requests_aborted_total") == 0


@pytest.mark.parametrize(
    ("engine", "cause"),
    [
        ({"fail_after": 2, "end": FinishReason.DEADLINE}, "deadline"),
        ({"fail_after": 0, "end": FinishReason.DEADLINE}, "deadline"),
        ({"fail_after": 2, "failure": GenerationFailed("it broke")}, "engine"),
        ({"fail_after": 2, "end": FinishReason.ERROR}, "engine"),
        ({"fail_after": 2, "end": FinishReason.ABORT}, "engine"),
    ],
)
async def test_answers_that_do_not_end_count_by_cause(serve: Serve, engine: dict[str, Any], cause: str) -> None:
    async with serve(engine=engine) as world:
        await world.client.post("/generate", json={"inputs": "x", "deadline_ms": 60_000})
        found = await scraped(world)
        counts = {dict(labels)["cause"]: v for (name, labels), v in found.items() if "aborted_total" in name}
        assert counts == {"client": 0, "deadline": 0, "drain": 0, "engine": 0, cause: 1}


async def test_a_client_that_leaves_is_a_cause(serve: Serve) -> None:
    async with serve(engine={"hold": asyncio.Event()}) as world:
        client = Client(world, "/generate", {"inputs": "x"})
        await until(lambda: len(world.engine.held) == 1)
        await client.leave()
        assert of(await scraped(world), "dosirak_requests_aborted_total", cause="client", **MODEL) == 1


async def test_an_answer_that_a_client_left_counts_the_same_everywhere(serve: Serve) -> None:
    async with serve(engine={"step_seconds": 0.01}) as world:
        client = Client(world, "/generate", {"inputs": "hello world", "stream": True})
        await until(lambda: sum(b"data:" in each.get("body", b"") for each in client.sent) > 2)
        await client.leave()
        found = await scraped(world)
        for total, of_requests in (
            ("dosirak_prompt_tokens_total", "dosirak_request_prompt_tokens_sum"),
            ("dosirak_generation_tokens_total", "dosirak_request_generation_tokens_sum"),
        ):
            assert of(found, total, **MODEL) == of(found, of_requests, **MODEL) > 0
        for count in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
            assert of(found, f"dosirak_{count}_seconds_count", **MODEL) == 1
        assert of(found, "dosirak_request_success_total", finish_reason="abort", **MODEL) == 1


async def test_a_drain_is_a_cause(serve: Serve) -> None:
    engine = {"hold": (hold := asyncio.Event()), "fail_after": 2, "end": FinishReason.ABORT}
    async with serve(engine=engine) as world:
        cut = asyncio.create_task(world.client.post("/generate", json={"inputs": "x"}))
        await until(lambda: len(world.engine.held) == 1)
        world.deployments.all()[0].state = DeploymentState.DRAINING
        hold.set()
        await cut
        assert of(await scraped(world), "dosirak_requests_aborted_total", cause="drain", **MODEL) == 1


async def test_what_a_prompt_takes_of_its_window(world: World) -> None:
    answer = (await world.client.post("/generate", json={"inputs": "hello"})).json()
    used = of(await scraped(world), "dosirak_context_window_used_ratio_sum", **MODEL)
    assert used == pytest.approx(answer["usage"]["prompt_tokens"] / 512)


async def test_the_session_store_is_timed_by_operation(world: World) -> None:
    session = (await world.client.post("/v1/sessions", json={})).json()["id"]
    chat = {"messages": [{"role": "user", "content": "hi"}], "session_id": session}
    assert (await world.client.post("/generate", json=chat)).status_code == 200
    found = await scraped(world)
    for operation in ("history", "append", "write"):
        assert of(found, "dosirak_session_store_seconds_count", op=operation) >= 1
        assert of(found, "dosirak_session_store_seconds_sum", op=operation) > 0
    assert of(found, "dosirak_session_store_seconds_count", op="append") == 1


async def test_the_inventory_is_what_is_true_now(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    for number in range(2):
        publish(repository, other={"number": number})
    repository.promote("demo", "production", "1", "first")
    async with serving(tmp_path) as world:
        found = await scraped(world)
        assert of(found, "dosirak_deployments", state="ready") == 1
        assert of(found, "dosirak_deployments", state="failed") == 0
        assert of(found, "dosirak_alias_info", alias="production", **MODEL) == 1
        assert of(found, "dosirak_canary_weight", alias="production", **MODEL) == 0
        assert of(found, "dosirak_gate_broken_limits", alias="production", **MODEL) == 0
        assert of(found, "dosirak_promotions_total", kind="promote") == 1
        assert of(found, "dosirak_promotions_total", kind="rollback") == 0
        digest = repository.get("demo", "1").short_digest
        info = {"digest": digest, "quantization": "none", "dtype": "bf16", "context_length": "512"}
        assert of(found, "dosirak_model_info", **MODEL, **info) == 1
        assert of(found, "dosirak_data_dir_free_bytes") > 0
        rollout = "/v1/repository/models/demo/aliases/production/rollout"
        assert (await world.client.put(rollout, json={"candidate": "2", "weight": 25})).status_code == 200
        await until(lambda: len(world.deployments.all()) == 2)
        repository.promote("demo", "beta", "2", "by another process")
        repository.promote("demo", "beta", "1", "by another process")
        repository.rollback("demo", "beta", "by another process")
        slow = beside(repository.get("demo", "2"), decode_ratio={"1": 0.5, "8": 0.6}, perplexity_change=0.5)
        repository.put_report(repository.get("demo", "1"), report(repository.get("demo", "1"), slow))
        found = await scraped(world)
        assert of(found, "dosirak_gate_broken_limits", alias="production", **MODEL) == 3
        assert of(found, "dosirak_canary_weight", alias="production", model="demo", version="2") == 25
        assert of(found, "dosirak_canary_weight", alias="production", **MODEL) == 0
        assert of(found, "dosirak_alias_info", alias="beta", model="demo", version="2") == 1
        assert of(found, "dosirak_promotions_total", kind="promote") == 3
        assert of(found, "dosirak_promotions_total", kind="rollback") == 1
        assert of(found, "dosirak_num_requests_running", model="demo", version="2") == 0, "from its load on"


async def test_a_damaged_journal_leaves_the_rest(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    for name in ("demo", "other"):
        publish(repository, name)
        repository.promote(name, "production", "1", "first")
    async with serving(tmp_path) as world:
        repository.layout.journal("other").write_text("damaged\n")
        found = await scraped(world)
        assert [dict(labels)["model"] for name, labels in found if name == "dosirak_alias_info"] == ["demo"]
