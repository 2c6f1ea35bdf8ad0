"""This test measures what a prompt's rows cost beside decodes, by the chunk's size: what prefill by layers could win.

    python -m loadtest.chunks REFERENCE [--streams 8] [--chunks 16 32 64 128 256]

A chunk reads all weights for few rows, but a step beside decodes reads them anyhow. Prefill by layers (some layers of a
whole prompt in each step) computes all rows of a prompt at once, so its rows cost what they cost alone. The table has
the milliseconds of a step, medians, and of one row of prefill; the last column is how many times as fast prefill by
layers could be in steps of the same length.
"""

from __future__ import annotations

import argparse
import time
from random import Random
from statistics import median
from typing import Final

import msgspec

from models.repository.repository import Repository
from service.deployments.engine_config import engine_config
from service.engine.process.core import EngineCore
from service.engine.process.worker import build_core
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.loading.building import build_runner
from service.settings import Settings

PROMPT: Final = 1024
STEPS: Final = 24
"""Of each chunk; their median counts."""
FIRST_ID: Final = 300


class Bench:
    """Steps of one engine core, whose prefill takes chunks of a given size."""

    def __init__(self, core: EngineCore, vocabulary: int) -> None:
        self._core = core
        self._draw = Random(5)
        self._vocabulary = vocabulary
        self._added = 0

    def add(self, tokens: int, new: int) -> None:
        ids = tuple(self._draw.randrange(FIRST_ID, self._vocabulary) for _ in range(tokens))
        self._core.add(Request(str(self._added), ids, SamplingParams(max_tokens=new), arrival=time.monotonic()))
        self._added += 1

    def decode(self, streams: int) -> None:
        """Begins so many sequences that decode from now on."""
        self._core.scheduler.policy.max_num_batched_tokens = PROMPT
        for _ in range(streams):
            self.add(128, 2 * PROMPT)
        while self._core.stats.step_tokens != streams:
            self._core.step()

    def end(self) -> None:
        self._core.abort([str(number) for number in range(self._added)])
        self._core.step()

    def seconds(self, rows: int, prompts: bool) -> float:
        """Returns the median of steps of so many rows; with `prompts`, beside a prompt."""
        self._core.scheduler.policy.max_num_batched_tokens = rows
        taken = list[float]()
        while len(taken) < STEPS:
            if prompts and not self._core.scheduler.waiting:
                self.add(PROMPT, 1)
            self._core.step()
            if self._core.stats.step_tokens == rows:
                taken.append(self._core.stats.step_seconds)
        return median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--chunks", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    args = parser.parse_args()
    settings = Settings()
    repository = Repository(settings.data_dir)
    config = engine_config(settings, repository, repository.resolve(args.reference))
    config = msgspec.structs.replace(
        config, speculation=False, prefix_caching=False, inter_token_latency_target=1e9, prefer="streams"
    )
    runner, info = build_runner(config, lambda phase, fraction: None)
    bench = Bench(build_core(config, runner, info.blocks_total), runner.vocab_size)
    bench.seconds(PROMPT, True)  # warm
    own = bench.seconds(PROMPT, True) / PROMPT
    bench.end()
    bench.decode(args.streams)
    alone = bench.seconds(args.streams, False)
    print(f"{args.reference}: prompts alone {own * 1e3:.3f} ms a row; {args.streams} decodes {alone * 1e3:.1f} ms")
    print("chunk   step ms   ms a row   by layers at best")
    for chunk in args.chunks:
        step = bench.seconds(args.streams + chunk, True)
        row = (step - alone) / chunk
        print(f"{chunk:5}   {step * 1e3:7.1f}   {row * 1e3:8.3f}   {row / own:.2f}x")


if __name__ == "__main__":
    main()
