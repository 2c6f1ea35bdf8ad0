"""`python -m service.evaluation.host.measuring THREADS` measures this host and prints one line of JSON
(`measured.Measured`).

It takes under 5 s where the kernels are built. THREADS 0 takes the usable cores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Final

import msgspec

from service.engine.process.core import EngineCore
from service.engine.process.worker import build_core
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.limits import measured_limits
from service.engine.runner.loading.narrow import BLOCK_SIZE, CONTEXT, narrow, narrow_runner, step_seconds
from service.engine.runner.native.library import library, unavailable
from service.evaluation.host.machine import processor
from service.evaluation.host.measured import EngineTimes, Measured
from service.host import usable_cores

BATCHES: Final = (1, 8, 32)
PREFILL_ROWS: Final = 256
_CELL_SECONDS: Final = 0.12
_LAYERS: Final = (2, 10)
_STEPS: Final = 40
_LEAST: Final = 3
_BLOCKS: Final = 1024  # a whole window for each of the largest batch


def measure(threads: int) -> Measured:
    """Measures with so many threads."""
    started = time.perf_counter()
    limits = measured_limits(threads, (*BATCHES, PREFILL_ROWS), _CELL_SECONDS)
    kernels = library()
    return Measured(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        processor=processor().name,
        threads=threads,
        torch=limits.torch,
        kernels=kernels.level if kernels else "",
        no_kernels=unavailable() or "",
        cuda=limits.cuda,
        memory_read_gb_s=limits.memory_read,
        products=limits.products,
        engine=engine_times(limits.products["int8"]),
        seconds=time.perf_counter() - started,
    )


def engine_times(int8: dict[int, float]) -> EngineTimes:
    """Returns the times of a step beside its products, from two narrow models that differ in their layers. `int8` is
    the rate of products by rows, in 1e9 operations a second; the narrow products' share is taken out by it."""
    few, many = (narrow_runner(narrow(layers), _BLOCKS) for layers in _LAYERS)
    shape = narrow(1)

    def layer(rows: int, of_one: bool) -> float:
        at = (1, rows) if of_one else (rows, 1)
        seconds = (step_seconds(many, *at) - step_seconds(few, *at)) / (_LAYERS[1] - _LAYERS[0])
        return max(0.0, seconds - 2e-9 * rows * shape.layer_weights / int8[rows])

    layers = {rows: layer(rows, of_one=rows == PREFILL_ROWS) for rows in (*BATCHES, PREFILL_ROWS)}
    alone = layers[1]
    value = {rows: max(0.0, found - alone) / (rows * shape.row_values) for rows, found in layers.items()}
    config = EngineConfig(
        model_dir="", precision="int8", max_model_len=shape.context_window, block_size=BLOCK_SIZE, speculation=False
    )
    step = {}
    for batch in BATCHES:
        whole = _decode_seconds(build_core(config, few, _BLOCKS), batch)
        step[batch] = max(0.0, whole - _LAYERS[0] * layers[batch])
    return EngineTimes(step, alone, value)


def _decode_seconds(core: EngineCore, batch: int) -> float:
    """Returns the median time of a step in which all of `batch` decode. Their answers are as long as the window allows,
    so that the first has not ended when the last begins."""
    most = narrow(1).context_window - CONTEXT
    params = SamplingParams(max_tokens=most, min_tokens=most)
    for number in range(batch):
        core.add(Request(f"{number}", tuple(range(number, number + CONTEXT)), params, arrival=time.monotonic()))
    times: list[float] = []
    while core.has_work and (len(times) < _LEAST or (len(times) < _STEPS and sum(times) < _CELL_SECONDS)):
        started = time.perf_counter()
        outputs = core.step()
        if len(outputs) == batch:
            times.append(time.perf_counter() - started)
    return median(times)


def main(argv: Sequence[str]) -> None:
    threads = int(argv[1]) or usable_cores()
    sys.stdout.buffer.write(msgspec.json.encode(measure(threads)) + b"\n")


if __name__ == "__main__":
    main(sys.argv)
