"""The blocks of a GGUF file by the names of the checkpoint that it was made of, with their bytes as they are.

Only rows change their places: those of queries and keys of `llama`, which lie in pairs in the file (`gguf_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from models.checkpoint.block_types import TYPES
from models.errors import InvalidSource
from models.imports import gguf_head
from models.imports.gguf_weights import Source, named_weights, unpermuted

if TYPE_CHECKING:
    from models.checkpoint.safetensors_file import Tensor
    from models.imports.gguf_head import GgufTensor
    from models.weights.blocks import BlockWeight

_FUSED: Final = ("gpt-oss",)
"""Architectures whose experts are one tensor of a checkpoint."""
_EMBEDDING: Final = "token_embd.weight"
_HEAD: Final = "output.weight"
_ROUTER: Final = ".ffn_gate_inp.weight"
_HALVES: Final = {"Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}
"""Where a block has fp16 numbers; others have one at its beginning."""
_INFINITY: Final = 0x7C00


def why_no_blocks(architecture: str, tensors: Mapping[str, GgufTensor]) -> str:
    """Returns why the matrices of a GGUF file are not computed as they are; "" if they are."""
    if architecture in _FUSED:
        return f"experts of {architecture} are not computed in blocks"
    may_be_floats = (_ROUTER, _EMBEDDING) if _HEAD in tensors else _ROUTER  # a tied embedding is the head
    matrices = {name: tensor for name, tensor in tensors.items() if len(tensor.shape) > 1}
    kinds = {tensor.type.name for name, tensor in matrices.items() if not name.endswith(may_be_floats)}
    if others := sorted(kinds - set(TYPES)):
        return f"it has matrices in {', '.join(others)}, and blocks are computed in {', '.join(TYPES)}"
    return ""


def block_weights(path: Path, config: Mapping[str, Any]) -> dict[str, BlockWeight]:
    """Returns the weights that are blocks, by transformers' modules, of a file that was unpacked with this config.json.
    Raises InvalidSource for a scale that is no number."""
    model = gguf_head.read(path)
    undo = unpermuted(config) if model.values["general.architecture"] == "llama" else {}
    weights: dict[str, BlockWeight] = {}
    for name, source in named_weights(model.tensors, config).items():
        if isinstance(source, Source) and source.tensor.type.name in TYPES:
            weight, module = _blocks(source), name.removesuffix(".weight")
            restore = undo.get(module.rpartition(".")[2])
            weights[module] = type(weight)(restore(weight.data), weight.type) if restore else weight
    return weights


def _blocks(source: Source) -> BlockWeight:
    import numpy as np
    import torch
    from gguf import GGML_QUANT_SIZES

    from models.weights.blocks import BlockWeight

    tensor, kind = source.tensor, source.tensor.type
    outputs, depth = source.shape
    inputs, size = GGML_QUANT_SIZES[kind]
    rows: Any = np.asarray(tensor.data).reshape(-1, outputs, depth // inputs * size)[source.expert or 0]
    _refuse_infinite(tensor.name, rows, kind.name, size)
    return BlockWeight(torch.from_numpy(rows.copy()), kind.name)


def require_numbers(path: Path, tensor: Tensor, kind: str) -> None:
    """Raises InvalidSource where the tensor of a version's file is no matrix of a type's whole blocks, or has a scale
    that is no number."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    from models.weights.conversion import read

    size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    if tensor.dtype != "U8" or len(tensor.shape) != 2 or tensor.shape[1] % size:
        raise InvalidSource(f"{tensor.name} is no matrix of whole blocks of {kind}, which have {size} bytes")
    _refuse_infinite(tensor.name, read(path, tensor.name).numpy(), kind, size)


def _refuse_infinite(name: str, rows: Any, kind: str, size: int) -> None:
    """Raises InvalidSource for a scale that is no number in blocks of so many bytes."""
    import numpy as np

    for place in _HALVES.get(kind, (0,)):
        halves = rows.reshape(-1, size)[:, place : place + 2].copy().view(np.uint16)
        if ((halves & _INFINITY) == _INFINITY).any():
            raise InvalidSource(f"{name} has a scale that is no number; the file is damaged")
