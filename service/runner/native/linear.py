"""A linear layer on the native kernels, and how it gets into the library's models. Knows weights and rows."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from service.runner.memory import lazy_zeros
from service.runner.native.library import KINDS, Library, LinearStruct, address

REPLACED_TOLERANCE = 0.1
"""Root mean square difference of logits, in their standard deviations: bf16 rounding passes, a wrong layer does not."""


class NativeLinear(nn.Module):
    """The outputs of `parts` side by side: y = x @ weight.T + bias for rows [n, in], in x's dtype. A part is any module
    with a `weight` [out, in] of fp32, bf16 or int8 (then with `scale` [out]) and a `bias` or None; it is not
    needed afterwards. A row's result does not depend on the other rows. Raises ValueError for weights of mixed
    or other dtypes.
    """

    def __init__(self, library: Library, parts: Seq[Any]) -> None:
        super().__init__()
        dtypes = {part.weight.dtype for part in parts}
        if len(dtypes) > 1 or not dtypes <= set(KINDS):
            raise ValueError(f"no kernel for weights of {', '.join(sorted(map(str, dtypes)))}")
        self._library = library
        self.dtype = dtypes.pop()
        self.in_features: int = parts[0].weight.shape[1]
        self.out_features = sum(len(part.weight) for part in parts)
        packed, sums = _joined(library, parts) or library.pack([part.weight for part in parts])
        self.weight = torch.empty(self.out_features, self.in_features, dtype=self.dtype, device="meta")  # for its type
        self.packed, self.sums = nn.Buffer(packed, persistent=False), nn.Buffer(sums, persistent=False)
        self.scale = _buffer([part.scale for part in parts] if self.dtype is torch.int8 else [])
        biased = any(part.bias is not None for part in parts)
        self.bias = _buffer([_bias(part) for part in parts] if biased else [])

    @property
    def struct(self) -> LinearStruct:
        """What the kernels read; good as long as this layer lives."""
        tensors = (self.packed, self.scale, self.sums, self.bias)
        return LinearStruct(KINDS[self.dtype], self.out_features, self.in_features, *map(address, tensors))

    def forward(self, x: Tensor) -> Tensor:
        y = self._library.linear(self.struct, x.reshape(-1, self.in_features))
        return y.to(x.dtype).view(*x.shape[:-1], self.out_features)


def _joined(library: Library, parts: Seq[Any]) -> tuple[Tensor, Tensor] | None:
    """The form that parts have already taken for themselves, which they give up, where it can be joined."""
    taken: list[NativeLinear | None] = [getattr(part, "native", None) for part in parts]
    found = [one for one in taken if one is not None]
    if len(found) < len(parts) or any(one.out_features % library.panel for one in found[:-1]):
        return None
    for part in parts:
        part.release()
    if len(found) == 1:
        return found[0].packed, found[0].sums
    packed = lazy_zeros((sum(len(one.packed) for one in found),), torch.uint8)
    return torch.cat([one.packed for one in found], out=packed), torch.cat([one.sums for one in found])


def _buffer(tensors: Seq[Tensor]) -> Tensor | None:
    return nn.Buffer(torch.cat([t.detach().float() for t in tensors]), persistent=False) if tensors else None


def _bias(part: Any) -> Tensor:
    return torch.zeros(len(part.weight)) if part.bias is None else part.bias


@torch.inference_mode()
def replace_linears(model: transformers.PreTrainedModel, kernels: Library) -> bool:
    """Puts native layers in the place of the dense ones of the library's model, whose forward stays its own. Only if it
    then still gives the same logits; otherwise, False, the model is as it was: some models read a layer's weight
    instead of calling it."""
    dense = {name: module for name, module in model.named_modules() if type(module) in (nn.Linear, Conv1D)}
    if not dense or not {module.weight.dtype for module in dense.values()} <= set(KINDS):
        return False
    token_ids = torch.arange(8)[None] % model.config.get_text_config().vocab_size
    before = model(input_ids=token_ids, use_cache=False).logits.float()
    for name, module in dense.items():
        model.set_submodule(name, NativeLinear(kernels, (_as_part(module),)))
    try:
        after = model(input_ids=token_ids, use_cache=False).logits.float()
        same = float((after - before).square().mean().sqrt() / before.std()) < REPLACED_TOLERANCE
    except (AttributeError, RuntimeError, TypeError):
        same = False
    for name, module in dense.items() if not same else ():
        model.set_submodule(name, module)
    return same


def _as_part(module: Any) -> Any:
    weight = module.weight.T.contiguous() if isinstance(module, Conv1D) else module.weight
    return SimpleNamespace(weight=weight, bias=module.bias)
