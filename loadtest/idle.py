"""This test measures an engine's idle share: the part of its time in which the model computes nothing.

    python -m loadtest.idle REFERENCE [--streams 32 64] [--steps 60] [--sampled]

It runs the loop of an engine process on a version of the data directory: schedule, pack, forward, sample, update,
statistics and frame. The streams decode behind prompts of 128 tokens. It prints milliseconds of a step, medians, and
the share outside of the forward, with sampling and without. An engine that scheduled the next step while this one runs
could win that share at most.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from random import Random
from statistics import median
from typing import Final, ParamSpec, TypeVar

import msgspec

from loadtest.peers.driver import TEMPERATURE, TOP_P
from models.repository.repository import Repository
from service.deployments.engine_config import engine_config
from service.engine.process.core import EngineCore
from service.engine.process.worker import build_core
from service.engine.protocol.frames import encode
from service.engine.protocol.messages import Request, SamplingParams, Step
from service.engine.runner.loading.building import build_runner
from service.engine.runner.model_runner import ModelRunner
from service.settings import Settings

PROMPT: Final = 128
NEW: Final = 400
FIRST_ID: Final = 300

P = ParamSpec("P")
T = TypeVar("T")


class Clock:
    """Adds up the seconds of the calls that it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, call: Callable[P, T]) -> Callable[P, T]:
        def wrapped(*args: P.args, **named: P.kwargs) -> T:
            started = time.perf_counter()
            try:
                return call(*args, **named)
            finally:
                self.seconds += time.perf_counter() - started

        return wrapped

    def take(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def decode_steps(core: EngineCore, runner: ModelRunner, streams: int, steps: int, sampled: bool) -> str:
    """Returns a row of the table: medians of `steps` steps in which all streams decode."""
    forward, sampling = Clock(), Clock()
    draw, most = Random(streams), runner.vocab_size
    for number in range(streams):
        params = SamplingParams(max_tokens=NEW + steps)
        if sampled:
            params = SamplingParams(max_tokens=NEW + steps, temperature=TEMPERATURE, top_p=TOP_P, seed=number)
        prompt = tuple(draw.randrange(FIRST_ID, most) for _ in range(PROMPT))
        core.add(Request(f"{streams}-{number}", prompt, params))
    before = runner._logits, runner._sampled
    runner._logits, runner._sampled = forward.timed(before[0]), sampling.timed(before[1])  # type: ignore[method-assign]
    whole, computing, drawing = list[float](), list[float](), list[float]()
    while len(whole) < steps:
        if not core.has_work:
            raise SystemExit(f"{streams} streams do not decode at once: fewer --steps, or a larger KV cache")
        started = time.perf_counter()
        outputs = core.step()
        encode(Step(tuple(outputs), core.stats, core.take_steps()))
        seconds, *parts = time.perf_counter() - started, forward.take(), sampling.take()
        if core.stats.step_tokens == core.stats.step_sequences == streams:
            whole.append(seconds)
            computing.append(parts[0])
            drawing.append(parts[1])
    runner._logits, runner._sampled = before  # type: ignore[method-assign]
    core.abort([f"{streams}-{number}" for number in range(streams)])
    core.step()
    outside = median(1 - part / all_ for part, all_ in zip(computing, whole, strict=True))
    beside = median(1 - (a + b) / all_ for a, b, all_ in zip(computing, drawing, whole, strict=True))
    figures = (median(whole), median(computing), median(drawing))
    return f"{streams:7} " + " ".join(f"{1e3 * each:9.2f}" for each in figures) + f" {outside:8.1%} {beside:8.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference")
    parser.add_argument("--streams", nargs="+", type=int, default=[32, 64])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sampled", action="store_true", help="temperature 0.7 and top-p 0.9 instead of greedy")
    asked = parser.parse_args()
    settings = Settings()
    repository = Repository(settings.data_dir)
    config = engine_config(settings, repository, repository.resolve(asked.reference))
    config = msgspec.structs.replace(config, speculation=False)
    runner, info = build_runner(config, lambda phase, fraction: None)
    core = build_core(config, runner, info.blocks_total, info.work)
    gc.collect()
    gc.freeze()  # as the engine process does
    print("streams   step ms   forward    sample  outside  without sampling")
    for streams in asked.streams:
        print(decode_steps(core, runner, streams, asked.steps, asked.sampled), flush=True)


if __name__ == "__main__":
    main()
