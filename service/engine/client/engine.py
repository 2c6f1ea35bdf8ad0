"""`Engine` is the engine's protocol for the API and the deployments. It knows no process and no socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

from service.engine.protocol.messages import EngineInfo, EngineStats, Profile, Profiled, Request, StepOutput, StepRecord
from service.errors import GenerationFailed, Unavailable


class EngineState(StrEnum):
    NEW = "new"
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"  # the process died; live requests wait for the replay, new ones join them
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"  # the first load failed; an engine that was ready once is always started again


ALIVE: Final = (EngineState.READY, EngineState.RESTARTING)
"""States in which an engine takes requests."""


def not_ready(state: EngineState) -> Unavailable:
    """Returns the error for what an engine in this state does not take."""
    return Unavailable(f"the engine is {state}; try again when it is ready", retry_after=1)


def require_alive(state: EngineState) -> None:
    """Raises Unavailable unless an engine in this state takes requests."""
    if state not in ALIVE:
        raise not_ready(state)


class EngineFailed(GenerationFailed):
    """The engine could not be loaded, or was stopped. Started answers end with this error."""


class Engine(Protocol):
    """An engine: our engine process, another server's, or a fake."""

    @property
    def info(self) -> EngineInfo | None:
        """Facts of the loaded engine; None until it is loaded."""
        ...

    @property
    def stats(self) -> EngineStats:
        """Stats after the last step. Totals start again at 0 when the engine is restarted."""
        ...

    @property
    def recent_steps(self) -> Sequence[StepRecord]:
        """The last steps of an engine of one process, oldest first, MAX_STEPS at most; of several processes, those of
        one after the other. `stats.steps_total` counts them all."""
        ...

    @property
    def state(self) -> EngineState:
        """The state now. An engine whose process has just died is RESTARTING, even before the event loop notices."""
        ...

    @property
    def why_not_ready(self) -> str:
        """The reason as a sentence without its full stop; "" if it is READY, or if nothing has failed."""
        ...

    @property
    def pid(self) -> int | None: ...

    @property
    def restarts(self) -> int: ...

    @property
    def silent_seconds(self) -> float:
        """The longest time for which a process that is ready has said nothing, not even a heartbeat: it hangs or is
        stopped. Up to some three seconds are nothing."""
        ...

    @property
    def replicas(self) -> Sequence[Engine]:
        """The engines of one process each in this engine; the engine itself if it has one process."""
        ...

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        """Loads the engine, once. Calls `on_loading(phase, fraction)` meanwhile. Raises EngineFailed with the cause."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        """Yields the outputs of one request, the last with its finish reason. Closing the generator aborts the request.

        The request is sent when the caller reads the first output. Then it raises Unavailable unless READY or
        RESTARTING, ValueError if its id is alive, and EngineKilled for content that is known to kill engines. At any
        time it raises EngineKilled if its request is found to kill engines, Unavailable if the engine was away for too
        long, and EngineFailed if the engine was stopped.
        """
        ...

    async def load_adapter(self, name: str, directory: str) -> None:
        """Loads the adapter of the version in `directory`. Then requests may name it, also after a restart. Raises
        EngineFailed with the cause, or Unavailable unless READY or RESTARTING."""
        ...

    def unload_adapter(self, name: str) -> None:
        """Releases the adapter: it is freed when the last answer with it has ended."""
        ...

    async def profile(self, order: Profile) -> Profiled:
        """Records the order's steps, of the first replica. Returns how it ended. Raises Unavailable unless READY,
        Conflict while another profile runs, and EngineFailed where the process ends meanwhile."""
        ...

    async def stop(self, grace: float = 0.0) -> None:
        """Takes no new requests, gives running ones `grace` seconds to end, then ends the engine. Idempotent."""
        ...
