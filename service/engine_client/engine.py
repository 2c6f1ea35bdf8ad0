"""The engine as the API and the deployments see it: a protocol, whatever computes behind it.

Knows no process and no socket.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

from service.engine.messages import EngineInfo, EngineStats, Request, StepOutput
from service.errors import GenerationFailed


class EngineState(StrEnum):
    NEW = "new"
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"  # the process died; live requests wait to be replayed, new ones join them
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"  # the first load failed; an engine that was ready once is started again and again instead


ALIVE: Final = (EngineState.READY, EngineState.RESTARTING)
"""States in which an engine takes requests."""


class EngineFailed(GenerationFailed):
    """The engine could not be loaded, or was stopped; started answers end with this."""


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
    def state(self) -> EngineState:
        """At this moment: a process that has just died is RESTARTING, whether or not that was noticed."""
        ...

    @property
    def why_not_ready(self) -> str:
        """As a sentence without its full stop; "" where it is READY, or where nothing has failed."""
        ...

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
        ValueError when its id is alive, and EngineKilled for content that is known to kill engines. Raises at any time
        EngineKilled when that is found out, Unavailable when the engine was away for too long, and EngineFailed when
        it was stopped.
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
