"""The size of a KV cache: the bytes of a block and the number of blocks. It is arithmetic; it knows no tensors.

It imports no torch, so that the needs of a model can be told where none is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FREE_MEMORY_SHARE = 0.4
SCALE_BYTES = 4
"""Of each row of 8-bit keys or values: its scale."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer's heads in the cache. Key and value may differ in size (multi-head latent attention)."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def dims(self) -> tuple[int, int]:
        return self.key_dim, self.value_dim


def block_bytes(shapes: Sequence[LayerShape], block_size: int, value_bytes: int) -> int:
    """Returns the bytes of one block of all layers. `value_bytes` of 1 is 8-bit: each row has a scale too."""
    scales = SCALE_BYTES if value_bytes == 1 else 0
    rows = ((shape.kv_heads, dim * value_bytes + scales) for shape in shapes for dim in shape.dims)
    return block_size * sum(heads * row for heads, row in rows)


def choose_num_blocks(kv_cache_bytes: int, block_bytes: int, tokens_wanted: int, block_size: int, free: int) -> int:
    """Returns the number of blocks. `kv_cache_bytes` > 0 decides alone. Otherwise it is the number for `tokens_wanted`,
    within a share of `free` bytes. Raises MemoryError if not one block fits."""
    wanted = -(-tokens_wanted // block_size)
    blocks = (
        kv_cache_bytes // block_bytes if kv_cache_bytes else min(wanted, int(free * FREE_MEMORY_SHARE) // block_bytes)
    )
    if blocks < 1:
        raise MemoryError(
            f"the KV cache needs at least {block_bytes} bytes for one block; raise its size or free memory"
        )
    return blocks
