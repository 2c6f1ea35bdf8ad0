"""This test measures the machine's limits, memory read and matrix products, and our kernels' share of them.

`python -m loadtest.limits` prints both in one run, as medians of alternating repetitions. A decode step cannot be
faster than weight bytes / memory read. A prefill cannot be faster than 2 * weights * tokens / the product's rate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import torch
from torch.nn import functional as F

from service.host import usable_cores
from service.runner import linear
from service.runner.native.library import library
from service.runner.native.linear import NativeLinear

ROWS = (1, 2, 4, 8, 16, 32, 128, 1024)
OUTPUTS, DEPTH = 5632, 2048
READ_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Way:
    """One way to multiply `rows` [n, DEPTH]; `layers` copies of the weights, together larger than the caches."""

    name: str
    run: Callable[[torch.Tensor], None]
    layers: int


def seconds(runs: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Returns the median time of each way; the ways alternate."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats + 1):
        for run, found in zip(runs, times, strict=True):
            started = time.perf_counter()
            run()
            found.append(time.perf_counter() - started)
    return [statistics.median(found[1:]) for found in times]


def memory_read(repeats: int) -> float:
    """Returns the GB/s of summing a tensor that no cache holds."""
    much = torch.ones(READ_BYTES // 4)
    return READ_BYTES / seconds([lambda: _ignore(much.sum())], repeats)[0] / 1e9


def ways() -> list[Way]:
    """Returns the ways of this machine: torch's fp32, bf16 and int8 products, and our own."""
    codes = torch.randint(-127, 128, (OUTPUTS, DEPTH), dtype=torch.int8)
    found = []
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        weights = [codes.to(dtype) for _ in range(max(1, 128 * 2**20 // codes.to(dtype).nbytes))]
        name = str(dtype).removeprefix("torch.")
        if dtype is torch.int8:
            found.append(Way(f"{name} oneDNN", _onednn(weights), len(weights)))
        else:
            found.append(Way(f"{name} torch", _torch(weights), len(weights)))
        if (run := _native(weights)) is not None:
            found.append(Way(f"{name} native", run, len(weights)))
    return found


def _torch(weights: list[torch.Tensor]) -> Callable[[torch.Tensor], None]:
    def run(rows: torch.Tensor) -> None:
        rows = rows.to(weights[0].dtype)
        for weight in weights:
            F.linear(rows, weight)

    return run


def _onednn(weights: list[torch.Tensor]) -> Callable[[torch.Tensor], None]:
    packed = [torch.ops.onednn.qlinear_prepack(weight, None) for weight in weights]
    scale, zeros, reach = torch.ones(OUTPUTS), torch.zeros(OUTPUTS, dtype=torch.int32), linear.activation_reach()

    def run(rows: torch.Tensor) -> None:
        codes, row_scale = linear.quantize_rows(rows, reach)
        for one in packed:
            linear.multiply(codes, reach + 1, one, scale, zeros).mul_(row_scale)

    return run


def _native(weights: list[torch.Tensor]) -> Callable[[torch.Tensor], None] | None:
    kernels = library()
    if kernels is None:
        return None
    layers = [NativeLinear(kernels, [SimpleNamespace(weight=w, scale=torch.ones(OUTPUTS), bias=None)]) for w in weights]

    def run(rows: torch.Tensor) -> None:
        for layer in layers:
            layer(rows)

    return run


def _ignore(value: object) -> None:
    """The work was to make it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"{options.threads} threads; memory read {memory_read(options.repeats):.1f} GB/s; weights [{OUTPUTS}, {DEPTH}]"
    )
    chosen = ways()
    print("GOP/s by rows | " + " | ".join(way.name for way in chosen))
    for count in ROWS:
        rows = torch.randn(count, DEPTH)
        runs = [partial(way.run, rows) for way in chosen]
        taken = seconds(runs, options.repeats if count < 128 else 2)
        work = [2 * count * OUTPUTS * DEPTH * way.layers / 1e9 for way in chosen]
        print(f"{count} | " + " | ".join(f"{w / t:.1f}" for w, t in zip(work, taken, strict=True)), flush=True)


if __name__ == "__main__":
    main()
