"""This driver runs our engine without its server: `on_dosirak REFERENCE [no-lookup | paired]`, by service variables."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence as Row
from functools import partial

import msgspec

from loadtest.peers.driver import TEMPERATURE, TOP_P, Emit, Engine, serve
from models.repository.repository import Repository
from service.deployments.engine_config import engine_config
from service.engine.process.core import EngineCore
from service.engine.process.worker import build_core
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.loading.building import build_runner
from service.engine.runner.model_runner import ModelRunner
from service.engine.sequences.batch import Batch, Scheduled
from service.engine.sequences.sequence import Sequence
from service.settings import Settings

PART = 256
"""Positions of a text in one step."""


class Core:
    def __init__(self, core: EngineCore, runner: ModelRunner, adapter: str = "") -> None:
        self._core, self._runner, self._adapter = core, runner, adapter
        self._numbers: dict[str, int] = {}

    def add(self, number: int, token_ids: list[int], new_tokens: int, sampled: bool) -> None:
        request_id = f"r{len(self._numbers)}"
        self._numbers[request_id] = number
        params = SamplingParams(max_tokens=new_tokens)
        if sampled:
            params = SamplingParams(max_tokens=new_tokens, temperature=TEMPERATURE, top_p=TOP_P, seed=number)
        self._core.add(Request(request_id, tuple(token_ids), params, arrival=time.monotonic()))

    def step(self, emit: Emit) -> None:
        for output in self._core.step():
            if output.finish_reason is not None and output.finish_reason != "length":
                raise SystemExit(f"a request ended with {output.finish_reason}")
            emit(self._numbers[output.request_id], output.token_ids)

    def predict(self, token_ids: list[int]) -> bytes:
        cache = self._runner.cache
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        request = Request("text", tuple(token_ids), params, adapter=self._adapter)
        sequence = Sequence.of(request, (), cache.block_size)
        cache.lend(sequence, sequence.num_tokens)
        rows = b""
        while left := sequence.num_tokens - 1 - sequence.num_computed_tokens:
            part = min(left, PART)
            rows += self._runner.prompt_logits(Batch((Scheduled(sequence, part),))).float().numpy().tobytes()
            sequence.num_computed_tokens += part
        return rows


class InTurn:
    """Two engines of the same version, a step of each in turn; the first takes the even requests. A token's time is
    what its engine's steps have taken so far, so that what disturbs the machine disturbs both."""

    def __init__(self, cores: tuple[Core, Core]) -> None:
        self._cores = cores
        self._seconds = [0.0, 0.0]

    def add(self, number: int, token_ids: list[int], new_tokens: int, sampled: bool) -> None:
        self._cores[number % 2].add(number, token_ids, new_tokens, sampled)

    def step(self, emit: Emit) -> None:
        for index, core in enumerate(self._cores):
            told: list[tuple[int, Row[int]]] = []
            started = time.perf_counter()
            core.step(lambda number, new, at=None, told=told: told.append((number, new)))
            self._seconds[index] += time.perf_counter() - started
            for number, new in told:
                emit(number, new, self._seconds[index])


def build(reference: str, lookup: str = "lookup") -> Engine:
    settings = Settings()
    repository = Repository(settings.data_dir)
    manifest = repository.resolve(reference)
    config = engine_config(settings, repository, manifest)

    def core(speculation: bool) -> Core:
        runner, info = build_runner(config, lambda phase, fraction: None)
        config_of_core = msgspec.structs.replace(config, speculation=speculation)
        return Core(build_core(config_of_core, runner, info.blocks_total), runner)

    engine = InTurn((core(True), core(False))) if lookup == "paired" else core(lookup == "lookup")
    gc.collect()
    gc.freeze()  # as the engine process does
    return engine


if __name__ == "__main__":
    serve(partial(build, *sys.argv[1:]))
