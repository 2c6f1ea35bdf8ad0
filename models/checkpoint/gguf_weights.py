"""The tensors of a GGUF file become the weights of the checkpoint that it was made of.

llama.cpp's own package dequantizes the blocks. The names are written here; a tensor that has none is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from models.errors import InvalidSource
from models.progress import Progress

if TYPE_CHECKING:
    from gguf import ReaderTensor
    from torch import Tensor

_WHOLE: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OF_EXPERTS: Final = {"ffn_gate_exps": "gate", "ffn_up_exps": "up", "ffn_down_exps": "down"}
"""Tensors [experts, out, in] to the part of an expert."""
_ROUTER: Final = "ffn_gate_inp"
ROTARY_FACTORS: Final = "rope_freqs.weight"


def shape_of(tensor: ReaderTensor) -> tuple[int, ...]:
    return tuple(int(size) for size in reversed(tensor.shape))


@dataclass(frozen=True, slots=True)
class Source:
    """A weight's tensor in the file, and its number among the experts in it, if it is one's."""

    tensor: ReaderTensor
    expert: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.tensor)[0 if self.expert is None else 1 :]

    def read(self) -> Tensor:
        """Returns the weight in fp32."""
        return dequantized(self.tensor, self.expert)


def write_weights(
    named: Mapping[str, Source], config: Mapping[str, Any], architecture: str, target: Path, progress: Progress
) -> None:
    from models.checkpoint.safetensors_file import Tensor as Stored
    from models.conversion import PLAIN_FORMAT, bytes_of, write_shards

    _require_whole(target, {name: source.shape for name, source in named.items()})
    undo = _unpermuted(config) if architecture == "llama" else {}

    def content(name: str) -> memoryview:
        import torch

        weight = named[name].read()
        part = name.rpartition(".")[0].rpartition(".")[2]
        return bytes_of((undo[part](weight) if part in undo else weight).to(torch.bfloat16))

    planned = [Stored(name, "BF16", source.shape) for name, source in named.items()]
    write_shards(target, planned, content, progress, PLAIN_FORMAT)


def _require_whole(directory: Path, stored: Mapping[str, tuple[int, ...]]) -> None:
    """Raises InvalidSource for tensors that the model of config.json has and the file has not, or in another shape."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    except Exception as error:  # transformers raises anything for sizes that it cannot build
        raise InvalidSource(f"the file's sizes are of no model that can be built: {str(error)[:200]}") from error
    wanted = _shapes_in_files(model)
    for name, shape in wanted.items():
        if name not in stored and not (name == "lm_head.weight" and config.tie_word_embeddings):
            raise InvalidSource(f"the file has no tensor for {name}")
        if name in stored and stored[name] != shape:
            raise InvalidSource(f"{name} is {list(stored[name])} in the file; its sizes say {list(shape)}")
    if unknown := sorted(stored.keys() - wanted.keys()):
        raise InvalidSource(f"the file has a tensor for {unknown[0]}, which its sizes do not have")


def _shapes_in_files(model: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the tensors of a model's files: those of the library's model, but each expert by itself."""
    from models import experts
    from models.skeleton import experts_of

    names = experts.FAMILIES.get(model.config.model_type, experts.ExpertNames())
    router = f"{experts.LIBRARY_PLACE}.{names.router}."
    found: dict[str, tuple[int, ...]] = {
        name: (linear.out_features, linear.in_features) for name, linear in experts_of(model).items()
    }
    for name, tensor in model.state_dict().items():
        if ".experts." not in name:
            found[name.replace(router, f"{names.router_of('')}.")] = tuple(tensor.shape)
    return found


def named_weights(tensors: Mapping[str, ReaderTensor], config: Mapping[str, Any]) -> dict[str, Source]:
    """Returns the tensors by transformers' names, each expert's by itself."""
    from models import experts

    names = experts.FAMILIES.get(str(config["model_type"]))
    found: dict[str, Source] = {}
    for name, tensor in tensors.items():
        block = re.fullmatch(r"blk\.(\d{1,4})\.(\w+)\.weight", name)
        if name == ROTARY_FACTORS:
            continue
        if names and block and block[2] in _OF_EXPERTS:
            part = getattr(names, _OF_EXPERTS[block[2]])
            modules = names.parts(f"model.layers.{block[1]}.", shape_of(tensor)[0], part)
            found |= {f"{module}.weight": Source(tensor, number) for number, module in enumerate(modules)}
        elif names and block and block[2] == _ROUTER:
            found[f"{names.router_of(f'model.layers.{block[1]}.')}.weight"] = Source(tensor)
        else:
            found[_name(name)] = Source(tensor)
    return found


def _name(name: str) -> str:
    """Returns transformers' name of a tensor. Raises InvalidSource for one that the architectures do not have."""
    block = re.fullmatch(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)", name)
    if block and block[2] in _BLOCK:
        return f"model.layers.{block[1]}.{_BLOCK[block[2]]}.{block[3]}"
    if name not in _WHOLE:
        raise InvalidSource(f"the file has a tensor {name[:80]!r}, which its architecture does not have here")
    return _WHOLE[name]


def _unpermuted(config: Mapping[str, Any]) -> dict[str, Callable[[Tensor], Tensor]]:
    """llama.cpp rotates neighbouring dimensions, transformers the two halves of a head. Files of the architecture
    `llama` have the rows of queries and keys in the former order. Returns what restores the rows, by projection."""

    def restored(weight: Tensor, heads: int) -> Tensor:
        return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)

    return {
        "q_proj": partial(restored, heads=config["num_attention_heads"]),
        "k_proj": partial(restored, heads=config["num_key_value_heads"]),
    }


def dequantized(tensor: ReaderTensor, number: int | None = None) -> Tensor:
    """Returns a tensor, or the one of this number in it, in fp32."""
    import numpy as np
    import torch
    from gguf import dequantize

    shape, data = shape_of(tensor), tensor.data
    if number is not None:
        shape, data = shape[1:], data.reshape(shape[0], -1, data.shape[-1])[number]
    values = np.require(dequantize(data, tensor.tensor_type), np.float32, ["C", "W"])
    return torch.from_numpy(values).view(shape)
