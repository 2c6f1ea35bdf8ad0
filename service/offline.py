"""The engine of a version in this process, for commands that measure it as it is served: no server, no socket."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from models.manifest import Manifest
from models.repository import Repository
from service.deployments.engines import engine_config
from service.engine.core import EngineCore
from service.engine.request import Request, StepOutput
from service.settings import Settings


def load_core(settings: Settings, repository: Repository, manifest: Manifest) -> EngineCore:
    """The engine as its process builds it, in this one. Imports torch."""
    from service.engine.worker import build_core
    from service.runner.building import build_runner

    config = engine_config(settings, manifest, repository.path(manifest))
    runner, info = build_runner(config, lambda phase, fraction: None)
    return build_core(config, runner, info.blocks_total)


def run_all(core: EngineCore, requests: Iterable[Request], on_end: Callable[[], object]) -> dict[str, list[StepOutput]]:
    """Every request's outputs by its id, in the order of `requests`; `on_end` is called as each ends."""
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
