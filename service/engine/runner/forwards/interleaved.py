"""An interleaved linear layer gives queries, keys and values head by head: outputs [kv_heads, group + 2, head_dim].

Our forwards want all queries, then all keys, then all values. `group` queries belong to one head of keys and values.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from models.weights.int4 import Int4Weight
from models.weights.loading import Outliers


def of_heads(fused: Any, heads: int, kv_heads: int, head_dim: int) -> tuple[Any, ...]:
    """Returns the parts of the layer, as views: the queries of each head of keys and values, then each key, then each
    value."""
    group = heads // kv_heads
    parts = ((0, group), (group, group + 1), (group + 1, group + 2))
    return tuple(
        _outputs(fused, slice(((group + 2) * head + first) * head_dim, ((group + 2) * head + last) * head_dim))
        for first, last in parts
        for head in range(kv_heads)
    )


def order_of(heads: int, kv_heads: int, head_dim: int) -> Tensor:
    """Returns for each output of the parts side by side its index among the layer's own outputs [out]."""
    group = heads // kv_heads
    outputs = torch.arange(kv_heads * (group + 2) * head_dim).view(kv_heads, group + 2, head_dim)
    return torch.cat([outputs[:, :group].flatten(), outputs[:, group].flatten(), outputs[:, group + 1].flatten()])


def _outputs(layer: Any, some: slice) -> Any:
    """Returns some outputs of a linear layer, in the form of a blueprint's."""
    bias, scale = getattr(layer, "bias", None), getattr(layer, "scale", None)
    outliers = getattr(layer, "outliers", None)
    return SimpleNamespace(
        weight=_rows(layer.weight, some),
        bias=None if bias is None else bias[some],
        scale=None if scale is None else scale[some],
        weight_only=getattr(layer, "weight_only", False),
        hadamard=getattr(layer, "hadamard", 1),
        outliers=None if outliers is None else Outliers(outliers.columns, outliers.weight[some]),
    )


def _rows(weight: Tensor | Int4Weight, some: slice) -> Tensor | Int4Weight:
    if isinstance(weight, Int4Weight):
        return Int4Weight(weight.codes[some], weight.group_scale[some], weight.group_base[some])
    return weight[some]
