"""A teacher gives each layer of a model rows of its choice and notes what the layer makes of them. It knows modules in
a list; no steps, no blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    import transformers

MOVED = 2.0**-16
"""A layer is also given its rows moved by up to such a part of themselves: more than another order of sums does."""

APART = 2.0**-10
"""The first layer's rows are moved too. An embedding's few digits lie between two codes of 8 bits now and then, and
then nobody's rounding is the right one."""
HEAD_ROWS = 8192
"""So many of the head's outputs are wide at a time."""


class NotLayered(Exception):
    """The model's layers do not read, one after the other, what the one before has computed."""


class Teacher:
    """Gives each layer the known `rows` before it. Where they are not known, it notes them: the first layer reads the
    embedding's, moved, and the others what the one before gives. With `spreads` it also gives each layer moved rows
    first."""

    def __init__(self, layers: Seq[nn.Module], rows: list[Tensor] | None, spreads: bool = False) -> None:
        self.rows = rows or []
        self.first = torch.empty(0)
        """The rows that the first layer would have read."""
        self.outputs: list[Tensor] = []
        self.spreads: list[float] = []
        """How far what each layer adds moved with its rows (see `distance`)."""
        self._layers, self._finds, self._spreads = layers, rows is None, spreads
        self._generator = torch.Generator().manual_seed(0)
        self._last: Tensor | None = None
        self._moved = torch.empty(0)

    @contextmanager
    def teaching(self) -> Iterator[None]:
        """Teaches during one forward of the model. Raises NotLayered if it had other ways than from layer to layer."""
        with ExitStack() as stack:
            for index, layer in enumerate(self._layers):
                stack.callback(layer.register_forward_pre_hook(self._before(index), with_kwargs=True).remove)
                stack.callback(layer.register_forward_hook(self._after(index)).remove)
            yield
        if len(self.outputs) != len(self._layers):
            raise NotLayered(f"{len(self.outputs)} of {len(self._layers)} layers were computed")

    def _before(self, index: int) -> Callable[..., Any]:
        def give(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            read: Any = args[0] if args else kwargs.get("hidden_states")
            if len(self.outputs) != index or (index and not torch.equal(_flat(read), _flat(self._last))):
                raise NotLayered(f"layer {index} does not read what the one before it gives")
            if index == 0:
                self.first = _flat(read).float()
                self.rows = [self._move(self.first, APART)] if self._finds else self.rows

            def instead(rows: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
                shaped = rows.to(read).view_as(read)
                return ((shaped, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": shaped})

            if self._spreads:
                moved = self._move(self.rows[index], MOVED)
                positional, named = instead(moved)
                out = _flat(_first(layer.forward(*positional, **named))).float()
                self._moved = out - moved.to(out.device)
            return instead(self.rows[index])

        return give

    def _move(self, rows: Tensor, most: float) -> Tensor:
        drawn = 2 * torch.rand(rows.shape, generator=self._generator) - 1
        return rows * (1 + most * drawn.to(rows.device))

    def _after(self, index: int) -> Callable[..., Any]:
        def take(_layer: nn.Module, _args: Any, output: Any) -> Any:
            self._last = _first(output)
            self.outputs.append(_flat(self._last))
            if self._finds:
                before = self.rows[index].to(self._last.device)
                self.rows.append(self.outputs[-1].float())
                added = self.rows[-1] - before
                self.spreads += [distance(self._moved, added, added)] if self._spreads else []
            if index + 1 < len(self._layers):
                return output
            last = self.rows[-1].to(self._last).view_as(self._last)
            return last if isinstance(output, Tensor) else (last, *output[1:])

        return take


def distance(rows: Tensor, expected: Tensor, scale: Tensor) -> float:
    """Returns how far rows [n, hidden] lie from the expected ones, in lengths of the rows of `scale`: the middle of the
    rows, because the first token's row is often a thousand times as long as the others."""
    return float(((rows - expected).norm(dim=-1) / scale.norm(dim=-1)).median())


def _first(output: Any) -> Tensor:
    found = output if isinstance(output, Tensor) else output[0]
    if not isinstance(found, Tensor):
        raise NotLayered(f"a layer gives {type(found).__name__}")
    return found


def _flat(rows: Any) -> Tensor:
    if not isinstance(rows, Tensor):
        raise NotLayered(f"a layer takes {type(rows).__name__}")
    return rows.reshape(-1, rows.shape[-1])


def layers_of(model: nn.Module, count: int) -> Seq[nn.Module]:
    """Returns the model's layers: the outermost list of so many. Raises NotLayered."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise NotLayered(f"the model has no list of {count} layers")


def is_exact(layer: nn.Module) -> bool:
    """Returns whether `in_fp32` rounds the rows of all of a layer's matrices."""
    linear = {id(each.weight) for each in layer.modules() if isinstance(each, nn.Linear)}
    return all(each.ndim < 2 or id(each) in linear for each in layer.parameters())


@contextmanager
def in_fp32(
    model: transformers.PreTrainedModel, layers: Seq[nn.Module], rounded: torch.dtype = torch.float32
) -> Iterator[None]:
    """Has the library's model compute in fp32. A layer's weights are wide as long as it computes, so one layer at a
    time takes memory, and a part of the head. Dense layers read rows that are `rounded`, as the kernels' products
    do."""
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    inner = [each for layer in layers for each in layer.parameters()]
    apart = {id(each) for each in (*inner, *embedding.parameters(), *head.parameters())}
    rest = _Widened(each for each in model.parameters() if id(each) not in apart)
    widened: dict[int, _Widened] = {}

    def widen(layer: nn.Module, _args: Any) -> None:
        widened[id(layer)] = _Widened(layer.parameters())

    def restore(layer: nn.Module, _args: Any, _output: Any) -> None:
        widened.pop(id(layer)).restore()

    def restore_all() -> None:
        for each in widened.values():
            each.restore()

    def by_parts(rows: Tensor) -> Tensor:
        wide = rows.to(rounded).float()
        logits = torch.cat([F.linear(wide, part.float()) for part in head.weight.split(HEAD_ROWS)], dim=-1)
        return logits if head.bias is None else logits + head.bias.float()

    def narrow(_linear: nn.Module, args: Any) -> Any:
        return (args[0].to(rounded).float(), *args[1:])

    with ExitStack() as stack:
        stack.callback(rest.restore)
        stack.callback(restore_all)
        stack.callback(embedding.register_forward_hook(lambda _module, _args, rows: rows.float()).remove)
        if isinstance(head, nn.Linear):
            head.forward = by_parts  # type: ignore[method-assign, assignment]
            stack.callback(delattr, head, "forward")
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(widen).remove)
            stack.callback(layer.register_forward_hook(restore).remove)
            for module in layer.modules() if rounded is not torch.float32 else ():
                if isinstance(module, nn.Linear):
                    stack.callback(module.register_forward_pre_hook(narrow).remove)
        yield


class _Widened:
    """Parameters in fp32, until they are restored."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self._kept = [(each, each.data) for each in parameters if each.is_floating_point()]
        for each, data in self._kept:
            each.data = data.float()

    def restore(self) -> None:
        for each, data in self._kept:
            each.data = data
