"""Each request is one span at the collector, under its caller's, with the facts of its answer and none of its words."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from models import __version__
from service.engine.protocol.messages import Request, StepOutput
from service.observability.logs import configure_logging
from service.observability.tracing import exporting
from service.settings import Settings
from tests.api.conftest import KEY, Serve
from tests.api.test_disconnect import Client
from tests.collector import Collector, collecting, values
from tests.fake_service import REPLY, WINDOW, ScriptedEngine, World
from tests.waiting import until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
PROMPT = "Zwetschgenknödel"
CHAT = [{"role": "system", "content": PROMPT}, {"role": "user", "content": f"{PROMPT}?"}]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans are sent by `close` alone, however long that takes."""
    monkeypatch.setattr(exporting, "EXPORT_SECONDS", 60.0)
    monkeypatch.setattr(exporting, "CLOSE_SECONDS", 60.0)
    monkeypatch.setattr(exporting, "DELAY_MS", 60_000.0)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture
def logged() -> Iterator[StringIO]:
    """What the process logs, as JSON."""
    written, root, before = StringIO(), logging.getLogger(), structlog.get_config()
    handlers, level, root.handlers = root.handlers, root.level, []
    with redirect_stderr(written):
        configure_logging(Settings(log_format="json"))
    yield written
    structlog.configure(**before)
    root.handlers = handlers
    root.setLevel(level)


def lines(logged: StringIO, event: str) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in logged.getvalue().splitlines()]
    return [each for each in read if each["event"] == event]


async def close(world: World) -> None:
    """As the app's lifespan does at its end: sends what waits."""
    await world.app.state.tracer.close()


async def only_span(world: World, collector: Collector) -> Span:
    await close(world)
    [span] = collector.spans
    return span


def names(span: Span) -> list[str]:
    return [event.name for event in span.events]


async def test_a_request_is_one_span_under_its_caller(serve: Serve, collector: Collector) -> None:
    began = time.time_ns()
    async with serve(otlp_endpoint=collector.url) as world:
        body = {"messages": CHAT, "seed": 7, "temperature": 0.5, "max_tokens": 5, "stop": [PROMPT]}
        headers = {**SAMPLED, "tracestate": "vendor=abc"}
        answer = (await world.client.post("/v1/chat/completions", json=body, headers=headers)).json()
        span = await only_span(world, collector)
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE, PARENT, "vendor=abc")
    assert (span.name, span.kind) == ("POST /v1/chat/completions", Span.SPAN_KIND_SERVER)
    assert began <= span.start_time_unix_nano < span.end_time_unix_nano <= time.time_ns()
    said, usage, context = values(span.attributes), answer["usage"], answer["context"]
    wanted = {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "dosirak",
        "gen_ai.request.model": "demo",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": False,
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": "demo:1",
        "gen_ai.response.finish_reasons": [answer["choices"][0]["finish_reason"]],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["cached_tokens"],
        "dosirak.model.version": "1",
        "dosirak.context.window_tokens": WINDOW,
        "dosirak.context.used_tokens": context["used"],
        "dosirak.context.system_tokens": context["parts"]["system"],
        "dosirak.context.kept_messages": context["counts"]["kept"],
        "dosirak.context.truncated": False,
    }
    assert wanted.items() <= said.items()
    assert said["dosirak.model.digest"].startswith(answer["digest"].removesuffix("…"))
    assert names(span) == ["admitted", "first_step", "first_token"]
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert {"service.name": "dosirak", "service.version": __version__}.items() <= collector.resource.items()


