"""What this machine can do at most, measured as a program: memory read, and matrix products in int8, bf16 and fp32.

python -m loadtest.bench.limits        one line of JSON: GB/s, and 1e9 multiply-adds times two a second
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Final

import torch

READ_BYTES: Final = 1 << 30
SIZE: Final = (1024, 2048, 2048)
REPEATS: Final = 5


def best_seconds(work: Callable[[], object]) -> float:
    """The least of REPEATS runs after one to warm up: a limit is what the machine can do undisturbed."""
    work()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def memory_read() -> float:
    """GB/s of a sum over 1 GiB of 64-bit integers, by all threads."""
    data = torch.ones(READ_BYTES // 8, dtype=torch.int64)
    return READ_BYTES / best_seconds(data.sum) / 1e9


def gemm(dtype: torch.dtype) -> float:
    """GFLOP/s of a linear layer's product."""
    rows, depth, width = SIZE
    activations, weights = torch.ones(rows, depth, dtype=dtype), torch.ones(width, depth, dtype=dtype)
    return 2e-9 * rows * depth * width / best_seconds(lambda: torch.nn.functional.linear(activations, weights))


def int8_gemm() -> float:
    """GOP/s of oneDNN's product of unsigned 8-bit activations and signed 8-bit weights, prepacked."""
    rows, depth, width = SIZE
    weights = torch.ops.onednn.qlinear_prepack(torch.ones(width, depth, dtype=torch.int8), [rows, depth])
    activations = torch.ones(rows, depth, dtype=torch.uint8)
    scales, zeros = torch.ones(width), torch.zeros(width, dtype=torch.int64)

    def product() -> object:
        return torch.ops.onednn.qlinear_pointwise(
            activations, 1.0, 128, weights, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )

    return 2e-9 * rows * depth * width / best_seconds(product)


def measure() -> dict[str, float]:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with torch.inference_mode():
        return {
            "memory_read_gb_s": memory_read(),
            "int8_gemm_gop_s": int8_gemm(),
            "bf16_gemm_gflop_s": gemm(torch.bfloat16),
            "fp32_gemm_gflop_s": gemm(torch.float32),
        }


if __name__ == "__main__":
    print(json.dumps(measure()))
