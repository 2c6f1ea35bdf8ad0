"""This module describes a layer's KV blocks for the native kernels. It knows the cache and a layer's heads."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from service.engine.runner.kv_cache import KVCache
from service.engine.runner.native.library import KINDS, address
from service.engine.runner.native.structs import HeadsStruct


class Bias(Protocol):
    """`attention.DistanceBias`."""

    reversed: Tensor

    @property
    def reach(self) -> int: ...


class Spec(Protocol):
    """`attention.AttentionSpec`."""

    @property
    def scale(self) -> float: ...
    @property
    def window(self) -> int | None: ...
    @property
    def softcap(self) -> float | None: ...
    @property
    def bias(self) -> Bias | None: ...
    @property
    def sinks(self) -> Tensor | None: ...


def heads_struct(cache: KVCache, layer: int, heads: int, spec: Spec) -> HeadsStruct:
    """Returns the description of one layer of the cache and its attention by `heads` query heads. It is valid as long
    as the cache and `spec` live. Raises ValueError if the query heads cannot share the layer's heads evenly."""
    shape, bias = cache.shapes[layer], spec.bias
    if heads < 1 or heads % shape.kv_heads:
        raise ValueError(f"{heads} query heads cannot share {shape.kv_heads} heads of keys and values")
    if bias is not None and len(bias.reversed) != heads:
        raise ValueError(f"a bias of {len(bias.reversed)} heads for {heads} query heads")
    if spec.sinks is not None and spec.sinks.shape != (heads,):
        raise ValueError(f"sinks of shape {tuple(spec.sinks.shape)} for {heads} query heads")
    return HeadsStruct(
        heads,
        shape.kv_heads,
        shape.key_dim,
        shape.value_dim,
        cache.blocks_of(layer) + 1,
        cache.block_size,
        KINDS[cache.dtype],
        spec.window or 0,
        cache.has_window_blocks(layer),
        spec.scale,
        spec.softcap or 0.0,
        address(cache.keys[layer]),
        address(cache.values[layer]),
        0 if bias is None else bias.reach,
        None if bias is None else address(bias.reversed),
        address(spec.sinks),
    )