async def test_no_byte_is_a_users_word(serve: Serve, collector: Collector, tmp_path: Path) -> None:
    """Nor the model's, nor a session's id, in any dialect, refused or answered."""
    async with serve(otlp_endpoint=collector.url, database_url=f"sqlite+aiosqlite:///{tmp_path}/s.db") as world:
        client, document = world.client, {"title": PROMPT, "text": PROMPT}
        session = (await client.post("/v1/sessions", json={"title": PROMPT})).json()["id"]
        for path, body in [
            ("/generate", {"inputs": PROMPT, "parameters": {"stop": [PROMPT]}}),
            ("/generate_stream", {"text_input": PROMPT}),
            ("/generate", {"messages": CHAT, "documents": [document]}),
            ("/generate", {"messages": CHAT[1:], "session_id": session}),
            ("/v1/chat/completions", {"messages": CHAT, "stream": True, "user": PROMPT}),
            ("/v1/completions", {"prompt": [PROMPT, PROMPT], "echo": True}),
            ("/generate", {"inputs": PROMPT, "model": PROMPT}),
            ("/generate", {"inputs": PROMPT, PROMPT: 1}),
            ("/generate", {"inputs": PROMPT * 1000}),
            (f"/{PROMPT}", {}),
            (f"/v1/sessions/{session}/regenerate?{PROMPT}={PROMPT}", {}),
        ]:
            await client.post(path, json=body, headers=SAMPLED)
        await close(world)
    assert len(collector.spans) == 12
    sent = b"".join(collector.bodies)
    for word in (PROMPT, REPLY.split()[0], session):
        assert word.encode() not in sent


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "operation"),
    [
        ("/generate", {"inputs": "x"}, "text_completion"),
        ("/", {"inputs": "x"}, "text_completion"),
        ("/generate", {"text_input": "x"}, "text_completion"),
        ("/generate", {"messages": CHAT}, "chat"),
        ("/v1/chat/completions", {"messages": CHAT}, "chat"),
        ("/v1/completions", {"prompt": ["x", "y"], "n": 2}, "text_completion"),
    ],
)
async def test_every_dialect(
    serve: Serve, collector: Collector, path: str, body: dict[str, Any], operation: str, stream: bool
) -> None:
    async with serve(otlp_endpoint=collector.url) as world:
        sent = await world.client.post(path, json={**body, "stream": stream}, headers=SAMPLED)
        assert sent.status_code == 200
        span = await only_span(world, collector)
    said, prompts = values(span.attributes), len(body.get("prompt", "x"))
    assert said["http.route"] == path
    assert said["gen_ai.operation.name"] == operation
    assert said["gen_ai.request.stream"] is stream
    assert said["gen_ai.usage.output_tokens"] > 0
    assert len(said["gen_ai.response.finish_reasons"]) == prompts * body.get("n", 1)
    assert sorted(names(span)) == sorted(["admitted", "first_step", "first_token"] * prompts)


async def test_events_lie_in_order_within_the_span(serve: Serve, collector: Collector, tmp_path: Path) -> None:
    database = f"sqlite+aiosqlite:///{tmp_path}/s.db"
    async with serve(otlp_endpoint=collector.url, database_url=database, engine={"step_seconds": 0.002}) as world:
        session = (await world.client.post("/v1/sessions", json={})).json()["id"]
        body = {"messages": CHAT[1:], "session_id": session, "stream": True}
        await world.client.post("/generate", json=body)
        await close(world)
    span = collector.spans[-1]
    times = [event.time_unix_nano for event in span.events]
    assert names(span) == ["admitted", "first_step", "first_token", "stored"]
    assert times == sorted(times)
    assert span.start_time_unix_nano < times[0] and times[-1] <= span.end_time_unix_nano


