"""This module runs a version's engine in this process, for commands that measure it as it is served: no server, no
socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from models.manifest import Manifest
from models.repository.repository import Repository
from service.deployments.engine_config import engine_config
from service.engine.process.core import EngineCore
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import EngineInfo, Request, StepOutput
from service.engine.scheduling.scheduler import Scheduler
from service.settings import Settings

if TYPE_CHECKING:
    from service.engine.runner.model_runner import ModelRunner


@dataclass(frozen=True, slots=True)
class Loaded:
    """A version's runner and the loaded files. `core` returns a new engine around it; only one at a time may run.
    `reference` is the version's name:version. `adapter` is the version's own, which answers every request; "" for
    none."""

    reference: str
    config: EngineConfig
    runner: ModelRunner
    info: EngineInfo
    adapter: str = ""

    def core(self, speculation: bool = True) -> EngineCore:
        from service.engine.process.worker import build_scheduler

        config = msgspec.structs.replace(self.config, speculation=self.config.speculation and speculation)
        return _VersionCore(self, build_scheduler(config, self.runner, self.info.blocks_total))


class _VersionCore(EngineCore):
    """An engine that computes every request with its version's adapter."""

    def __init__(self, loaded: Loaded, scheduler: Scheduler) -> None:
        super().__init__(loaded.runner, scheduler, time.monotonic)
        self._adapter = loaded.adapter

    def add(self, request: Request) -> None:
        super().add(replace(request, adapter=self._adapter))


def load(settings: Settings, repository: Repository, manifest: Manifest) -> Loaded:
    """Loads a version in this process, as the engine process does. Imports torch."""
    from service.engine.runner.loading.building import build_runner

    repository.fetch(manifest)
    config = engine_config(settings, repository, manifest)
    runner, info = build_runner(config, lambda phase, fraction: None)
    return Loaded(manifest.reference, config, runner, info, manifest.digest if manifest.has_adapter else "")


def run_all(
    core: EngineCore, requests: Iterable[Request], on_end: Callable[[], object] = lambda: None
) -> dict[str, list[StepOutput]]:
    """Returns every request's outputs by its id, in the order of `requests`; calls `on_end` as each ends."""
    outputs: dict[str, list[StepOutput]] = {}
    for request in requests:
        core.add(request)
        outputs[request.id] = []
    while core.has_work:
        for output in core.step():
            outputs[output.request_id].append(output)
            if output.finish_reason is not None:
                on_end()
    return outputs
