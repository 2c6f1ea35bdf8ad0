"""Our engine without its server: `on_dosirak REFERENCE [no-lookup]`, set up by the same variables as the service."""

from __future__ import annotations

import gc
import sys
import time
from functools import partial

import msgspec

from loadtest.peers.driver import Emit, Engine, serve
from models.repository import Repository
from service.deployments.engines import engine_config
from service.engine.messages import EngineConfig
from service.engine.request import Request, SamplingParams
from service.engine.worker import build_core
from service.runner.building import build_runner
from service.settings import Settings


class Core:
    def __init__(self, config: EngineConfig) -> None:
        runner, info = build_runner(config, lambda phase, fraction: None)
        self._core = build_core(config, runner, info.blocks_total)
        self._numbers: dict[str, int] = {}
        gc.collect()
        gc.freeze()  # as the engine process does

    def add(self, number: int, token_ids: list[int], new_tokens: int) -> None:
        request_id = f"r{len(self._numbers)}"
        self._numbers[request_id] = number
        params = SamplingParams(max_tokens=new_tokens)
        self._core.add(Request(request_id, tuple(token_ids), params, arrival=time.monotonic()))

    def step(self, emit: Emit) -> None:
        for output in self._core.step():
            if output.finish_reason is not None and output.finish_reason != "length":
                raise SystemExit(f"a request ended with {output.finish_reason}")
            emit(self._numbers[output.request_id], output.token_ids)


def build(reference: str, lookup: str = "lookup") -> Engine:
    settings = Settings()
    repository = Repository(settings.data_dir)
    manifest = repository.resolve(reference)
    config = engine_config(settings, manifest, repository.path(manifest))
    return Core(msgspec.structs.replace(config, speculation=lookup == "lookup"))


if __name__ == "__main__":
    serve(partial(build, *sys.argv[1:]))
