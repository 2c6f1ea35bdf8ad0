"""The limits of this machine, as one line of JSON: memory read, and the best product of each kind on long rows.

python -m loadtest.bench.limits
"""

from __future__ import annotations

import json
from typing import Final

import torch

from service.engine.runner.limits import DEPTH, memory_read, seconds, ways, weight_memory
from service.host import usable_cores

PREFILL_ROWS: Final = 1024
REPEATS: Final = 3
WEIGHT_BYTES: Final = 128 << 20
KINDS: Final = {
    "int8": "int8_gemm_gop_s",
    "int4": "int8_gemm_gop_s",  # decoded to 8 bits, and multiplied so
    "bfloat16": "bf16_gemm_gflop_s",
    "float32": "fp32_gemm_gflop_s",
}


def products(memory: torch.Tensor) -> dict[str, float]:
    """1e9 operations a second, the best of the ways of each kind: a limit is what some way reaches."""
    rows, chosen = torch.randn(PREFILL_ROWS, DEPTH), ways(memory)
    taken = seconds([lambda way=way: way.run(rows) for way in chosen], REPEATS)  # type: ignore[misc]
    best: dict[str, float] = {}
    for way, took in zip(chosen, taken, strict=True):
        key = KINDS[way.name.split()[0]]
        best[key] = max(best.get(key, 0.0), 1e-9 * way.operations(PREFILL_ROWS) / took)
    return best


def measure() -> dict[str, float]:
    """On the threads that engines use."""
    torch.set_num_threads(usable_cores())
    with torch.inference_mode():
        memory = weight_memory()
        return {"memory_read_gb_s": memory_read(memory, REPEATS), **products(memory[:WEIGHT_BYTES])}


if __name__ == "__main__":
    print(json.dumps(measure()))
