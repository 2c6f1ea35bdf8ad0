"""This test measures what a profile costs a step: `GOMP_SPINCOUNT=10000 python -m loadtest.profiling [demo:2]`.

An engine of its own in this process decodes; rounds with and without a profile alternate on the same streams. A round's
figure is the median of its steps, and the ratio is the median of the rounds' ratios. `written` adds what the profile
takes between steps: beginning, ending and writing its pieces. Off there is nothing to
measure: no statement of a step asks for a profile, but for one of the native step.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from models.repository.repository import Repository
from service.engine.process.core import EngineCore
from service.engine.process.profiler import Profiler
from service.engine.protocol.messages import Profile, Profiled, Request, SamplingParams
from service.evaluation.offline import load
from service.settings import Settings


class Streams:
    """So many streams that decode for ever."""

    def __init__(self, core: EngineCore, count: int) -> None:
        self.core = core
        self._count = count
        self._number = 0

    def fill(self) -> None:
        while len(self.core.scheduler.running) + len(self.core.scheduler.waiting) < self._count:
            self._number += 1
            params = SamplingParams(max_tokens=400, min_tokens=400, temperature=1.0, seed=self._number)
            self.core.add(Request(str(self._number), tuple(range(5, 21)), params))

    def end(self) -> None:
        self.core.abort([sequence.request.id for sequence in self.core.scheduler.running])
        while self.core.has_work:
            self.core.step()


def steps(streams: Streams, count: int, step: Callable[[], object]) -> tuple[float, float]:
    """Returns the median seconds of a step, and the seconds of all."""
    seconds = []
    for _ in range(count):
        streams.fill()
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return median(seconds), sum(seconds)


@contextmanager
def recording(core: EngineCore, count: int, kind: str) -> Iterator[Profiler]:
    ends = list[Profiled]()
    directory = tempfile.mkdtemp()
    profiler = Profiler(core, ends.append)
    profiler.take(Profile("measured", directory, count, kind))
    try:
        yield profiler
        assert [(each.steps, each.error) for each in ends] == [(count, "")]
    finally:
        shutil.rmtree(directory)


def measure(streams: Streams, rounds: int, count: int, kind: str) -> str:
    steps(streams, count, streams.core.step)
    ratios, written, alone = [], [], []
    for _ in range(rounds):
        off, all_off = steps(streams, count, streams.core.step)
        with recording(streams.core, count, kind) as profiler:
            on, all_on = steps(streams, count, profiler.step)
        ratios.append(on / off)
        written.append(all_on / all_off)
        alone.append(off)
    step = median(alone)
    return f"{kind:<10} {1e3 * step:7.2f} ms a step, on {median(ratios):.3f}x, written {median(written):.3f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=None)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--kinds", nargs="+", default=["operators", "memory", "stacks"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    settings = Settings(data_dir=options.data_dir) if options.data_dir else Settings()
    repository = Repository(settings.data_dir)
    manifest = repository.resolve(options.model or settings.default_model)
    core = load(settings, repository, manifest).core(speculation=False)
    print(f"{manifest.reference} {manifest.precision}, {options.rounds} rounds of {options.steps} steps")
    for count in options.streams:
        streams = Streams(core, count)
        for kind in options.kinds:
            print(f"{count:3} streams: {measure(streams, options.rounds, options.steps, kind)}", flush=True)
        streams.end()


if __name__ == "__main__":
    main()
