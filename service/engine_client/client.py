"""The engine as the API process sees it: asynchronous streams over an engine process that may die and come back.

The only place where asyncio meets the engine. Token ids only; nothing here knows text, HTTP or tensors.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Protocol

from msgspec.structs import replace

from service.engine import messages
from service.engine.messages import EngineConfig, EngineInfo, EngineStats, FromEngine, Request, StepOutput, ToEngine
from service.engine_client.adapters import Adapters
from service.engine_client.process import WORKER, EngineProcess, Started
from service.engine_client.restart_policy import DEFAULT_POLICY, Deaths, RestartPolicy
from service.engine_client.streams import EngineFailed, Stream, Streams
from service.errors import Unavailable

__all__ = ["Engine", "EngineClient", "EngineFailed", "EngineState", "RestartPolicy"]

_logger = logging.getLogger(__name__)
_LATE_SECONDS = 1.0  # the engine ends a request at its deadline; if it has not by then, the client does


class EngineState(StrEnum):
    NEW = "new"
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"  # the process died; live requests wait to be replayed, new ones join them
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class Engine(Protocol):
    """What the API and the deployments code against: our engine process, another server's, or a fake."""

    @property
    def info(self) -> EngineInfo | None:
        """What is loaded; None until it is."""
        ...

    @property
    def stats(self) -> EngineStats:
        """After the last step. Totals start again at 0 when the engine is restarted."""
        ...

    @property
    def state(self) -> EngineState: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def restarts(self) -> int: ...

    @property
    def replicas(self) -> Sequence[Engine]:
        """The engines of one process each that this one is made of; itself, where it is one."""
        ...

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        """Load, once; `on_loading(phase, fraction)` is told how far it is. Raises EngineFailed with the cause."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        """The news of one request, the last with its finish reason. Closing the generator aborts the request.

        The request is sent when the first output is asked for. Raises Unavailable then, unless READY or RESTARTING,
        ValueError when its id is alive, and EngineFailed at any time when the engine is dead for good.
        """
        ...

    async def load_adapter(self, name: str, directory: str) -> None:
        """Load the adapter of the version in `directory`: from then on requests may name it, also after a restart.
        Raises EngineFailed with the cause, or Unavailable unless READY or RESTARTING."""
        ...

    def unload_adapter(self, name: str) -> None:
        """Nobody asks for this adapter any more: it is freed when the last answer with it has ended."""
        ...

    async def stop(self, grace: float = 0.0) -> None:
        """Take nothing new, give what runs `grace` seconds to end, then end the engine. Idempotent."""
        ...


class EngineClient:
    """An engine process and its live streams. Lives in one event loop, whose thread must outlive the process."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        module: str = WORKER,
        env: Mapping[str, str] | None = None,
        restart_policy: RestartPolicy = DEFAULT_POLICY,
        on_step: Callable[[EngineStats], None] | None = None,
        started: Started | None = None,
    ) -> None:
        """Starts nothing. `module` is what `python -m` runs, `env` its environment (None: this process's), `on_step`
        is called in the event loop after every Step frame, and with empty stats when the process has died. `started`
        is taken for the first process."""
        self._config = config
        self._module = module
        self._env = env
        self._restart_policy = restart_policy
        self._on_step = on_step
        self._started = started
        self._on_loading: Callable[[str, float], None] | None = None
        self._state = EngineState.NEW
        self._info: EngineInfo | None = None
        self._stats = EngineStats()
        self._restarts = 0
        self._streams = Streams()
        self._adapters = Adapters(config.adapters)
        self._process: EngineProcess | None = None
        self._ready = asyncio.Event()
        self._fatal = ""
        self._heard_at = 0.0
        self._deaths = Deaths(restart_policy)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def info(self) -> EngineInfo | None:
        return self._info

    @property
    def stats(self) -> EngineStats:
        return self._stats

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def pid(self) -> int | None:
        """Of the process that is loading or serving, or that was the last to."""
        return self._process.pid if self._process else None

    @property
    def restarts(self) -> int:
        return self._restarts

    @property
    def replicas(self) -> Sequence[Engine]:
        return (self,)

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        """As Engine.start. A failed load is not tried again: its cause is in the files or the machine."""
        if self._state is not EngineState.NEW:
            raise RuntimeError(f"an engine starts once; this one is {self._state}")
        self._on_loading = on_loading
        self._state = EngineState.LOADING
        try:
            await self._boot()
        except BaseException:
            if self._state is EngineState.LOADING:
                self._state = EngineState.FAILED
            raise
        self._tasks = [asyncio.create_task(self._supervise()), asyncio.create_task(self._watch())]

    async def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        """As Engine.generate. When the process dies, the stream pauses and goes on where it was."""
        stream = self._open(request)
        try:
            while True:
                output = await stream.next()
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self._close(stream)

    async def load_adapter(self, name: str, directory: str) -> None:
        """As Engine.load_adapter."""
        if self._state not in (EngineState.READY, EngineState.RESTARTING):
            raise self._unavailable()
        frame = self._adapters.want(name, directory)
        if frame is not None and self._state is EngineState.READY:
            self._send(frame)
        if error := await self._adapters.there(name):
            raise EngineFailed(f"the adapter could not be loaded: {error}")

    def unload_adapter(self, name: str) -> None:
        """As Engine.unload_adapter."""
        self._adapters.drop(name, "it was released")
        if self._state is EngineState.READY:
            self._send(messages.UnloadAdapter(name))

    async def stop(self, grace: float = 0.0) -> None:
        """As Engine.stop. Streams that have not ended by then end with EngineFailed."""
        if self._state is EngineState.READY and self._process and grace > 0:
            self._state = EngineState.DRAINING
            self._process.send(messages.Shutdown())
            await asyncio.wait({asyncio.ensure_future(self._process.wait())}, timeout=grace)
        if self._state is not EngineState.FAILED:
            self._state = EngineState.STOPPED
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._started:
            self._started.end()
        if self._process:
            self._process.kill()
            await self._process.wait()
        self._fail("the engine was stopped before this answer was done")

    def _fail(self, why: str) -> None:
        """The end of everybody who waits."""
        self._streams.fail(why)
        self._adapters.fail(why)

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"the engine is {self._state}; try again when it is ready", retry_after=1)

    def _open(self, request: Request) -> Stream:
        if self._state not in (EngineState.READY, EngineState.RESTARTING):
            raise self._unavailable()
        if not self._streams:
            self._heard_at = time.monotonic()  # silence counts from here: an idle engine has nothing to say
        stream = self._streams.open(request)
        if self._state is EngineState.READY:
            self._add((request,))
        return stream

    def _close(self, stream: Stream) -> None:
        if self._streams.close(stream):
            self._send(messages.Abort((stream.request.id,)))

    def _add(self, requests: tuple[Request, ...]) -> None:
        for request in requests:  # a frame each: together they could pass the limit of one
            self._send(messages.Add((request,)))

    def _send(self, message: ToEngine) -> None:
        if self._process:
            self._process.send(message)

    async def _boot(self) -> None:
        """One process, from its start to Ready. Raises EngineFailed, and leaves none, when it does not get there."""
        self._ready.clear()
        self._fatal = ""
        try:
            started, self._started = self._started or Started.of(self._module, self._env), None
            process = await EngineProcess.load(started, self._boot_config(), self._on_message)
        except OSError as error:
            raise EngineFailed(f"the engine process could not be started: {error}") from error
        self._process = process
        ready, exited = asyncio.ensure_future(self._ready.wait()), asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait(
                {ready, exited}, timeout=self._restart_policy.load_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not self._ready.is_set():
                raise EngineFailed(await self._cause_of_failed_boot(process, exited.done()))
        except BaseException:
            process.kill()
            raise
        finally:
            ready.cancel()
            exited.cancel()

    def _boot_config(self) -> EngineConfig:
        """A later process is given its adapters one by one (`_go`): one that is broken by then must not keep it from
        starting."""
        return self._config if self._state is EngineState.LOADING else replace(self._config, adapters=())

    async def _cause_of_failed_boot(self, process: EngineProcess, exited: bool) -> str:
        process.kill()
        code = await process.wait()
        if not exited:
            return f"the engine was not loaded after {self._restart_policy.load_seconds:g} s"
        return self._fatal or f"the engine ended with exit code {code} while it was loading"

    def _on_message(self, message: FromEngine) -> None:
        self._heard_at = time.monotonic()
        match message:
            case messages.Step(outputs, stats):
                self._streams.give(outputs)
                self._add(self._streams.next_suspect())
                self._note(stats)
            case messages.Ready(info):
                self._go(info)
            case messages.AdapterLoaded():
                self._adapters.take(message)
            case messages.Loading(phase, fraction):
                if self._on_loading:
                    self._on_loading(phase, fraction)
            case messages.Fatal(text):
                self._fatal = text

    def _go(self, info: EngineInfo) -> None:
        if self._state not in (EngineState.LOADING, EngineState.RESTARTING):
            return  # stopped meanwhile
        self._info = info
        if self._state is EngineState.RESTARTING:
            for frame in self._adapters.frames():
                self._send(frame)
        self._state = EngineState.READY
        self._ready.set()
        self._add(self._streams.replay(self._restart_policy.max_fruitless_replays))

    def _note(self, stats: EngineStats) -> None:
        self._stats = stats
        if self._on_step is None:
            return
        try:
            self._on_step(stats)
        except Exception:  # an observer's defect must not end the engine's connection
            _logger.exception("on_step")

    async def _supervise(self) -> None:
        """Start the process again whenever it dies, until that is hopeless."""
        while self._process:
            code = await self._process.wait()
            if self._state is not EngineState.READY:
                return
            _logger.warning("engine process %d ended with %d: %s", self._process.pid, code, self._fatal or "no word")
            self._state = EngineState.RESTARTING
            self._note(EngineStats())
            try:
                await self._restart(f"exit code {code}")
            except EngineFailed as error:
                self._state = EngineState.FAILED
                self._fail(error.message)
                return

    async def _restart(self, cause: str) -> None:
        while True:
            pause = self._deaths.note(time.monotonic())
            if pause is None:
                raise EngineFailed(f"the engine died too often to start it again; last: {self._fatal or cause}")
            await asyncio.sleep(pause)
            with suppress(EngineFailed):
                await self._boot()
                self._restarts += 1
                return

    async def _watch(self) -> None:
        """Kill a process that owes an answer and says nothing; end what is past its deadline with no word of it."""
        hang_seconds = self._restart_policy.hang_seconds
        while True:
            await asyncio.sleep(min(1.0, hang_seconds / 4))
            now = time.monotonic()
            ready = self._state is EngineState.READY
            expired = self._streams.expire(now - _LATE_SECONDS if ready else now)
            if expired and ready:
                self._send(messages.Abort(expired))
            if self._streams and ready and self._process and now - self._heard_at > hang_seconds:
                _logger.error("engine process %d said nothing for %g s: killed", self._process.pid, hang_seconds)
                self._process.kill()
