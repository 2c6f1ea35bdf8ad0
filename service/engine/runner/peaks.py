"""The peaks of this host: operations a second by dtype and bytes a second from memory, with an engine's threads.

They are measured once, in under a second, and kept in one file of the data directory: the next engine on the same
processor or device, with the same threads, torch and kernels, reads them. Without a file they are kept as long as the
process lives. The module knows no models and no steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch import Tensor

from models.manifest import QUANTIZED
from models.repository.disk import durable
from service.engine.protocol.work import Peaks
from service.engine.runner import limits
from service.engine.runner.linear import int8_kernel
from service.engine.runner.memory import lazy_zeros
from service.engine.runner.native.library import library
from service.host import processor_name

_ROWS: Final = (16, 64, 256, 512)
_SECONDS: Final = 0.15
"""For each way to multiply, and for reading memory."""
_READ_BYTES: Final = 192 << 20
_CUDA_ROWS: Final = 4096


class _Known(msgspec.Struct, frozen=True):
    """The peaks of one host, by dtype, and its memory's."""

    bytes_per_second: float
    flops: dict[str, float]


_of_this_process: Final = dict[str, _Known]()


def products_dtype(precision: str, dtype: str, device: torch.device) -> str:
    """Returns the dtype in which a version's linear layers multiply."""
    if precision not in QUANTIZED:
        return dtype
    kernel = int8_kernel(device)
    has_int8 = kernel == "native" or (precision != "file" and kernel != "dequantized")
    has_int8 &= precision != "int8-weight"
    return "int8" if has_int8 else "bf16"


def peaks_of(dtype: str, device: torch.device, file: str) -> tuple[Peaks | None, str]:
    """Returns the peaks for products of `dtype`, kept in `file` ("" is the memory of this process) or measured now; or
    None and the reason why they cannot be measured."""
    host, every = _host(device), _read(file)
    known = every.get(host)
    if known is None or dtype not in known.flops:
        try:
            known = _measured(dtype, device, known)
        except (RuntimeError, MemoryError, OSError, ValueError) as error:
            return None, f"the peak of {dtype} products could not be measured: {error or type(error).__name__}"
        _keep(file, {**_read(file), host: known})
    return Peaks(dtype=dtype, flops=known.flops[dtype], bytes_per_second=known.bytes_per_second), ""


@torch.inference_mode()
def _measured(dtype: str, device: torch.device, known: _Known | None) -> _Known:
    best = _cuda_flops(dtype, device) if device.type == "cuda" else _cpu_flops(dtype)
    if known is None:
        return _Known(_bytes_per_second(device), {dtype: best})
    return _Known(known.bytes_per_second, {**known.flops, dtype: best})


def _cpu_flops(dtype: str) -> float:
    """Returns the best rate of all ways of this host to multiply in this dtype, also ways that do not serve."""
    memory = limits.weight_memory(0)
    ways = limits.ways_of(dtype, memory)
    return max(_best_rate(way) for way in ways)


def _best_rate(way: limits.Way) -> float:
    """Returns the best operations a second over numbers of rows, as far as the time allows."""
    best, deadline = 0.0, time.perf_counter() + _SECONDS
    way.multiply(torch.ones(_ROWS[0], limits.DEPTH), 0)  # warms up
    for count in _ROWS:
        rows, operations = torch.ones(count, limits.DEPTH), 2.0 * count * limits.OUTPUTS * limits.DEPTH
        if best and operations / best > deadline - time.perf_counter():
            break
        until = time.perf_counter() + _SECONDS / len(_ROWS)
        best = max(best, operations / _seconds(way.multiply, rows))
        while time.perf_counter() < until:
            best = max(best, operations / _seconds(way.multiply, rows))
    return best


def _seconds(multiply: Callable[[Tensor, int], object], rows: Tensor) -> float:
    started = time.perf_counter()
    multiply(rows, 0)
    return time.perf_counter() - started


def _bytes_per_second(device: torch.device) -> float:
    """Returns the best rate of summing memory."""
    memory = lazy_zeros((_READ_BYTES,), torch.uint8, huge=True).fill_(1).view(torch.float32)
    memory = memory.to(device)
    return max(memory.nbytes / seconds for seconds in _repeated(memory.sum, device))


def _cuda_flops(dtype: str, device: torch.device) -> float:
    if dtype == "int8":
        raise ValueError("no int8 products on this device")
    kind = limits.DTYPES[dtype]
    left = torch.ones(_CUDA_ROWS, _CUDA_ROWS, dtype=kind, device=device)
    return max(2.0 * _CUDA_ROWS**3 / seconds for seconds in _repeated(lambda: left @ left, device))


def _repeated(run: Callable[[], object], device: torch.device) -> Sequence[float]:
    """Returns the times of runs, the first one left out, as many as the time allows."""
    seconds: list[float] = []
    deadline = time.perf_counter() + _SECONDS
    while len(seconds) < 3 or time.perf_counter() < deadline:
        started = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def _host(device: torch.device) -> str:
    """Returns a name for everything that the figures depend on."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    kernels = library()
    build = "none" if kernels is None else kernels.build
    return f"{processor_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}, kernels {build}"


def _read(file: str) -> dict[str, _Known]:
    if not file:
        return _of_this_process
    try:
        return msgspec.json.decode(Path(file).read_bytes(), type=dict[str, _Known])
    except (OSError, msgspec.DecodeError):
        return {}


def _keep(file: str, known: dict[str, _Known]) -> None:
    """Writes the file by one rename. Of two engines that measure at once, the last one's figures stay."""
    if not file:
        _of_this_process.update(known)
        return
    with suppress(OSError):
        durable.replace(Path(file), msgspec.json.format(msgspec.json.encode(known)))
