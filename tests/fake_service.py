"""The whole API over a scripted engine: real repository, tokenizer, deployments and routes; only tokens are made up.

>>> from tests.fake_service import *
>>> async with serving(tmp_path) as world: print((await world.client.post("/generate", json={"inputs": "hi"})).json())
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from msgspec import structs

from models.manifest import Manifest
from models.repository.repository import Repository
from service.api.answering.streaming import Streaming
from service.api.edge.door import Door
from service.api.http.connection import EventStream
from service.app import create_app
from service.deployments.deployments import Deployments
from service.deployments.engine_options import EngineOptions
from service.engine.client.engine import Engine, EngineState
from service.engine.protocol.messages import (
    EngineInfo,
    EngineStats,
    FinishReason,
    Profile,
    Profiled,
    Request,
    StepOutput,
    StepRecord,
    TokenLogprobs,
)
from service.engine.protocol.work import ModelWork
from service.evaluation.jobs.job import WORKER
from service.evaluation.jobs.jobs import Jobs
from service.observability.metrics import Metrics
from service.settings import Settings
from service.storage.records import SharedRecords, open_repository
from service.tasks import BackgroundTasks
from service.text.tokenizer import Tokenizer
from tests.conformance import conforms
from tests.profiles import event, write_piece
from tests.tokenizers import write
from tests.versions import facts, write_weights
from tests.waiting import until

WINDOW = 512
CACHED = 3
"""Tokens of every prompt that the engine says it found cached."""
URL = "http://localhost"
"""Where the app is asked: a server without a key answers loopback names only."""
REPLY = "안녕하세요, 도시락 하나 주세요! 😀 hello world"
HIDDEN = 8
INFO = EngineInfo(
    pid=4242,
    device="cpu",
    dtype="bf16",
    precision="bf16",
    forward="decoder",
    threads=1,
    memory_bytes=1000,
    load_seconds=0.1,
    block_size=16,
    blocks_total=64,
    kv_bytes_per_block=1024,
    work=ModelWork(hidden=HIDDEN),
)


def spoken(request: Request, tokenizer: Tokenizer) -> list[int]:
    """REPLY and an end token for greedy requests; for sampled ones the reply is turned by the seed."""
    turn = request.params.seed % 7 if request.params.temperature > 0 else 0
    words = REPLY[turn:] + REPLY[:turn]
    return [*tokenizer.encode(words, add_special_tokens=False), tokenizer.stop_token_ids[0]]


@dataclass
class ScriptedEngine:
    """Says what `script` gives, one token a step, as long as `max_tokens` and the deadline allow. Knows who is alive.

    `per_step` tokens come in one output; `hold` keeps a request from its first token until it is set; `failure` is
    raised after `fail_after` tokens; `end` replaces the finish reason.
    """

    tokenizer: Tokenizer
    script: Callable[[Request, Tokenizer], list[int]] = spoken
    per_step: int = 1
    step_seconds: float = 0.0
    fail_after: int | None = None
    failure: Exception | None = None
    end: FinishReason | None = None
    hold: asyncio.Event | None = None
    requests: list[Request] = field(default_factory=list)
    adapters: set[str] = field(default_factory=set)
    alive: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    stats: EngineStats = field(default_factory=lambda: EngineStats(blocks_total=64, blocks_free=64))
    recent_steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=32))
    info: EngineInfo | None = None
    state: EngineState = EngineState.NEW
    pid: int | None = 4242
    restarts: int = 0
    why_not_ready: str = ""
    silent_seconds: float = 0.0
    on_step: Callable[[EngineStats], None] | None = None
    on_ready: Callable[[EngineInfo], None] | None = None
    profiles: list[Profile] = field(default_factory=list)
    profiled: dict[str, float] = field(default_factory=lambda: {"aten::mm": 0.002, "dosirak::step": 0.001})
    profile_end: Profiled | Exception | None = None
    profile_hold: asyncio.Event | None = None

    @property
    def replicas(self) -> tuple[Engine, ...]:
        return (self,)

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        self.info, self.state = self.info or INFO, EngineState.READY
        if self.on_ready is not None:
            self.on_ready(self.info)

    async def load_adapter(self, name: str, directory: str) -> None:
        self.adapters.add(name)

    def unload_adapter(self, name: str) -> None:
        self.adapters.discard(name)

    async def profile(self, order: Profile) -> Profiled:
        """Records `profiled`, the seconds a step of each operator, at once; with `profile_hold` when that is set."""
        self.profiles.append(order)
        if self.profile_hold is not None:
            await self.profile_hold.wait()
        if isinstance(self.profile_end, Exception):
            raise self.profile_end
        at, events = 0.0, []
        for _ in range(order.steps):
            for name, seconds in self.profiled.items():
                events.append(event(name, at, at := at + seconds * 1e6))
        write_piece(Path(order.directory), events)
        return self.profile_end or Profiled(order.id, order.steps, 8 * order.steps, at / 1e6)

    async def stop(self, grace: float = 0.0) -> None:
        self.state = EngineState.STOPPED

    async def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        self.requests.append(request)
        self.alive.add(request.id)
        finished = False
        try:
            if self.hold is not None:
                self.held.add(request.id)
                self._count()
                await self.hold.wait()
                self.held.discard(request.id)
            async for output in self._outputs(request):
                finished = output.finish_reason is not None
                yield output
        finally:
            self.alive.discard(request.id)
            self.held.discard(request.id)
            self._count()
            if not finished:
                self.aborted.add(request.id)

    async def _outputs(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        tokens = self.script(request, self.tokenizer)
        stops = [place for place, token in enumerate(tokens) if token in request.params.stop_token_ids]
        end = min([*(place + 1 for place in stops), request.params.max_tokens])
        tokens = (tokens * (request.params.max_tokens // len(tokens) + 1))[:end]
        if not end:
            yield self._output(request, (), FinishReason.LENGTH, first=True)
            return
        reason = FinishReason.STOP if tokens[-1] in request.params.stop_token_ids else FinishReason.LENGTH
        for start in range(0, end, self.per_step):
            await asyncio.sleep(self.step_seconds)
            self._step(request, start)
            if self.fail_after is not None and start >= self.fail_after:
                if self.failure is not None:
                    raise self.failure
                yield StepOutput(request.id, finish_reason=self.end, batch_size_mean=1.0)
                return
            if request.deadline is not None and time.monotonic() >= request.deadline:
                yield StepOutput(request.id, finish_reason=FinishReason.DEADLINE, batch_size_mean=1.0)
                return
            chunk = tuple(tokens[start : start + self.per_step])
            yield self._output(request, chunk, reason if start + len(chunk) >= end else None, first=start == 0)

    def _output(self, request: Request, chunk: tuple[int, ...], reason: FinishReason | None, first: bool) -> StepOutput:
        output = StepOutput(
            request.id, chunk, _logprobs(request, chunk), finish_reason=reason, num_cached_tokens=CACHED
        )
        if first:
            told = (
                ()
                if request.params.prompt_logprobs is None
                else request.token_ids[request.params.prompt_logprobs_start :]
            )
            prompt = tuple(_measured(token, request.params.prompt_logprobs or 0) for token in told)
            output = structs.replace(output, queue_seconds=0.001, prefill_seconds=0.002, prompt_logprobs=prompt)
        if reason is not None and request.params.pooling is not None:
            output = structs.replace(output, pooled=pooled(request))
        return structs.replace(output, batch_size_mean=1.0) if reason is not None else output

    def _count(self) -> None:
        self.stats = replace(self.stats, running=len(self.alive - self.held), waiting=len(self.held))

    def _step(self, request: Request, start: int) -> None:
        """The first step computes the prompt but for the CACHED tokens."""
        self._count()
        stats, prompt = self.stats, 0 if start else len(request.token_ids)
        tokens = max(1, prompt - CACHED)
        self.stats = replace(
            stats,
            steps_total=stats.steps_total + 1,
            step_sequences=stats.running,
            prefill_tokens_total=stats.prefill_tokens_total + (tokens if prompt else 0),
            prefix_queried_tokens_total=stats.prefix_queried_tokens_total + prompt,
            prefix_hit_tokens_total=stats.prefix_hit_tokens_total + (CACHED if prompt else 0),
        )
        self.recent_steps.append(StepRecord(tokens, stats.running, 0.001, 0.002))
        if self.on_step is not None:
            self.on_step(self.stats)


def pooled(request: Request) -> bytes:
    """HIDDEN numbers that depend on every token, on their order and on the kind of pooling."""
    seed = repr((request.token_ids, request.params.pooling)).encode()
    return array("f", (byte - 128.0 for byte in sha256(seed).digest()[:HIDDEN])).tobytes()


def _logprobs(request: Request, chunk: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
    wanted = request.params.logprobs
    return () if wanted is None else tuple(_measured(token, wanted) for token in chunk)


def _measured(token: int, top: int) -> TokenLogprobs:
    """The sampled token's logprob is -0.25 - id / 1000; the top holds it and those after it."""
    return TokenLogprobs(-0.25 - token / 1000, tuple((token + rank, -0.25 - rank) for rank in range(top)))


