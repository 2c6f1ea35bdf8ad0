"""The limits of this machine: memory read, and matrix products by every way that serves. It knows no models or steps.

A decode step cannot be faster than its weights' bytes / memory read. A prefill cannot be faster than
2 * weights * tokens / the product's rate. Every way reads the same bytes as weights: one pattern that is a small number
in each format, more of it than the caches hold.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from models.weights.int4 import GROUPS, INT4
from service.engine.runner import linear
from service.engine.runner.memory import lazy_zeros
from service.engine.runner.native.library import KINDS, WEIGHT_ONLY, Library, address, library
from service.engine.runner.native.structs import LinearStruct
from service.host import available_memory

OUTPUTS: Final = 5632
DEPTH: Final = 2048
READ_BYTES: Final = 512 << 20
_FREE_SHARE: Final = 4  # of the memory that is free, one part in so many at most
_PATTERN: Final = 0x3C  # 60 as int8, 0.0115 as bf16 and as fp32
_PREPACKED_BYTES: Final = 128 << 20
DTYPES: Final = {"int8": torch.int8, "bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to multiply rows [n, DEPTH] by the weights [OUTPUTS, DEPTH] of layer number `at` of `layers`."""

    name: str
    multiply: Callable[[Tensor, int], object]
    layers: int

    def run(self, rows: Tensor) -> None:
        """Multiplies by every layer."""
        for at in range(self.layers):
            self.multiply(rows, at)

    def operations(self, rows: int) -> int:
        """Additions and multiplications of `run`."""
        return 2 * rows * OUTPUTS * DEPTH * self.layers


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run found: GB/s of memory read, and 1e9 operations a second by precision and number of rows."""

    memory_read: float
    products: dict[str, dict[int, float]]
    torch: str
    cuda: bool


@torch.inference_mode()
def measured_limits(threads: int, counts: Sequence[int], cell_seconds: float) -> Limits:
    """Measures the ways that serve, with so many threads, `cell_seconds` for each precision and number of rows."""
    torch.set_num_threads(threads)
    memory = weight_memory()
    read = memory_read(memory, 3)
    products = {name: rates(way, counts, cell_seconds) for name, way in serving_ways(memory).items()}
    return Limits(read, products, str(torch.__version__), torch.cuda.is_available())


def seconds(runs: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Returns the median time of each way; the ways alternate."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats + 1):
        for run, found in zip(runs, times, strict=True):
            started = time.perf_counter()
            run()
            found.append(time.perf_counter() - started)
    return [statistics.median(found[1:]) for found in times]


def weight_memory(most: int = READ_BYTES) -> Tensor:
    """Returns uint8 [most] of the pattern; less where less memory is free, but at least one layer in fp32."""
    size = max(4 * OUTPUTS * DEPTH, min(most, available_memory() // _FREE_SHARE))
    return lazy_zeros((size // 64 * 64,), torch.uint8, huge=True).fill_(_PATTERN)


def memory_read(memory: Tensor, repeats: int) -> float:
    """Returns the GB/s of summing the memory."""
    values = memory.view(torch.float32)
    return memory.nbytes / seconds([lambda: values.sum()], repeats)[0] / 1e9


def ways(memory: Tensor) -> list[Way]:
    """Returns the ways of this machine: torch's fp32, bf16 and int8 products, and our own."""
    possible = []
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16), ("int8", torch.int8)):
        possible.append(_onednn(memory) if dtype is torch.int8 else _torch(memory, f"{name} torch", dtype))
        if (kernels := library()) is not None:
            possible.append(_native(kernels, memory, f"{name} native", KINDS[dtype]))
    if kernels is not None and kernels.has_int4:
        possible.append(_native(kernels, memory, "int4 native", KINDS[INT4]))
    return possible


def ways_of(dtype: str, memory: Tensor) -> list[Way]:
    """Returns every way to multiply in this dtype, by its name in DTYPES; 8-bit weights without 8-bit rows are bf16's.
    Raises ValueError where there is none."""
    kernels, possible = library(), []
    if dtype != "int8":
        possible.append(_torch(memory, f"{dtype} torch", DTYPES[dtype]))
    elif kernels is None and linear.int8_kernel(torch.device("cpu")) == "onednn":
        possible.append(_onednn(memory))
    if kernels is not None:
        kinds = [KINDS[DTYPES[dtype]], *([WEIGHT_ONLY] if dtype == "bf16" else [])]
        possible += [_native(kernels, memory, f"{dtype} native", kind) for kind in kinds]
    if not possible:
        raise ValueError(f"no {dtype} products on this host")
    return possible