async def test_a_replay(serve: Serve, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine client says in an output without tokens that another process took over."""
    plain = ScriptedEngine.generate

    async def replayed(self: ScriptedEngine, request: Request) -> AsyncGenerator[StepOutput, None]:
        async for number, output in counted(plain(self, request)):
            yield output
            if number in (1, 3):
                yield StepOutput(request.id, replayed_at=time.monotonic())

    monkeypatch.setattr(ScriptedEngine, "generate", replayed)
    async with serve(otlp_endpoint=collector.url) as world:
        answer = await world.client.post("/generate", json={"inputs": "x"})
        span = await only_span(world, collector)
    assert answer.json()["generated_text"] == REPLY and answer.json()["timings"]["replayed"] == 2
    assert names(span) == ["admitted", "first_step", "first_token", "replayed", "replayed"]


async def counted(outputs: AsyncGenerator[StepOutput, None]) -> AsyncGenerator[tuple[int, StepOutput], None]:
    number = 0
    async for output in outputs:
        yield number, output
        number += 1


async def test_a_stored_response(serve: Serve, collector: Collector, tmp_path: Path) -> None:
    """A repetition says that it is one, and has no answer of its own."""
    async with serve(otlp_endpoint=collector.url, database_url=f"sqlite+aiosqlite:///{tmp_path}/s.db") as world:
        for _ in range(2):
            await world.client.post("/generate", json={"inputs": "x"}, headers={"Idempotency-Key": "k"})
        await close(world)
    first, second = sorted(collector.spans, key=lambda span: span.start_time_unix_nano)
    assert names(first)[-1] == "stored" and not second.events
    replayed = [values(span.attributes)["dosirak.idempotent_replayed"] for span in (first, second)]
    assert replayed == [False, True]


async def test_the_callers_choice_not_to_sample_is_obeyed(serve: Serve, collector: Collector, logged: StringIO) -> None:
    async with serve(otlp_endpoint=collector.url) as world:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        await world.client.post("/generate", json={"inputs": "x"}, headers=headers)
        await close(world)
    assert collector.bodies == []
    assert [line["trace_id"] for line in lines(logged, "request")] == [TRACE]


async def test_a_request_without_a_caller_begins_a_trace(serve: Serve, collector: Collector, logged: StringIO) -> None:
    async with serve(otlp_endpoint=collector.url) as world:
        for headers in ({}, {"traceparent": "00-nonsense"}):
            await world.client.post("/generate", json={"inputs": "x"}, headers=headers)
        await close(world)
    assert [span.parent_span_id for span in collector.spans] == [b"", b""]
    traces = [line["trace_id"] for line in lines(logged, "request")]
    assert len(set(traces)) == 2 and {span.trace_id.hex() for span in collector.spans} == set(traces)


async def test_without_a_collector_the_log_has_the_callers_trace(serve: Serve, logged: StringIO) -> None:
    async with serve() as world:
        assert world.app.state.tracer is None
        for headers in (SAMPLED, {}):
            await world.client.post("/generate", json={"inputs": "x"}, headers=headers)
    assert [line.get("trace_id") for line in lines(logged, "request")] == [TRACE, None]


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "route"),
    [
        ("/nowhere", {}, 404, "not_found", None),
        ("/generate", {"inputs": 1}, 422, "invalid_request", "/generate"),
        ("/generate", {"inputs": "x", "model": "unknown"}, 404, "not_found", "/generate"),
        ("/generate", {"inputs": "x" * 2000}, 422, "context_overflow", "/generate"),
    ],
)
async def test_refusals(
    serve: Serve, collector: Collector, path: str, body: dict[str, Any], status: int, code: str, route: str | None
) -> None:
    async with serve(otlp_endpoint=collector.url) as world:
        assert (await world.client.post(path, json=body)).status_code == status
        span = await only_span(world, collector)
    said = values(span.attributes)
    assert (said["http.response.status_code"], said["error.type"], said.get("http.route")) == (status, code, route)
    assert span.name == " ".join(["POST", *([route] if route else [])])
    assert span.status.code == Status.STATUS_CODE_UNSET, "a refusal is no failure of the server"
    assert not span.events


async def test_a_caller_without_the_key(serve: Serve, collector: Collector) -> None:
    async with serve(otlp_endpoint=collector.url, admin_key=KEY) as world:
        assert (await world.client.post("/generate", json={"inputs": "x"})).status_code == 401
        span = await only_span(world, collector)
    assert values(span.attributes)["error.type"] == "unauthorized"


@pytest.mark.parametrize(("fail_after", "status"), [(0, 500), (3, 200)])
async def test_failures(serve: Serve, collector: Collector, fail_after: int, status: int) -> None:
    """Also behind the headers of a stream."""
    engine = {"failure": RuntimeError(PROMPT), "fail_after": fail_after}
    async with serve(otlp_endpoint=collector.url, engine=engine) as world:
        await world.client.post("/generate", json={"inputs": "x", "stream": True})
        span = await only_span(world, collector)
    said = values(span.attributes)
    assert (said["http.response.status_code"], said["error.type"]) == (status, "internal")
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "internal")
    assert PROMPT.encode() not in collector.bodies[0]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_span(serve: Serve, collector: Collector, stream: bool) -> None:
    async with serve(otlp_endpoint=collector.url, engine={"step_seconds": 0.01}) as world:
        client = Client(world, "/generate", {"inputs": "x", "stream": stream})
        await until(lambda: world.engine.stats.steps_total > 2)
        await client.leave()
        span = await only_span(world, collector)
    said = values(span.attributes)
    assert (said["http.response.status_code"], said["error.type"]) == (499, "client_disconnected")
    assert said["gen_ai.response.finish_reasons"] == ["abort"]
    assert said["gen_ai.usage.output_tokens"] > 0
    assert span.status.code == Status.STATUS_CODE_UNSET


async def test_probes_and_files_have_no_span(serve: Serve, collector: Collector) -> None:
    async with serve(otlp_endpoint=collector.url) as world:
        for path in ("/", "/livez", "/readyz", "/metrics", "/v1/deployments", "/ui/static/x/style.css", "/v1/batching"):
            assert (await world.client.get(path, headers=SAMPLED)).status_code == 200
        span = await only_span(world, collector)
    assert span.name == "GET /v1/batching"
    assert not [name for name in values(span.attributes) if name.startswith("gen_ai")]


async def counter(world: World, name: str) -> float:
    written = (await world.client.get("/metrics")).text
    [value] = [line.split()[1] for line in written.splitlines() if line.startswith(f"dosirak_{name}_total ")]
    return float(value)


async def test_a_dead_collector_costs_a_counter_and_one_line(
    serve: Serve, collector: Collector, logged: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.status = 500
    monkeypatch.setattr("service.observability.tracing.exporting.DELAY_MS", 10.0)
    async with serve(otlp_endpoint=collector.url) as world:
        assert await counter(world, "trace_export_failures") == 0
        async with asyncio.timeout(30):
            for wanted in (1, 2, 3):
                assert (await world.client.post("/generate", json={"inputs": "x"})).status_code == 200
                while await counter(world, "trace_export_failures") < wanted:
                    await asyncio.sleep(0.01)
        while await counter(world, "trace_spans_dropped") < 3:
            await asyncio.sleep(0.01)
        assert await counter(world, "trace_spans_dropped") == 3
        collector.status = 200
        await world.client.post("/generate", json={"inputs": "x"})
        await close(world)
    assert len(collector.spans) == 1, "a collector that comes back gets the spans from then on"
    [line] = lines(logged, "spans_lost")
    assert line["spans"] == 1 and "500" in line["reason"]
    named = [json.loads(each) for each in logged.getvalue().splitlines()]
    assert {each["event"] for each in named if each["level"] != "info"} == {"spans_lost"}


async def test_a_collector_that_never_answers_holds_nothing_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, logged: StringIO
) -> None:
    """Neither an answer nor the end of the server; what does not fit is counted."""
    monkeypatch.setattr("service.observability.tracing.exporting.MOST_WAITING", 2)
    monkeypatch.setattr("service.observability.tracing.exporting.BATCH", 1)
    monkeypatch.setattr(exporting, "EXPORT_SECONDS", 3.0)
    monkeypatch.setattr(exporting, "CLOSE_SECONDS", 0.2)
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with serve(otlp_endpoint=url) as world:
        for _ in range(4):
            assert (await world.client.post("/generate", json={"inputs": "x"})).status_code == 200
        assert await counter(world, "trace_spans_dropped") == 2
        async with asyncio.timeout(20):
            await close(world)
    assert lines(logged, "spans_lost_at_the_end")
    silent.close()


async def test_a_defect_of_tracing_costs_no_request(
    serve: Serve, collector: Collector, monkeypatch: pytest.MonkeyPatch, logged: StringIO
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr("service.api.edge.spans.generation_attributes", broken)
    async with serve(otlp_endpoint=collector.url) as world:
        answer = await world.client.post("/generate", json={"inputs": "x"}, headers=SAMPLED)
        await close(world)
    assert answer.status_code == 200
    assert [line["trace_id"] for line in lines(logged, "request")] == [TRACE]


async def test_the_standard_variables_act(serve: Serve, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{collector.url}/base")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=lunch")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "canteen")
    async with serve() as world:
        await world.client.get("/v1/batching")
        shown = (await world.client.get("/info")).json()["settings"]["otlp_endpoint"]
        await close(world)
    assert len(collector.spans) == 2
    assert collector.paths == ["/base/v1/traces"] and shown == f"{collector.url}/base/v1/traces"
    assert collector.headers["x-team"] == "lunch"
    assert collector.resource["service.name"] == "canteen"


async def test_the_lifespan_sends_what_waits(serve: Serve, collector: Collector) -> None:
    async with serve(otlp_endpoint=collector.url, start=False) as world, world.app.router.lifespan_context(world.app):
        assert (await world.client.get("/v1/batching")).status_code in (200, 503)
    assert [span.name for span in collector.spans] == ["GET /v1/batching"]


async def test_fastapis_own_spans_are_off(serve: Serve) -> None:
    async with serve() as world:
        assert not world.app._native_telemetry.enabled() and not world.app._telemetry["auto_configure"]
