"""The engine client gives asynchronous streams over an engine process that may die and come back.

It is the only place where asyncio meets the engine. It knows token ids only: no text, HTTP or tensors. `supervisor`
keeps the process running. `streams` knows which requests the process needs, and which request is to blame for a death.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from service.engine.client.adapters import Adapters
from service.engine.client.engine import Engine, EngineFailed, EngineState, not_ready, require_alive
from service.engine.client.poison import PoisonRegister, fingerprint, refusal
from service.engine.client.process import WORKER, Started
from service.engine.client.profiles import Profiles
from service.engine.client.restart_policy import DEFAULT_POLICY, Death, RestartPolicy
from service.engine.client.streams import Stream, Streams
from service.engine.client.supervisor import Launch, PackedWeights, Supervisor, nowhere
from service.engine.protocol import messages
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import (
    MAX_STEPS,
    EngineInfo,
    EngineStats,
    FromEngine,
    Request,
    StepOutput,
    StepRecord,
)
from service.errors import Unavailable

_logger = logging.getLogger(__name__)
_LATE_SECONDS = 1.0  # the client ends a request that the engine has not ended this long after its deadline
_RETRY_SECONDS = 10


class EngineClient:
    """Owns an engine process and its live streams. Lives in one event loop, whose thread must outlive the process."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        module: str = WORKER,
        interpreter: str = sys.executable,
        env: Mapping[str, str] | None = None,
        restart_policy: RestartPolicy = DEFAULT_POLICY,
        on_step: Callable[[EngineStats], None] | None = None,
        on_ready: Callable[[EngineInfo], None] | None = None,
        started: Started | None = None,
        poison: PoisonRegister | None = None,
        packed_weights: PackedWeights = nowhere,
    ) -> None:
        """Starts nothing. `module`, `interpreter`, `env`, `started` and `packed_weights` are as in `Launch`. `on_step`
        is called in the event loop after every Step frame, and with empty stats after a death; `on_ready` whenever a
        process has become ready. Replicas share one `poison`."""
        self._policy = restart_policy
        self._on_step = on_step
        self._tell_ready = on_ready
        self._stats = EngineStats()
        self._steps = deque[StepRecord](maxlen=MAX_STEPS)
        self._streams = Streams()
        self._poison = poison or PoisonRegister(restart_policy)
        self._adapters = Adapters(config.adapters, restart_policy)
        self._profiles = Profiles()
        launch = Launch(config, module, env, started, interpreter, packed_weights)
        self._supervisor = Supervisor(launch, self, restart_policy)
        self._upkeep: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo | None:
        return self._supervisor.info

    @property
    def stats(self) -> EngineStats:
        return self._stats

    @property
    def recent_steps(self) -> Sequence[StepRecord]:
        return self._steps

    @property
    def state(self) -> EngineState:
        return self._supervisor.state

    @property
    def why_not_ready(self) -> str:
        return self._supervisor.why_not_ready

    @property
    def pid(self) -> int | None:
        """The id of the process that loads or serves, or of the last one that did."""
        return self._supervisor.pid

    @property
    def restarts(self) -> int:
        return self._supervisor.restarts

    @property
    def silent_seconds(self) -> float:
        return self._supervisor.silent_seconds

    @property
    def replicas(self) -> Sequence[Engine]:
        return (self,)

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        """Starts the engine as Engine.start does."""
        await self._supervisor.start(on_loading)
        self._upkeep = asyncio.create_task(self._end_late_streams())

    async def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        """Yields the outputs as Engine.generate does. When the process dies, the stream pauses and then continues."""
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
        """Loads an adapter as Engine.load_adapter does."""
        require_alive(self.state)
        frame = self._adapters.want(name, directory)
        if frame is not None and self.state is EngineState.READY:
            self._supervisor.send(frame)
        try:
            async with asyncio.timeout(self._policy.load_seconds):
                error = self.lacks(name) or await self._adapters.failure_of(name)
        except TimeoutError:
            error = f"it was not loaded after {self._policy.load_seconds:g} s"
            self.unload_adapter(name)
        if error:
            raise EngineFailed(f"the adapter could not be loaded: {error}")

    def unload_adapter(self, name: str) -> None:
        """Unloads an adapter as Engine.unload_adapter does."""
        self._adapters.drop(name, "it was released")
        if self.state is EngineState.READY:
            self._supervisor.send(messages.UnloadAdapter(name))

    def lacks(self, adapter: str) -> str:
        """As Replica.lacks: a process that starts may get what the last one did not."""
        return self._adapters.lacks(adapter) if self.state is EngineState.READY else ""

    async def profile(self, order: messages.Profile) -> messages.Profiled:
        """Records steps as Engine.profile does."""
        if self.state is not EngineState.READY:
            raise not_ready(self.state)
        with self._profiles.run(order) as ended:
            self._supervisor.send(order)
            return await ended

    async def stop(self, grace: float = 0.0) -> None:
        """Stops the engine as Engine.stop does. Streams that have not ended by then end with EngineFailed."""
        await self._supervisor.stop(grace)
        if self._upkeep:
            self._upkeep.cancel()
        why = "the engine was stopped before this answer was done"
        self._streams.fail(lambda: EngineFailed(why))
        self._adapters.fail(why)
        self._profiles.fail("the engine was stopped")

    def on_frame(self, frame: FromEngine) -> None:
        """As User.on_frame."""
        match frame:
            case messages.Step(outputs, stats, steps):
                self._streams.give(outputs)
                self._give()
                self._steps.extend(steps)
                self._note(stats)
            case messages.AdapterLoaded():
                self._adapters.take(frame, time.monotonic())
                if why := self.lacks(frame.name):
                    self._streams.fail(lambda: _without(why), lambda stream: stream.request.adapter == frame.name)
            case messages.Profiled():
                self._profiles.take(frame)

    def on_ready(self, info: EngineInfo, is_restart: bool) -> None:
        """As User.on_ready."""
        if self._tell_ready is not None:
            try:
                self._tell_ready(info)
            except Exception:  # as in _note
                _logger.exception("on_ready")
        for frame in self._adapters.frames() if is_restart else ():
            self._supervisor.send(frame)
        self._give()

    def on_death(self, death: Death) -> int:
        """As User.on_death: the request that is to blame ends, and with it all that are equal to it."""
        self._note(EngineStats())
        self._profiles.fail(f"the engine process died: {death.cause}")
        blamed = self._streams.blame(death.kind, self._policy)
        if blamed is None:
            return 0
        _logger.error("request %s ended %d engine processes: refused from now on", blamed.request.id, blamed.deaths)
        seconds, content = self._poison.add(blamed.request), fingerprint(blamed.request)
        self._streams.fail(lambda: refusal(seconds), lambda stream: fingerprint(stream.request) == content)
        return blamed.deaths

    def _open(self, request: Request) -> Stream:
        require_alive(self.state)
        if why := self.lacks(request.adapter):
            raise _without(why)
        self._poison.check(request)
        stream = self._streams.open(request)
        self._give()
        return stream

    def _close(self, stream: Stream) -> None:
        if self._streams.close(stream):
            self._supervisor.send(messages.Abort((stream.request.id,)))
        self._give()

    def _give(self) -> None:
        """Sends the requests that the process must get now."""
        if not self._streams.num_waiting or self.state is not EngineState.READY:
            return
        for request in self._streams.to_give():  # a frame each: together they could pass the limit of one
            self._supervisor.send(messages.Add((request,)))

    def _note(self, stats: EngineStats) -> None:
        self._stats = stats
        if self._on_step is None:
            return
        try:
            self._on_step(stats)
        except Exception:  # an observer's defect must not end the engine's connection
            _logger.exception("on_step")

    async def _end_late_streams(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._policy.hang_seconds / 4))
            now = time.monotonic()
            if self.state is EngineState.READY:
                self._expire(now - _LATE_SECONDS)
                for frame in self._adapters.due(now):
                    self._supervisor.send(frame)
            else:
                self._expire(now)
                self._give_up(now - self._policy.wait_seconds)

    def _expire(self, before: float) -> None:
        """Ends the requests whose deadline passed without an end from the engine."""
        if late := self._streams.expire(before):
            self._supervisor.send(messages.Abort(late))
        self._give()

    def _give_up(self, before: float) -> None:
        """Ends the requests that have waited since `before`, if the engine has been away since `before`."""
        if self._supervisor.lost_at <= before:
            self._streams.fail(self._away, lambda stream: stream.opened_at <= before)

    def _away(self) -> Unavailable:
        waited = f"this request has waited {self._policy.wait_seconds:g} s; try again later"
        return Unavailable(
            f"{self.why_not_ready or 'the engine is starting again'}; {waited}", retry_after=_RETRY_SECONDS
        )


def _without(why: str) -> Unavailable:
    return Unavailable(
        f"the engine process was started again and could not load the adapter yet: {why}; it goes on trying: send the "
        "request again later",
        retry_after=_RETRY_SECONDS,
    )
