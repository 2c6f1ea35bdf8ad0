"""A deployment is one version being served: its tokenizer, its engine and the answers in flight. It knows no HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from enum import StrEnum
from pathlib import Path

import structlog

from models.checkpoint import generation_defaults
from models.checkpoint.decoder_start import decoder_start
from models.checkpoint.pooling import DEFAULT, of_version
from models.errors import sentence_of
from models.manifest import Manifest
from models.repository.disk.leases import Lease
from models.repository.parsers import BY_TEMPLATE, Parsers, parsers_of
from models.repository.repository import Repository
from service.deployments.activity import Activity
from service.deployments.engine_choice import require_same_tokens
from service.deployments.engine_options import EngineOptions
from service.deployments.leasing import leased
from service.deployments.memory import Memory
from service.engine.client.engine import Engine, EngineState
from service.engine.protocol.messages import EngineInfo, Request, StepOutput
from service.engine.scheduling.cost import decode_ratio
from service.errors import Unavailable
from service.text.tokenizer import Tokenizer

log = structlog.get_logger(__name__)

MEASURED_STEPS = 64
SLOW_RENDERINGS = 2
"""How many prompts of one version are made in threads at once because its template is slow."""


class DeploymentState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"  # shown instead of READY while the engine has no process
    DRAINING = "draining"
    FAILED = "failed"


class Deployment:
    """A version that is loading, serving, draining or failed. It lives in the event loop. LOADING ends once."""

    def __init__(
        self,
        manifest: Manifest,
        engine: Engine,
        needed_bytes: int,
        activity: Activity,
        options: EngineOptions,
        memory: Memory,
    ) -> None:
        """Takes `needed_bytes`, the memory that loading this version adds to the memory in use, the server's
        `activity`, which counts this version's requests too, the options of its engine, and the server's `memory`."""
        self.manifest = manifest
        self.draft = options.draft
        self.kind = options.kind
        self._options = options
        self.engine = engine
        self.needed_bytes = needed_bytes
        self.state = DeploymentState.LOADING
        self.phase = "starting"
        self.failure = ""
        self.load_seconds = 0.0
        self.in_flight = 0
        self.pinned = False
        """Loaded by its own name, and so unloaded only by its own name."""
        self.used_at = time.monotonic()
        self.keep_alive: float | None = None
        """The idle seconds after which a client lets it be unloaded; None: those of the server."""
        self._activity = activity
        self._memory = memory
        self._occupants = 0
        self._decode_ratio: float | None = None
        self._tokenizer: Tokenizer | None = None
        self.slow_renderings = asyncio.Semaphore(SLOW_RENDERINGS)
        self._parsers = BY_TEMPLATE
        self._decoder_start: tuple[int, ...] = ()
        self.pooling = DEFAULT
        """How the version makes embeddings."""
        self.generation = generation_defaults.NO_DEFAULTS
        """How the version's author wants tokens chosen."""
        self._lease: Lease | None = None
        self._started = time.monotonic()
        self._settled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_serving(self) -> bool:
        """Returns whether an answer would begin at once: READY, with an engine process that runs at this moment."""
        return self.state is DeploymentState.READY and self.engine.state is EngineState.READY

    @property
    def shown_state(self) -> DeploymentState:
        """Returns the state that callers see. While its engine restarts, a deployment itself stays READY: requests
        enter and wait."""
        restarting = self.state is DeploymentState.READY and not self.is_serving
        return DeploymentState.RESTARTING if restarting else self.state

    @property
    def taken_bytes(self) -> int:
        """Returns about how many bytes end with it, if no other version of its base is loaded."""
        info = self.engine.info
        return self.needed_bytes + (info.kv_cache_bytes if info else 0)

    @property
    def cause(self) -> str:
        """Returns what failed, in words for people; empty where nothing did."""
        return self.failure or self.engine.why_not_ready

    @property
    def tokenizer(self) -> Tokenizer:
        """Returns the version's own tokenizer. Raises Unavailable before it is loaded."""
        if self._tokenizer is None:
            raise Unavailable(f"{self.manifest.reference} is {self.state}; try again shortly", retry_after=1)
        return self._tokenizer

    def read_as(self, parsers: Parsers) -> None:
        """Reads the answers that begin from now on so."""
        if self._tokenizer is not None and parsers != self._parsers:
            self._tokenizer = self._tokenizer.read_as(parsers.reasoning_parser, parsers.tool_parser)
        self._parsers = parsers

    @property
    def window(self) -> int:
        """Returns the token positions of one sequence: of prompt and answer together, or of the prompt alone where an
        encoder reads it."""
        return self._options.window(self.manifest)

    @property
    def answer_window(self) -> int | None:
        """Returns the most tokens of an answer where an encoder reads the prompt; None where prompt and answer share
        the window."""
        return self.window - len(self._decoder_start) if self._decoder_start else None

    @property
    def decode_ratio(self) -> float | None:
        """Returns `engine.scheduling.cost.decode_ratio` at half the window. It is read once, so that decisions that
        rest on it do not change. Returns None before the engine has measured enough."""
        stats = self.engine.stats
        if self._decode_ratio is None and stats.cost and stats.steps_total >= MEASURED_STEPS:
            self._decode_ratio = decode_ratio(stats.cost, self.window // 2)
        return self._decode_ratio

    def answer_room(self, used: int) -> int:
        """Returns the tokens of an answer that the KV pool has room for behind a prompt of `used` tokens; it may be
        negative."""
        info = self.engine.info
        if info is None:
            return self.window - used
        pool = info.blocks_total * info.block_size
        if self.answer_window is None:
            return min(self.window, pool) - used
        encoder = -(-used // info.block_size) * info.block_size
        return min(self.answer_window, pool - encoder - len(self._decoder_start))

    async def load(self, repository: Repository) -> None:
        """Loads tokenizer and engine while every file is read again. Ends in READY or FAILED, and wakes every waiting
        request. Nothing is served before the files are found to be as published; where engine and files both fail, the
        files are the cause. From here to the end of the engine the version cannot be deleted."""
        loading: asyncio.Task[None] | None = None
        try:
            self.phase = "waiting for memory"
            async with self._memory.promised(self.manifest.reference, self.needed_bytes):
                self.phase = "starting"
                self._lease = await leased(repository, self.manifest)
                await self._fetch(repository)
                parsers = await asyncio.to_thread(parsers_of, repository, self.manifest)
                loading = asyncio.create_task(self._load(repository.path(self.manifest), parsers))
                checking = asyncio.create_task(self._check(repository))
                await asyncio.wait({loading, checking}, return_when=asyncio.FIRST_EXCEPTION)
                await checking
                await loading
        except asyncio.CancelledError:
            await self._give_up(loading, "loading was cancelled")
            raise
        except Exception as error:  # waiting requests get the sentence of any error that stops a load
            await self._give_up(loading, sentence_of(error))
        else:
            self.settle(DeploymentState.READY)
            if (info := self.engine.info) and info.slow_path:
                log.warning("slow_path", model=self.manifest.reference, cost=info.slow_path.sentence)

    async def _fetch(self, repository: Repository) -> None:
        """Brings the weights that are in the store alone."""
        self.phase = "fetching"
        for manifest in (self.manifest, self.draft):
            if manifest is not None:
                await asyncio.to_thread(repository.fetch, manifest)

    async def _check(self, repository: Repository) -> None:
        """Reads every file again. Raises Unavailable for damaged files, and InvalidRequest for a draft version that
        does not fit."""
        await asyncio.to_thread(repository.verify, self.manifest)
        if self.draft is not None:
            await asyncio.to_thread(repository.verify, self.draft)
            paths = (repository.path(self.manifest), repository.path(self.draft))
            await asyncio.to_thread(require_same_tokens, self.manifest, self.draft, *paths)

    async def _load(self, directory: Path, parsers: Parsers) -> None:
        self._decoder_start = decoder_start(directory)
        self.pooling = of_version(directory)
        self.generation = generation_defaults.of_version(directory)
        starting = self.engine.start(on_loading=self._note_phase)
        self._tokenizer, _ = await asyncio.gather(asyncio.to_thread(Tokenizer.load, directory), starting)
        self.read_as(parsers)

    async def _give_up(self, loading: asyncio.Task[None] | None, reason: str) -> None:
        if loading is not None:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        await self._end(0.0)
        self.settle(DeploymentState.FAILED, reason)

    async def _end(self, grace: float) -> None:
        await self.engine.stop(grace)
        if self._lease is not None:
            self._lease.release()

    def failed_for(self, seconds: float) -> bool:
        """Returns whether loading failed at least so many seconds ago."""
        return self.state is DeploymentState.FAILED and time.monotonic() - self.used_at >= seconds

    def settle(self, state: DeploymentState, failure: str = "") -> None:
        self.state = state
        self.failure = failure
        self.used_at = time.monotonic()
        self.load_seconds = self.used_at - self._started
        self._settled.set()

    async def settled(self, seconds: float) -> None:
        """Waits until loading, or draining, has ended. Raises Unavailable after so many seconds, or when loading
        failed."""
        try:
            async with asyncio.timeout(seconds):
                await self._settled.wait()
        except TimeoutError:
            raise Unavailable(
                f"{self.manifest.reference} is still {self.state} ({self.phase}); try again shortly", retry_after=5
            ) from None
        if self.state is DeploymentState.FAILED:
            raise Unavailable(f"{self.manifest.reference} could not be loaded: {self.failure}", retry_after=10)

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Marks an answer in flight, from the choice of this version to the answer's end: draining waits for it. Raises
        Unavailable unless READY."""
        self.require_ready()
        self._occupants += 1
        try:
            with self._entered():
                yield
        finally:
            self._occupants -= 1

    async def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        """Yields the engine's outputs of one request; closing this iterator aborts it. Raises Unavailable unless READY,
        or draining for a request that came before the draining."""
        if self.state is not DeploymentState.READY and not (self.state is DeploymentState.DRAINING and self._occupants):
            raise self._unavailable()
        with self._entered():
            async with aclosing(self.engine.generate(request)) as outputs:
                async for output in outputs:
                    yield output

    def require_ready(self) -> None:
        """Raises Unavailable unless READY."""
        if self.state is not DeploymentState.READY:
            raise self._unavailable()

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"{self.manifest.reference} is {self.state}; try again shortly", retry_after=1)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self.in_flight += 1
        self._idle.clear()
        try:
            with self._activity.busy():
                yield
        finally:
            self.in_flight -= 1
            self.used_at = time.monotonic()
            if not self.in_flight:
                self._idle.set()

    def close(self) -> None:
        """Takes no more requests from this moment on; `drain` does the rest."""
        self.state = DeploymentState.DRAINING
        self._settled.clear()

    async def drain(self, seconds: float) -> None:
        """Waits up to so many seconds for the requests in flight, then ends the engine process."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            self.failure = f"{self._occupants or self.in_flight} answers were cut after {seconds:g} s of draining"
        try:
            await self._end(1.0)
        finally:
            self._settled.set()

    def describe(self) -> dict[str, object]:
        """Returns one entry of `GET /v1/deployments`, as the wire contract spells it."""
        info = self.engine.info
        return {
            "model": self.manifest.reference,
            "digest": self.manifest.short_digest,
            "state": self.shown_state.value,
            "phase": self.phase,
            "error": self.cause or None,
            "precision": self.manifest.precision,
            "draft": self.draft.reference if self.draft else None,
            "max_model_len": self.window,
            "engine": self.kind.shown(info.version if info else ""),
            "memory_bytes": info.memory_bytes if info else None,
            "shared_bytes": info.shared_bytes if info else None,
            "slow_path": _slow_path(info),
            "load_seconds": round(self.load_seconds, 3),
            "in_flight": self._occupants,
            "replicas": [_described(each) for each in self.engine.replicas],
        }

    def _note_phase(self, phase: str, fraction: float) -> None:
        self.phase = f"{phase} {fraction:.0%}"


def _slow_path(info: EngineInfo | None) -> dict[str, object] | None:
    slow = info.slow_path if info else None
    if slow is None:
        return None
    known = bool(slow.weights_seconds)
    return {
        "reasons": slow.reasons,
        "step_ms": round(slow.step_seconds * 1e3, 3),
        "weights_ms": round(slow.weights_seconds * 1e3, 3) if known else None,
        "slowdown": round(slow.slowdown, 2) if known else None,
    }


def _described(replica: Engine) -> dict[str, object]:
    info, stats = replica.info, replica.stats
    return {
        "pid": replica.pid,
        "device": info.device if info else None,
        "state": replica.state,
        "running": stats.running,
        "waiting": stats.waiting,
        "restarts": replica.restarts,
        "silent_seconds": round(replica.silent_seconds, 1),
        "kv_blocks": {
            "total": stats.blocks_total,
            "free": stats.blocks_free,
            "cached": stats.blocks_cached,
            "offloaded": stats.blocks_offloaded,
        },
    }
