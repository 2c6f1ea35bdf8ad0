"""The size of a KV cache: the bytes of a block and the numbers of blocks. It is arithmetic; it knows no tensors.

Layers with a sliding window read the last tokens only. Where that is worth it, they have fewer blocks than the others:
window blocks, which `engine.kv_cache.window` gives to blocks for a while.

It imports no torch, so that the needs of a model can be told where none is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.engine.kv_cache.window import blocks_needed

FREE_MEMORY_SHARE = 0.4
_GAIN = 1.25  # blocks, for which window blocks are worth it
SCALE_BYTES = 4
"""Of each row of 8-bit keys or values: its scale."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer's heads in the cache. Key and value may differ in size (multi-head latent attention). `window` is the
    number of tokens that a token sees; None is all."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None

    @property
    def dims(self) -> tuple[int, int]:
        return self.key_dim, self.value_dim


def block_bytes(shapes: Iterable[LayerShape], block_size: int, value_bytes: int) -> int:
    """Returns the bytes of one block of all layers. `value_bytes` of 1 is 8-bit: each row has a scale too."""
    scales = SCALE_BYTES if value_bytes == 1 else 0
    rows = ((shape.kv_heads, dim * value_bytes + scales) for shape in shapes for dim in shape.dims)
    return block_size * sum(heads * row for heads, row in rows)


@dataclass(frozen=True, slots=True)
class KVBytes:
    """The bytes of one block in the layers without a window, and in those with one."""

    full: int
    window: int = 0

    @classmethod
    def of(cls, shapes: Sequence[LayerShape], block_size: int, value_bytes: int) -> KVBytes:
        with_window = [shape for shape in shapes if shape.window is not None]
        in_all = block_bytes(shapes, block_size, value_bytes)
        in_windows = block_bytes(with_window, block_size, value_bytes)
        return cls(in_all - in_windows, in_windows)

    @property
    def whole(self) -> int:
        return self.full + self.window


@dataclass(frozen=True, slots=True)
class KVBlocks:
    """The numbers of blocks. `window_blocks` is 0 where every layer has all blocks."""

    blocks: int
    window_blocks: int = 0

    def bytes_of(self, size: KVBytes) -> int:
        return self.blocks * size.full + (self.window_blocks or self.blocks) * size.window


@dataclass(frozen=True, slots=True)
class Demand:
    """What an engine may run at once: `sequences` of at most `max_model_len` tokens, and `step_tokens` in one step."""

    sequences: int
    max_model_len: int
    step_tokens: int
    block_size: int

    @property
    def blocks(self) -> int:
        """The blocks of all sequences at their longest."""
        return -(-self.sequences * self.max_model_len // self.block_size)

    def window_blocks(self, window: int, sequences: int) -> int:
        """The most window blocks that so many sequences need at once."""
        return blocks_needed(window, self.block_size, self.step_tokens, sequences)


def window_of(shapes: Sequence[LayerShape]) -> int | None:
    """Returns the widest window of the layers that have one; None if no layer has one."""
    return max((shape.window for shape in shapes if shape.window is not None), default=None)


def choose_blocks(kv_cache_bytes: int, size: KVBytes, window: int | None, demand: Demand, free: int) -> KVBlocks:
    """Returns the numbers of blocks. `kv_cache_bytes` > 0 decides alone. Otherwise they are those for `demand`, within
    a share of `free` bytes. Raises MemoryError if not one block fits.

    Where the room is too small for the whole demand, layers with a `window` get window blocks, for half of the room at
    most: twice as many as all sequences can need at once, because the other half holds the ends of chats that pause; or
    as many as they can need; or as many as half of the room holds. They get none if that makes less than a quarter more
    blocks.
    """
    room, demanded = kv_cache_bytes or int(free * FREE_MEMORY_SHARE), demand.blocks
    alike = room // size.whole
    if alike < 1:
        raise MemoryError(
            f"the KV cache needs at least {size.whole} bytes for one block; raise its size or free memory"
        )
    if alike >= demanded:
        return KVBlocks(alike if kv_cache_bytes else demanded)
    if window is None:
        return KVBlocks(alike)
    most, needed = (room // 2 if size.full else room) // size.window, demand.window_blocks(window, demand.sequences)
    window_blocks = next((count for count in (2 * needed, needed) if count <= most), most)
    blocks = min(demanded, (room - window_blocks * size.window) // size.full) if size.full else demanded
    if window_blocks < demand.window_blocks(window, 1) or blocks < _GAIN * alike:
        return KVBlocks(alike)
    return KVBlocks(blocks, min(blocks, (room - blocks * size.full) // size.window))
