"""This test measures the cost of a step without the model: schedule, update, stats and frame, with an empty runner.

    python -m loadtest.overhead [--steps 400] [64 256 512]

It prints milliseconds of processor time per step, medians over all steps, by the number of decoding sequences. The
client's time to decode the frame is separate, because the client is another process.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as SequenceOf
from itertools import pairwise
from statistics import median
from typing import Final, ParamSpec, TypeVar

from service.engine.process.core import EngineCore
from service.engine.process.worker import build_core
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.frames import HEADER_BYTES, decode_from_engine, encode
from service.engine.protocol.messages import Request, SamplingParams, Step
from service.engine.protocol.profiling import Recorder
from service.engine.sequences.batch import Batch, BlockCopy, SampledToken

PARTS: Final = ("schedule", "update", "rest of step", "stats", "frame", "in all", "client")
WARM_UP: Final = 40
BLOCK_SIZE: Final = 16

P = ParamSpec("P")
T = TypeVar("T")


class FreeRunner:
    """Gives every sequence that samples the same token, at no cost."""

    vocab_size = 1 << 17
    no_states = ""
    verifies_drafts = False
    draft_model = None
    grammars = None
    num_disk_blocks = 0
    adapters: Collection[str] = ()

    def __init__(self) -> None:
        self._token = SampledToken(7)

    def read_adapter(self, name: str, directory: str) -> Callable[[], None]:
        raise ValueError("this runner has no adapters")

    def unload_adapter(self, name: str) -> None:
        raise ValueError("this runner has no adapters")

    def windows(self) -> None:
        """All layers have the same blocks."""

    def recorder(self, kind: str) -> Recorder:
        raise ValueError("this runner records nothing")

    def copy(self, copies: SequenceOf[BlockCopy]) -> SequenceOf[BlockCopy]:
        return ()

    def run(self, batch: Batch) -> list[SampledToken | None]:
        return [self._token] * len(batch.scheduled)


class Stopwatch:
    """Seconds spent in wrapped methods since the last look."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def wrap(self, name: str, method: Callable[P, T]) -> Callable[P, T]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            started = time.thread_time()
            result = method(*args, **kwargs)
            self._seconds[name] = time.thread_time() - started
            return result

        return timed

    def take(self, name: str) -> float:
        return self._seconds.pop(name, 0.0)


def decoding(num_sequences: int, steps: int) -> EngineCore:
    """A core whose every sequence decodes, not all of them at the same place of a block."""
    config = EngineConfig(
        model_dir="",
        precision="bf16",
        max_model_len=1 << 16,
        max_num_seqs=num_sequences,
        max_num_batched_tokens=1 << 16,
    )
    num_blocks = num_sequences * (steps + 200) // BLOCK_SIZE
    core = build_core(config, FreeRunner(), num_blocks)
    for number in range(num_sequences):
        prompt = tuple(range(number, number + 64 + number % BLOCK_SIZE))
        core.add(Request(f"cmpl-{number:032x}", prompt, SamplingParams(max_tokens=1 << 15, stop_token_ids=(2,))))
    while any(sequence.num_remaining_tokens > 1 for sequence in core.scheduler.running) or core.scheduler.waiting:
        core.step()
    return core


def measure(num_sequences: int, steps: int) -> dict[str, float]:
    """Median seconds of each of PARTS."""
    core, watch = decoding(num_sequences, steps + WARM_UP), Stopwatch()
    core.scheduler.schedule = watch.wrap("schedule", core.scheduler.schedule)  # type: ignore[method-assign]
    core.scheduler.update = watch.wrap("update", core.scheduler.update)  # type: ignore[method-assign]
    gc.collect()
    gc.freeze()  # as the worker does
    samples: list[dict[str, float]] = []
    for _ in range(steps + WARM_UP):
        at = [time.thread_time()]
        outputs = core.step()
        at.append(time.thread_time())
        stats = core.stats
        at.append(time.thread_time())
        frame = encode(Step(tuple(outputs), stats, core.take_steps()))
        at.append(time.thread_time())
        decode_from_engine(frame[HEADER_BYTES:])
        at.append(time.thread_time())
        schedule, update = watch.take("schedule"), watch.take("update")
        step, told, framed, decoded = (later - earlier for earlier, later in pairwise(at))
        parts = (schedule, update, step - schedule - update, told, framed, at[3] - at[0], decoded)
        samples.append(dict(zip(PARTS, parts, strict=True)))
    gc.unfreeze()
    return {part: median(sample[part] for sample in samples[WARM_UP:]) for part in PARTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sequences", nargs="*", type=int, default=[64, 256, 512])
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    print(f"{'sequences':>9}  " + "  ".join(f"{part:>12}" for part in PARTS) + "   ms")
    for num_sequences in arguments.sequences:
        found = measure(num_sequences, arguments.steps)
        print(f"{num_sequences:>9}  " + "  ".join(f"{1000 * found[part]:>12.3f}" for part in PARTS))


if __name__ == "__main__":
    main()
