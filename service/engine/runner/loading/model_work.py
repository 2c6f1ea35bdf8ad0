"""This module reads what a token costs from a version's files: sizes from config.json, weights from the headers.

It reads shapes and no tensors, so it is the same for every forward and every precision. A weight belongs to a linear
layer if it is a matrix and neither an embedding nor the head. Adapters are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from models.checkpoint.safetensors_file import FLOATS, ITEM_BYTES, Tensor, read_header
from models.errors import InvalidSource
from models.manifest import ADAPTER_FILES
from service.engine.kv_cache.kv_size import LayerShape
from service.engine.protocol.work import ModelWork

_EMBEDDING: Final = re.compile(r"embed|wte|wpe|\bshared\b|position|attention_bias|lm_head")
_HEAD: Final = re.compile(r"lm_head|embed_out")
_EXPERT: Final = re.compile(r"\.experts\.")
_ENCODER: Final = re.compile(r"^(model\.|transformer\.)?encoder\.")
_OVER_ENCODED: Final = re.compile(r"EncDecAttention\.[kv]\.|encoder_attn\.[kv]_proj\.")
"""A decoder's products over the encoder's output: made once for each encoded position."""
_BESIDE: Final = (".outlier_weight", ".group_scale", ".group_base")
"""Columns of `llm-int8`, and what groups of 4-bit weights share: read with a matrix that counts its weights itself."""
_HIDDEN: Final = ("hidden_size", "n_embd", "d_model")
_HEADS: Final = ("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(slots=True)
class _Sums:
    """Weights, and the bytes that they take in memory."""

    weights: int = 0
    bytes: int = 0

    def add(self, weights: int, stored: int) -> None:
        self.weights += weights
        self.bytes += stored


def model_work(directory: str, shapes: Sequence[LayerShape], kv_bytes: int, float_bytes: int) -> ModelWork:
    """Returns what a token of the version in `directory` costs. `shapes` and `kv_bytes` are of the KV cache; a weight
    that is not 8-bit takes `float_bytes`. Returns zeros for a version whose files do not say it."""
    try:
        config = _config(Path(directory))
        tensors = [tensor for path in weight_files(directory) for tensor in read_header(path)]
        return _work(config, tensors, shapes, kv_bytes, float_bytes)
    except (OSError, ValueError, InvalidSource):
        return ModelWork()


def _work(
    config: Mapping[str, object], tensors: Sequence[Tensor], shapes: Sequence[LayerShape], kv_bytes: int, width: int
) -> ModelWork:
    layers, experts, encoder = _Sums(), _Sums(), _Sums()
    hidden, vocabulary, heads = _size(config, _HIDDEN), _size(config, ("vocab_size",)), _size(config, _HEADS)
    for tensor in tensors:
        stored = _stored(tensor, width)
        if tensor.name.endswith(_BESIDE):
            (experts if _EXPERT.search(tensor.name) else layers).add(0, stored)
        elif not _is_linear(tensor, vocabulary):
            continue
        elif _EXPERT.search(tensor.name):
            experts.add(_weights(tensor), stored)
        elif _ENCODER.search(tensor.name) or _OVER_ENCODED.search(tensor.name):
            encoder.add(_weights(tensor), stored)
        else:
            layers.add(_weights(tensor), stored)
    used, known = (_size(config, ("num_experts_per_tok",)), _size(config, _EXPERTS)) if experts.weights else (0, 1)
    return ModelWork(
        weights=layers.weights + experts.weights * used // known,
        pair_flops=2 * heads * sum(shape.key_dim + shape.value_dim for shape in shapes),
        hidden=hidden,
        head_weights=hidden * vocabulary,
        encoder_weights=encoder.weights,
        encoder_pair_flops=_encoder_pair_flops(config, hidden) if encoder.weights else 0,
        layer_bytes=layers.bytes,
        head_bytes=_head_bytes(tensors, vocabulary, width) or hidden * vocabulary * width,
        encoder_bytes=encoder.bytes,
        expert_bytes=experts.bytes,
        active_expert_bytes=experts.bytes * used // known,
        kv_bytes=kv_bytes,
    )


def _is_linear(tensor: Tensor, vocabulary: int) -> bool:
    if _EMBEDDING.search(tensor.name) or vocabulary in tensor.shape:
        return False
    is_expert = _EXPERT.search(tensor.name) and len(tensor.shape) > 1 and not tensor.name.endswith("bias")
    return bool(is_expert) or (tensor.name.endswith(".weight") and len(tensor.shape) == 2)


def _weights(tensor: Tensor) -> int:
    """Returns the weights of a matrix; U8 holds 4-bit ones in pairs."""
    return tensor.size * (2 if tensor.dtype == "U8" else 1)


def _stored(tensor: Tensor, width: int) -> int:
    return tensor.size * (width if tensor.dtype in FLOATS else ITEM_BYTES[tensor.dtype])


def _head_bytes(tensors: Iterable[Tensor], vocabulary: int, width: int) -> int:
    """Returns the bytes of the head, which may be the embedding's own matrix."""
    found = [each for each in tensors if each.name.endswith(".weight") and vocabulary in each.shape]
    own = [each for each in found if _HEAD.search(each.name)]
    return max((_stored(each, width) for each in own or found), default=0)


def _encoder_pair_flops(config: Mapping[str, object], hidden: int) -> int:
    heads = _size(config, ("encoder_attention_heads", *_HEADS))
    dim = _size(config, ("d_kv", "head_dim"), hidden // heads)
    return 4 * _size(config, ("encoder_layers", "num_layers", "num_hidden_layers")) * heads * dim


def _config(directory: Path) -> Mapping[str, object]:
    """Returns the text model's part of config.json."""
    whole = json.loads((directory / "config.json").read_bytes())
    part = whole.get("text_config")
    return {**whole, **part} if isinstance(part, dict) else dict(whole)


def weight_files(directory: str | Path) -> list[Path]:
    """Returns the files of a version's weights, without those of its adapter."""
    return [path for path in sorted(Path(directory).glob("*.safetensors")) if path.name not in ADAPTER_FILES]


def _size(config: Mapping[str, object], names: Sequence[str], default: int = 0) -> int:
    """Returns the first of these sizes that the config has. Raises ValueError where there is none."""
    found = next((value for name in names if isinstance(value := config.get(name), int) and value > 0), default)
    if not found:
        raise ValueError(f"config.json does not say {names[0]}")
    return found
