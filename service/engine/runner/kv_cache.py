"""The KV cache holds one pair of tensors per layer, cut into blocks. It knows shapes and block ids; no sequences.

layer tensor   [ num_blocks + 1, kv_heads, block_size, head_dim ]
8-bit            [ .., head_dim + 4 ]: codes, then the row's scale as the four bytes of an fp32
scratch block    num_blocks: padding rows write there, padding of a block table reads there (and is masked)
window layers    if the cache has window blocks, a layer with a sliding window has num_window_blocks + 1 instead

Each row (one token, one head) is quantized by itself. So stored values do not depend on the batch either.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.weights.loading import DTYPES
from service.engine.kv_cache.kv_size import SCALE_BYTES, LayerShape, block_bytes, window_of
from service.engine.kv_cache.window import WindowPool
from service.engine.protocol.config import EngineConfig
from service.engine.runner.memory import lazy_zeros
from service.engine.sequences.sequence import Sequence as TokenSequence
from service.host import available_memory


def kv_dtype(config: EngineConfig) -> torch.dtype:
    """Returns what the keys and values of an engine are kept in."""
    return torch.int8 if config.kv_cache_dtype == "int8" else DTYPES[config.dtype]


def bytes_per_block(shapes: Sequence[LayerShape], block_size: int, dtype: torch.dtype) -> int:
    return block_bytes(shapes, block_size, dtype.itemsize)


def free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


class KVCache:
    """Owns the blocks' memory. The first write to a block takes its pages from the host."""

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        layer_devices: Sequence[torch.device] | None = None,
        num_window_blocks: int = 0,
        step_tokens: int = 1,
    ) -> None:
        """The model takes tokens on `device`; its layers lie there, or on `layer_devices`. With `num_window_blocks` the
        layers with a window have so many blocks, and a step has `step_tokens` at most."""
        self.shapes = tuple(shapes)
        self.num_blocks = num_blocks
        self.num_window_blocks = num_window_blocks
        self._step_tokens = step_tokens
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        devices = layer_devices or [device] * len(self.shapes)
        self.is_divided = len(set(devices)) > 1
        self.device_names = ",".join(dict.fromkeys(map(str, devices)))

        def blocks(layer: int, dim: int) -> Tensor:
            device, width = devices[layer], dim + (SCALE_BYTES if dtype is torch.int8 else 0)
            shape = (self.blocks_of(layer) + 1, self.shapes[layer].kv_heads, block_size, width)
            on_host = device.type == "cpu"
            return lazy_zeros(shape, dtype) if on_host else torch.zeros(shape, dtype=dtype, device=device)

        self.keys = [blocks(layer, shape.key_dim) for layer, shape in enumerate(self.shapes)]
        self.values = [blocks(layer, shape.value_dim) for layer, shape in enumerate(self.shapes)]

    def has_window_blocks(self, layer: int) -> bool:
        """Whether the layer's keys and values lie in window blocks."""
        return self.num_window_blocks > 0 and self.shapes[layer].window is not None

    def blocks_of(self, layer: int) -> int:
        """Returns the number of the layer's blocks, which is also its scratch block."""
        return self.num_window_blocks if self.has_window_blocks(layer) else self.num_blocks

    def windows(self) -> WindowPool | None:
        """Returns a new pool of the window blocks; None if there are none."""
        window = window_of(self.shapes)
        if not self.num_window_blocks or window is None:
            return None
        return WindowPool(self.num_window_blocks, window, self.block_size, self._step_tokens)

    def lend(self, sequence: TokenSequence, num_tokens: int) -> None:
        """Gives a sequence that no block manager knows the first blocks, and the window blocks in turn. The tokens that
        a window sees, and those of a step, must fit into the window blocks."""
        blocks = range(-(-num_tokens // self.block_size))
        sequence.block_table = list(blocks)
        if self.num_window_blocks:
            sequence.window_table = [block % self.num_window_blocks for block in blocks]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers."""
        return bytes_per_block(self.shapes, self.block_size, self.dtype)

    def write(self, layer: int, key: Tensor, value: Tensor, rows: Tensor) -> None:
        """Stores key and value [tokens, kv_heads, dim] at `rows` [tokens * kv_heads], see `slot_rows`.

        A NaN becomes a number. A masked position has weight 0, and 0 * NaN would carry one sequence's failure to the
        next owner of the block. The failing row still shows in its own logits, through the residual.
        """
        self._put(self.keys[layer], rows, torch.nan_to_num(key) if self.dtype is torch.int8 else key)
        self._put(self.values[layer], rows, torch.nan_to_num(value))

    def _put(self, cache: Tensor, rows: Tensor, new: Tensor) -> None:
        new = new.reshape(-1, new.shape[-1])
        stored = encode(new) if self.dtype is torch.int8 else new.to(self.dtype)
        cache.view(-1, cache.shape[-1]).index_copy_(0, rows, stored)

    def slot_rows(self, slots: Tensor, kv_heads: int) -> Tensor:
        """Returns the rows of the slots' heads in a layer's [blocks * kv_heads * block_size] view, token-major."""
        heads = torch.arange(kv_heads, device=slots.device)
        first = (slots // self.block_size) * (kv_heads * self.block_size) + slots % self.block_size
        return (first[:, None] + heads * self.block_size).reshape(-1)

    def block_rows(self, blocks: Tensor, kv_heads: int) -> Tensor:
        """Returns rows of a layer's [blocks * kv_heads] view for block tables [sequences, n], in the order for
        `gather`: sequence, head, block."""
        heads = torch.arange(kv_heads, device=blocks.device)
        return (blocks[:, None, :] * kv_heads + heads[None, :, None]).reshape(-1)

    def gather(self, layer: int, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Returns keys and values [count, tokens, dim] of `rows` (see `block_rows`), count = sequences * kv_heads;
        8-bit ones as fp32."""
        return self._gather(self.keys[layer], rows, count), self._gather(self.values[layer], rows, count)

    def _gather(self, cache: Tensor, rows: Tensor, count: int) -> Tensor:
        dim = cache.shape[-1]
        found = cache.view(-1, self.block_size * dim).index_select(0, rows).view(count, -1, dim)
        return decode(found) if self.dtype is torch.int8 else found


def encode(rows: Tensor) -> Tensor:
    """Returns [n, dim + 4] int8 for rows [n, dim]: codes round(x / s) with s = max|x| / 127, then s. The kernels do the
    same."""
    scale = rows.abs().amax(-1, keepdim=True).float().clamp_(min=1e-30) / 127
    return torch.cat(((rows.float() / scale).round().to(torch.int8), scale.view(torch.int8)), dim=-1)


def decode(rows: Tensor) -> Tensor:
    """Returns fp32 [.., dim] of encoded rows [.., dim + 4]."""
    codes, scale = rows[..., :-SCALE_BYTES], rows[..., -SCALE_BYTES:]
    return codes.float() * scale.contiguous().view(torch.float32)
