"""The supervisor keeps one engine process running: it starts, watches and restarts the process as long as it is wanted.

    NEW ─▶ LOADING ─▶ READY ⇄ RESTARTING        a process that was ready once is always started again
              └▶ FAILED   └▶ DRAINING ─▶ STOPPED

It knows processes and frames, but no requests. Its `User` says which deaths a request caused.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from service.engine.client.engine import ALIVE, EngineFailed, EngineState
from service.engine.client.process import WORKER, EngineProcess, Started
from service.engine.client.restart_policy import DEFAULT_POLICY, Backoff, Death, DeathKind, HangWatch, RestartPolicy
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import (
    EngineInfo,
    Fatal,
    FromEngine,
    Heartbeat,
    Loading,
    Ready,
    Shutdown,
    ToEngine,
)

_logger = logging.getLogger(__name__)


class User(Protocol):
    """The user of the process. Its methods are called in the event loop and must not wait."""

    def on_frame(self, frame: FromEngine) -> None:
        """Takes a frame that is not about the process itself, in order."""
        ...

    def on_ready(self, info: EngineInfo, is_restart: bool) -> None: ...

    def on_death(self, death: Death) -> int:
        """Notes that a ready process has died. Returns how many deaths, this one included, a request caused. These do
        not count against the engine."""
        ...


PackedWeights = Callable[[], str]
"""Returns EngineConfig.packed_weights."""


def nowhere() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Launch:
    """Says how the process is started: `interpreter -m module` with `env` (None: this process's). `started` serves as
    the first process. `packed_weights` is called before each load, and says where another process has the weights
    packed now; "" is nowhere."""

    config: EngineConfig
    module: str = WORKER
    env: Mapping[str, str] | None = None
    started: Started | None = None
    interpreter: str = sys.executable
    packed_weights: PackedWeights = nowhere

    def process(self) -> Started:
        """Starts one process. Raises OSError."""
        return Started.of(self.module, self.env, self.interpreter)


class Supervisor:
    """Lives in one event loop, whose thread must outlive the process."""

    def __init__(self, launch: Launch, user: User, policy: RestartPolicy = DEFAULT_POLICY) -> None:
        """Starts nothing."""
        self.info: EngineInfo | None = None
        self.restarts = 0
        self.lost_at = math.inf
        """The time of the last death of a ready process, while none is ready; infinity before it is noticed."""
        self._launch = launch
        self._user = user
        self._policy = policy
        self._backoff = Backoff(policy)
        self._watch = HangWatch(policy)
        self._state = EngineState.NEW
        self._started = launch.started
        self._process: EngineProcess | None = None
        self._ready = asyncio.Event()
        self._ready_at = 0.0
        self._fatal = ""
        self._failure = ""
        self._on_loading: Callable[[str, float], None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> EngineState:
        """The state as in Engine.state."""
        if self._state is EngineState.READY and self._process is not None and not self._process.is_running:
            return EngineState.RESTARTING
        return self._state

    @property
    def why_not_ready(self) -> str:
        """The reason as in Engine.why_not_ready."""
        return "" if self.state is EngineState.READY else self._failure

    @property
    def pid(self) -> int | None:
        """The id of the process that loads or serves, or of the last one that did."""
        return self._process.pid if self._process else None

    @property
    def silent_seconds(self) -> float:
        """The time as in Engine.silent_seconds."""
        return self._watch.silence

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        """Starts the engine as Engine.start does. It does not try a failed first load again; the caller gets the
        error."""
        if self._state is not EngineState.NEW:
            raise RuntimeError(f"an engine starts once; this one is {self._state}")
        self._on_loading = on_loading
        self._state = EngineState.LOADING
        try:
            await self._boot(self._launch.config)
        except BaseException as error:
            if self._state is EngineState.LOADING:
                self._state, self._failure = EngineState.FAILED, str(error)
            raise
        self._tasks = [asyncio.create_task(self._keep_running()), asyncio.create_task(self._look())]

    def send(self, message: ToEngine) -> None:
        """Sends a message. Drops it if no process runs."""
        if self._process:
            self._process.send(message)

    async def stop(self, grace: float = 0.0) -> None:
        """Stops the engine as Engine.stop does."""
        if self.state is EngineState.READY and self._process and grace > 0:
            self._state = EngineState.DRAINING
            self._process.send(Shutdown())
            await asyncio.wait({asyncio.ensure_future(self._process.wait())}, timeout=grace)
        if self._state is not EngineState.FAILED:
            self._state = EngineState.STOPPED
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._started:
            await self._started.end()
        if self._process:
            self._process.kill()
            await self._process.wait()

    async def _boot(self, config: EngineConfig) -> None:
        """Starts one process and waits for Ready. Raises EngineFailed, and leaves no process, if that fails."""
        self._ready.clear()
        self._fatal = ""
        try:
            started, self._started = self._started or self._launch.process(), None
            config = replace(config, packed_weights=self._launch.packed_weights())
            process = await EngineProcess.load(started, config, self._on_frame)
        except OSError as error:
            raise EngineFailed(f"the engine process could not be started: {error}") from error
        self._process = process
        ready, exited = asyncio.ensure_future(self._ready.wait()), asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({ready, exited}, timeout=self._policy.load_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not self._ready.is_set():
                raise EngineFailed(await self._cause_of_failed_boot(process, exited.done()))
        except BaseException:
            process.kill()
            raise
        finally:
            ready.cancel()
            exited.cancel()

    async def _cause_of_failed_boot(self, process: EngineProcess, exited: bool) -> str:
        process.kill()
        code = await process.wait()
        if not exited:
            return f"the engine was not loaded after {self._policy.load_seconds:g} s"
        return self._fatal or f"the engine ended with exit code {code} while it was loading"

    def _on_frame(self, frame: FromEngine) -> None:
        self._watch.heard()
        match frame:
            case Heartbeat():
                self._watch.beat(frame)
            case Ready(info):
                self._go(info)
            case Loading(phase, fraction):
                if self._on_loading:
                    self._on_loading(phase, fraction)
            case Fatal(text):
                self._fatal = text
            case _:
                self._user.on_frame(frame)

    def _go(self, info: EngineInfo) -> None:
        if self._state not in (EngineState.LOADING, EngineState.RESTARTING):
            return  # stopped meanwhile
        self.info = info
        self._ready_at = time.monotonic()
        is_restart = self._state is EngineState.RESTARTING
        self._state, self.lost_at = EngineState.READY, math.inf
        self.restarts += is_restart
        self._ready.set()
        self._user.on_ready(info, is_restart)

    async def _keep_running(self) -> None:
        """Starts the process again whenever it dies."""
        while self._process:
            code = await self._process.wait()
            if self._state is not EngineState.READY:
                return
            self._state, self.lost_at = EngineState.RESTARTING, time.monotonic()
            self._note_death(self._death(code))
            await self._start_again()

    def _death(self, code: int) -> Death:
        hung = self._watch.take_reason()
        if hung:
            return Death(DeathKind.HUNG, f"it {hung}")
        kind = DeathKind.KILLED if code == -signal.SIGKILL else DeathKind.CRASHED
        return Death(kind, f"it ended with exit code {code}" + (f", {self._fatal}" if self._fatal else ""))

    def _note_death(self, death: Death) -> None:
        self._failure = f"the engine process died and is being started again: {death.cause}"
        _logger.warning("engine process %s died: %s", self.pid, death.cause)
        self._backoff.served(self.lost_at - self._ready_at)
        self._backoff.died()
        try:
            self._backoff.forgive(self._user.on_death(death))
        except Exception:  # a defect of the user must not stop the engine from coming back
            _logger.exception("on_death")

    async def _start_again(self) -> None:
        """Tries until the process is ready. The user gives a later process its adapters one by one (`on_ready`), so
        that a broken adapter cannot stop the process from starting."""
        lost_at = self.lost_at
        while True:
            await asyncio.sleep(self._backoff.seconds)
            if self._state is EngineState.READY:  # the last one said so while it was killed for being late
                self._state, self.lost_at = EngineState.RESTARTING, lost_at
                self.restarts -= 1
            try:
                await self._boot(replace(self._launch.config, adapters=()))
            except Exception as error:  # any other handling would leave an engine that never comes back
                self._failure = f"the engine process died and could not be started again yet: {error}"
                self._backoff.died()
                _logger.warning("engine not started again, next try in %.1f s: %s", self._backoff.seconds, error)
            else:
                return

    async def _look(self) -> None:
        """Kills a process that hangs."""
        while True:
            await asyncio.sleep(self._watch.interval)
            reason = self._watch.look(time.monotonic(), self._state is EngineState.READY)
            if reason and self._process and self._state in ALIVE:
                _logger.error("engine process %d %s: killed", self._process.pid, reason)
                with suppress(ProcessLookupError):
                    self._process.kill()