@dataclass
class World:
    """An app that serves, a client to it, and its parts."""

    app: FastAPI
    client: httpx.AsyncClient
    engines: list[ScriptedEngine]
    deployments: Deployments
    metrics: Metrics
    settings: Settings

    @property
    def engine(self) -> ScriptedEngine:
        """Of the version that was loaded last."""
        return self.engines[-1]

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer


def says(world: World, text: str) -> None:
    """Makes every answer this text."""

    def script(request: Request, tokenizer: Tokenizer) -> list[int]:
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.stop_token_ids[0]]

    world.engine.script = script


class AfterHeaders(asyncio.Event):
    """An engine's `hold` for streams in turns: each goes on when its headers are due, not before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        monkeypatch.setattr("service.api.answering.streaming.HEADERS_SECONDS", 0.0)
        response = Streaming.response

        async def told(streaming: Streaming) -> EventStream:
            stream = await response(streaming)
            self.set()
            return stream

        monkeypatch.setattr(Streaming, "response", told)

    async def wait(self) -> Literal[True]:
        await super().wait()
        self.clear()
        return True


def publish(
    repository: Repository, name: str = "demo", parent: Manifest | None = None, window: int | None = None, **files: Any
) -> Manifest:
    """A version with a real byte-level tokenizer and no weights to speak of; with `parent`, a conversion of that."""
    with repository.stage() as staged:
        write(staged, **files)
        (staged / "config.json").write_text("{}")
        write_weights(staged, f"weights of {name}")
        known = replace(facts(parent), context_window=window or WINDOW, vocab_size=400)
        return repository.publish(staged, known, name)


_tokenizers = dict[tuple[tuple[str, bytes], ...], Tokenizer]()


def _tokenizer(directory: Path) -> Tokenizer:
    """Loaded once from files that are alike: to compile a chat template takes 40 ms."""
    files = tuple(
        (file.name, file.read_bytes()) for file in sorted(directory.glob("*.j*")) if file.name != "manifest.json"
    )
    if files not in _tokenizers:
        _tokenizers[files] = Tokenizer.load(directory)
    return _tokenizers[files]


@asynccontextmanager
async def serving(
    directory: Path,
    *,
    start: bool = True,
    engine: Any = None,
    has_engine: bool = True,
    worker: str = WORKER,
    chat_template: str | None = None,
    door: Door | None = None,
    **settings: Any,
) -> AsyncIterator[World]:
    """A `demo:1` that is served, with that chat template if one is given. `engine`: fields of ScriptedEngine;
    `has_engine` false: as without torch; `worker`: the module that runs jobs; keyword arguments: settings."""
    chosen = Settings(
        data_dir=directory, **{"load_timeout_seconds": 60, "drain_seconds": 0, "idle_reports": False, **settings}
    )
    repository, metrics, engines = open_repository(chosen, "server"), Metrics(), list[ScriptedEngine]()
    if isinstance(repository.records, SharedRecords):
        repository.records.wait()
    if not repository.models():
        files: dict[str, Any] = {} if chat_template is None else {"chat_template": chat_template}
        publish(repository, **files)

    def make(manifest: Manifest, promised_bytes: int, options: EngineOptions) -> ScriptedEngine:
        tokenizer = _tokenizer(repository.path(manifest))
        recorder = metrics.model(manifest.name, manifest.version)
        recorder.begin_engine()
        engines.append(
            ScriptedEngine(tokenizer, on_step=recorder.on_step, on_ready=recorder.on_ready, **(engine or {}))
        )
        return engines[-1]

    tasks = BackgroundTasks(metrics.background_task, first_delay=0.005)
    deployments = Deployments(
        repository,
        make if has_engine else None,
        default_model=chosen.default_model,
        load_timeout=60,
        drain_timeout=chosen.drain_seconds,
        idle_timeout=chosen.idle_unload_seconds,
        tasks=tasks,
        max_model_len=chosen.max_model_len,
    )
    jobs = Jobs(repository, worker=worker, tasks=tasks)
    app = create_app(chosen, deployments, jobs, metrics, tasks, door)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    hooks = {"response": [conforms]}
    async with httpx.AsyncClient(transport=transport, base_url=URL, event_hooks=hooks) as client:
        await jobs.start()
        app.state.service.instances.start(tasks)
        if start:
            await deployments.start()
            await until(lambda: deployments.ready)
        yield World(app, client, engines, deployments, metrics, chosen)
        await app.state.service.answers.grammars.close()
        await deployments.stop()
        await tasks.stop()
        await app.state.service.answers.conversations.stop()
        await app.state.service.instances.stop()


@asynccontextmanager
async def over_http(world: World) -> AsyncIterator[str]:
    """The same app behind a real server on a real socket."""
    config = uvicorn.Config(world.app, port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task
