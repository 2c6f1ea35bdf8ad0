"""Our engine without its server: `on_dosirak REFERENCE`, set up by the same variables as the service."""

from __future__ import annotations

import gc
import sys
import time
from functools import partial

from loadtest.peers.driver import Emit, Engine, serve
from models.manifest import Manifest
from models.repository import Repository
from service.engine.request import Request, SamplingParams
from service.offline import load_core
from service.settings import Settings


class Core:
    def __init__(self, settings: Settings, repository: Repository, manifest: Manifest) -> None:
        self._core = load_core(settings, repository, manifest)
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


def build(reference: str) -> Engine:
    settings = Settings()
    repository = Repository(settings.data_dir)
    return Core(settings, repository, repository.resolve(reference))


if __name__ == "__main__":
    serve(partial(build, *sys.argv[1:]))