def serving_ways(memory: Tensor) -> dict[str, Way]:
    """Returns the way that serves each precision here, by the precision's name: our own kernels where they are built,
    else torch's operations, as `service.engine.runner.linear` chooses them."""
    kernels = library()
    if kernels is not None:
        kinds = {name: KINDS[dtype] for name, dtype in DTYPES.items()} | {"int8-weight": WEIGHT_ONLY}
        kinds["int4"] = KINDS[INT4] if kernels.has_int4 else kinds["int8"]
        return {name: _native(kernels, memory, f"{name} native", kind) for name, kind in kinds.items()}
    dense = {name: _torch(memory, f"{name} torch", DTYPES[name]) for name in ("bf16", "fp32")}
    eight = _onednn(memory) if linear.int8_kernel(torch.device("cpu")) == "onednn" else dense["bf16"]
    return {"int8": eight, **dense, "int8-weight": dense["bf16"], "int4": eight}


def _layers(memory: Tensor, dtype: torch.dtype) -> list[Tensor]:
    values = memory.view(dtype)
    count = values.numel() // (OUTPUTS * DEPTH)
    return list(values[: count * OUTPUTS * DEPTH].view(count, OUTPUTS, DEPTH).unbind(0))


def _torch(memory: Tensor, name: str, dtype: torch.dtype) -> Way:
    weights = _layers(memory, dtype)
    return Way(name, lambda rows, at: F.linear(rows.to(dtype), weights[at]), len(weights))


def _onednn(memory: Tensor) -> Way:
    weights = _layers(memory[: max(OUTPUTS * DEPTH, min(len(memory), _PREPACKED_BYTES))], torch.int8)
    packed = [torch.ops.onednn.qlinear_prepack(weight, None) for weight in weights]
    scale, zeros, reach = torch.ones(OUTPUTS), torch.zeros(OUTPUTS, dtype=torch.int32), linear.activation_reach()

    def multiply(rows: Tensor, at: int) -> Tensor:
        codes, row_scale = linear.quantize_rows(rows, reach)
        return linear.multiply(codes, reach + 1, packed[at], scale, zeros).mul_(row_scale)

    return Way("int8 oneDNN", multiply, len(packed))


def _native(kernels: Library, memory: Tensor, name: str, kind: int) -> Way:
    """The pattern is valid packed weights of every kind, so nothing is packed."""
    group = GROUPS[0] if kind == KINDS[INT4] else 0
    size = kernels.packed_bytes(kind, OUTPUTS, DEPTH, group)
    scale, sums = torch.ones(OUTPUTS), torch.zeros(OUTPUTS, dtype=torch.int32)

    def multiply(rows: Tensor, at: int) -> Tensor:
        packed = memory[at * size : (at + 1) * size]
        parts = (address(packed), address(scale), address(sums))
        return kernels.linear(LinearStruct(kind, OUTPUTS, DEPTH, *parts, None, 0, None, None, group, 1), rows)

    return Way(name, multiply, len(memory) // size)


def rates(way: Way, counts: Sequence[int], cell_seconds: float) -> dict[int, float]:
    """Returns 1e9 operations a second for each number of rows. Each is the median of three runs, over as many layers
    as fit into `cell_seconds` in all; the runs go on through the memory, so that a few rows find nothing cached."""
    return {count: _rate(way, torch.ones(count, DEPTH), cell_seconds / 3) for count in counts}


def _rate(way: Way, rows: Tensor, run_seconds: float) -> float:
    way.multiply(rows, 0)
    started = time.perf_counter()
    way.multiply(rows, way.layers - 1)
    one = time.perf_counter() - started
    chosen = max(1, min(way.layers, int(run_seconds / one)))
    times, at = [], 0
    for _ in range(3):
        started = time.perf_counter()
        for number in range(at, at + chosen):
            way.multiply(rows, number % way.layers)
        times.append(time.perf_counter() - started)
        at += chosen
    return 2e-9 * len(rows) * OUTPUTS * DEPTH * chosen / statistics.median(times)
