"""What a model of a shape needs: disk while it is imported, memory while it is converted and while it is served.

Serving is counted by the functions that admit a version at its load and that size its KV cache. It is arithmetic; it
knows no machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from models.manifest import QUANTIZED
from models.shapes import Shape
from service.deployments.memory import loaded_bytes
from service.runner.kv_size import LayerShape, block_bytes, choose_num_blocks
from service.settings import Settings

PROCESS_BYTES: Final = 288 << 20
"""A process that converts, without tensors: interpreter, torch and transformers."""
QUANTIZING_BYTES: Final = 12
"""Of each weight of the largest matrix while `models.quantize.quantize_rows` works: fp32, the quotient, the same
rounded. The bf16 weights are pages of a file, which the kernel can drop."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes. `download` goes to the hub's cache, 0 for a directory; `version` to the data directory, which for an 8-bit
    precision keeps the bf16 version too. `loading` is what admission asks for; `kv_cache` is the most that the cache
    grows to with use, of `kv_tokens` positions; `serving` is both."""

    download: int
    version: int
    importing_disk: int
    converting: int
    loading: int
    kv_cache: int
    kv_tokens: int

    @property
    def serving(self) -> int:
        return self.loading + self.kv_cache


def needs(shape: Shape, precision: str, settings: Settings, available: int) -> Needs:
    """Returns the needs of a checkpoint in bf16 that becomes a version, with `available` bytes of memory free."""
    version = original = shape.file_bytes("bf16")
    converting = PROCESS_BYTES
    if precision in QUANTIZED:
        version += shape.file_bytes(precision)
        converting += QUANTIZING_BYTES * shape.largest_tensor
    kv_cache, kv_tokens = _kv_cache(shape, settings, available)
    return Needs(
        original,
        version,
        original + version,
        converting,
        loaded_bytes(shape.file_bytes(precision)),
        kv_cache,
        kv_tokens,
    )


def kv_bytes_per_token(shape: Shape, settings: Settings) -> float:
    """Returns the bytes of one token's keys and values in all layers."""
    return _block_bytes(shape, settings) / settings.block_size


def _kv_cache(shape: Shape, settings: Settings, available: int) -> tuple[int, int]:
    """Returns the bytes and the positions of the cache that an engine would choose; of none where not one block
    fits."""
    size = _block_bytes(shape, settings)
    wanted = settings.max_num_seqs * shape.window
    try:
        blocks = choose_num_blocks(settings.kv_cache_bytes, size, wanted, settings.block_size, available)
    except MemoryError:
        return 0, 0
    return blocks * size, blocks * settings.block_size


def _block_bytes(shape: Shape, settings: Settings) -> int:
    layers = (LayerShape(shape.kv_heads, shape.head_dim, shape.head_dim),) * shape.layers
    return block_bytes(layers, settings.block_size, 1 if settings.kv_cache_dtype == "int8" else 2)
