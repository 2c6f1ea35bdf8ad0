"""LoRA adapters add to the outputs of linear layers in a model of torch modules, row by row.

    y = W x + scale * B (A x)

A hook on a layer adds to the rows of the step with an adapter and leaves the others unchanged. A layer that no adapter
changes has no hook. Sums are in fp32 and in an order of their own, so a row's result does not depend on the number of
rows. `native/src/adapters.h` does the same for the native decoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from models.weights.loading import LowRankWeights
from service.engine.runner.forwards.forward import CannotServe
from service.engine.runner.forwards.step import AdapterRows, Step
from service.engine.runner.native.library import library
from service.engine.runner.native.linear import NativeAdded, Placed

ROWS = 64
"""Rows per pass of pairwise sums, because a pass holds all its products in memory."""

AdapterWeights = Mapping[str, LowRankWeights]
"""Weights by the base's linear module."""


class Adapted:
    """Holds the adapters of one model, by name, and the rows with adapters of the current step."""

    def __init__(self, head: nn.Module, places: Mapping[str, tuple[nn.Module, int]]) -> None:
        """`places` maps the base's linear module to the module that computes it and the first of its outputs there.
        `head` gets the rows that need logits; every other module gets all rows."""
        self._head = head
        self._places = places
        self._hooks: dict[nn.Module, _Hook] = {}
        self._rows: tuple[Seq[AdapterRows], Seq[AdapterRows]] = ((), ())
        self._counts: tuple[int, int] | None = None

    def load_adapter(self, name: str, weights: AdapterWeights) -> None:
        """Loads an adapter. Raises CannotServe for an adapter of modules that this model does not have."""
        missing = sorted(weights.keys() - self._places.keys())
        if missing:
            raise CannotServe(f"no linear layer {missing[0]} to adapt")
        of_layers: dict[nn.Module, list[Placed]] = {}
        for module, each in weights.items():
            layer, first = self._places[module]
            of_layers.setdefault(layer, []).append((each, first))
        for layer, parts in of_layers.items():
            if layer not in self._hooks:
                self._hooks[layer] = _Hook(self, layer)
            self._hooks[layer].added[name] = _Added(parts)

    def unload_adapter(self, name: str) -> None:
        for layer, hook in list(self._hooks.items()):
            hook.added.pop(name, None)
            if not hook.added:
                hook.remove()
                del self._hooks[layer]

    @contextmanager
    def rows_of(self, step: Step) -> Iterator[None]:
        """Sets the rows' adapters while the step is computed."""
        self._rows = (step.adapter_rows, step.logit_adapter_rows)
        self._counts = (len(step.token_ids), len(step.logit_rows))
        try:
            yield
        finally:
            self._rows, self._counts = ((), ()), None

    @contextmanager
    def all_rows(self, adapter: str) -> Iterator[None]:
        """Sets one adapter for all rows, however many a layer gets."""
        whole = (AdapterRows(0, None, adapter),) if adapter else ()
        self._rows = (whole, whole)
        try:
            yield
        finally:
            self._rows = ((), ())

    def adapter_rows(self, layer: nn.Module, rows: int) -> Seq[AdapterRows]:
        """Returns the adapter rows of a layer that gets so many `rows`. Raises CannotServe if these are not the
        step's."""
        if self._counts is not None and rows != self._counts[layer is self._head]:
            raise CannotServe("a linear layer that the adapter changes is given other rows than the step's")
        return self._rows[layer is self._head]


class _Hook:
    def __init__(self, owner: Adapted, layer: nn.Module) -> None:
        self.added: dict[str, _Added] = {}
        self._owner = owner
        self.remove = layer.register_forward_hook(self).remove

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        x, y = inputs[0].flatten(0, -2), output.flatten(0, -2)
        adapted = [each for each in self._owner.adapter_rows(layer, len(x)) if each.adapter in self.added]
        if adapted:
            for each in adapted:
                y[each.rows] = self.added[each.adapter].to(x[each.rows], y[each.rows])
            return y.view(output.shape)
        return output


class _Added:
    """The addition of one adapter to one layer."""

    def __init__(self, parts: Seq[Placed]) -> None:
        self._parts = parts
        self._native = NativeAdded(parts) if parts[0][0].a.device.type == "cpu" else None

    def to(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns y [n, outputs] with the adapter, for rows x [n, in], in y's dtype."""
        rows, out = x.float().contiguous(), y.float().clone()
        kernels = library()
        if self._native is not None and kernels is not None:
            self._native.add(kernels, rows, out)
            return out.to(y.dtype)
        for weights, first in self._parts:
            columns = out[:, first : first + weights.b.shape[1]]
            columns += low_rank(rows, weights)
        return out.to(y.dtype)


def low_rank(x: Tensor, weights: LowRankWeights) -> Tensor:
    """Returns scale * B (A x) for rows x [n, in], fp32 [n, out]. On a CPU it only adds whole rows. Unlike a matrix
    product, this gives a row the same result for every n."""
    a, b = weights.a.float(), weights.b.float()
    if x.device.type != "cpu":
        return F.linear(x, a).mul_(weights.scale) @ b
    out = x.new_zeros(len(x), b.shape[1])
    for first in range(0, len(x), ROWS):
        rows = slice(first, first + ROWS)
        middle = weights.scale * _pairwise_sum(x[rows, None] * a)
        for values, row in zip(middle.T, b, strict=True):
            out[rows] += values[:, None] * row
    return out


def _pairwise_sum(x: Tensor) -> Tensor:
    """Sums over the last dimension, halves added to halves."""
    width = 1 << (x.shape[-1] - 1).bit_length()
    x = F.pad(x, (0, width - x.shape[-1]))
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width:]
    return x[..., 0]
