"""One version being served: its tokenizer, its engine process and the answers in flight. Knows no HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import StrEnum
from pathlib import Path

from models.manifest import Manifest
from service.engine.client import Engine
from service.engine.request import Request, StepOutput
from service.errors import Unavailable
from service.text.tokenizer import Tokenizer


class DeploymentState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Deployment:
    """A version that is loading, serving, draining or failed. Lives in the event loop; `settle` ends LOADING once."""

    def __init__(self, manifest: Manifest, engine: Engine) -> None:
        self.manifest = manifest
        self.engine = engine
        self.state = DeploymentState.LOADING
        self.phase = "starting"
        self.failure = ""
        self.load_seconds = 0.0
        self.in_flight = 0
        self._tokenizer: Tokenizer | None = None
        self._started = time.monotonic()
        self._settled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def tokenizer(self) -> Tokenizer:
        """The version's own. Raises Unavailable before it is loaded."""
        if self._tokenizer is None:
            raise Unavailable(f"{self.manifest.reference} is {self.state}; try again shortly", retry_after=1)
        return self._tokenizer

    @property
    def window(self) -> int:
        """Token positions of one sequence, prompt and answer together."""
        return self.manifest.context_window

    @property
    def max_tokens_per_request(self) -> int:
        """What the KV pool can hold for one sequence; never more than `window`."""
        info = self.engine.info
        pool = info.blocks_total * info.block_size if info else self.window
        return min(self.window, pool)

    async def load(self, directory: Path, check: Callable[[], None]) -> None:
        """Load tokenizer and engine while `check` reads every file again; ends in READY or FAILED and wakes everyone
        who waits. Nothing is served before the check has passed; where both fail, its reason is the cause."""
        loading = asyncio.create_task(self._load(directory))
        checking = asyncio.create_task(asyncio.to_thread(check))
        try:
            await asyncio.wait({loading, checking}, return_when=asyncio.FIRST_EXCEPTION)
            await checking
            await loading
        except asyncio.CancelledError:
            await self._give_up(loading, "loading was cancelled")
            raise
        except Exception as error:  # whatever stops a load is told to those who wait, with its sentence
            await self._give_up(loading, str(error) or type(error).__name__)
        else:
            self.settle(DeploymentState.READY)

    async def _load(self, directory: Path) -> None:
        starting = self.engine.start(on_loading=self._note_phase)
        self._tokenizer, _ = await asyncio.gather(asyncio.to_thread(Tokenizer.load, directory), starting)

    async def _give_up(self, loading: asyncio.Task[None], reason: str) -> None:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await self.engine.stop()
        self.settle(DeploymentState.FAILED, reason)

    def settle(self, state: DeploymentState, failure: str = "") -> None:
        self.state = state
        self.failure = failure
        self.load_seconds = time.monotonic() - self._started
        self._settled.set()

    async def settled(self, seconds: float) -> None:
        """Wait until loading has ended. Raises Unavailable after so many seconds, or when it failed."""
        try:
            async with asyncio.timeout(seconds):
                await self._settled.wait()
        except TimeoutError:
            raise Unavailable(
                f"{self.manifest.reference} is still loading ({self.phase}); try again shortly", retry_after=5
            ) from None
        if self.state is DeploymentState.FAILED:
            raise Unavailable(f"{self.manifest.reference} could not be loaded: {self.failure}", retry_after=10)

    async def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        """The engine's outputs of one request; closing this iterator aborts it. Raises Unavailable unless READY."""
        if self.state is not DeploymentState.READY:
            raise Unavailable(f"{self.manifest.reference} is {self.state}; try again shortly", retry_after=1)
        self.in_flight += 1
        self._idle.clear()
        try:
            async with aclosing(self.engine.generate(request)) as outputs:
                async for output in outputs:
                    yield output
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Take no more requests, wait up to so many seconds for those in flight, then end the engine process."""
        self.state = DeploymentState.DRAINING
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            self.failure = f"{self.in_flight} answers were cut after {seconds:g} s of draining"
        await self.engine.stop(grace=1.0)

    def describe(self) -> dict[str, object]:
        """One entry of `GET /v1/deployments`, as the wire contract spells it."""
        info, stats = self.engine.info, self.engine.stats
        blocks = {"total": stats.blocks_total, "free": stats.blocks_free, "cached": stats.blocks_cached}
        replica: dict[str, object] = {
            "pid": self.engine.pid,
            "device": info.device if info else None,
            "state": self.engine.state,
            "running": stats.running,
            "waiting": stats.waiting,
            "restarts": self.engine.restarts,
            "kv_blocks": blocks,
        }
        return {
            "model": self.manifest.reference,
            "digest": self.manifest.short_digest,
            "state": self.state.value,
            "phase": self.phase,
            "error": self.failure or None,
            "precision": self.manifest.precision,
            "memory_bytes": info.memory_bytes if info else None,
            "load_seconds": round(self.load_seconds, 3),
            "in_flight": self.in_flight,
            "replicas": [replica],
        }

    def _note_phase(self, phase: str, fraction: float) -> None:
        self.phase = f"{phase} {fraction:.0%}"
