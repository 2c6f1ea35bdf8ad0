"""How the native kernels see a layer's KV blocks. Knows the cache and a layer's heads."""

from __future__ import annotations

from typing import Protocol

from service.runner.kv_cache import KVCache
from service.runner.native.library import KINDS, HeadsStruct, address


class Spec(Protocol):
    """`attention.AttentionSpec`."""

    @property
    def scale(self) -> float: ...
    @property
    def window(self) -> int | None: ...
    @property
    def softcap(self) -> float | None: ...


def heads_struct(cache: KVCache, layer: int, heads: int, spec: Spec) -> HeadsStruct:
    """One layer of the cache and its attention by `heads` query heads; good as long as the cache lives."""
    shape = cache.shapes[layer]
    return HeadsStruct(
        heads,
        shape.kv_heads,
        shape.key_dim,
        shape.value_dim,
        cache.block_size,
        KINDS[cache.dtype],
        spec.window or 0,
        spec.scale,
        spec.softcap or 0.0,
        address(cache.keys[layer]),
        address(cache.values[layer]),
    )
