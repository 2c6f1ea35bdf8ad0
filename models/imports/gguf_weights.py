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
    from torch import Tensor

    from models.imports.gguf_head import GgufTensor

_ROUTER: Final = "ffn_gate_inp"
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
_GEMMA: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Names of Gemma 2 and 3, which have norms behind attention and MLP too."""
_GPT_OSS: Final = {
    **{name: _BLOCK[name] for name in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")},
    "post_attention_norm": "post_attention_layernorm",
    _ROUTER: "mlp.router",
}
_BLOCKS: Final = {"gemma2": _BLOCK | _GEMMA, "gemma3_text": _BLOCK | _GEMMA, "gpt_oss": _GPT_OSS}
"""The tensors of a block by the model's type; others have _BLOCK."""
_SINKS: Final = "attn_sinks.weight"
_OF_EXPERTS: Final = {"ffn_gate_exps": "gate", "ffn_up_exps": "up", "ffn_down_exps": "down"}
"""Tensors [experts, out, in] to the part of an expert."""
_FUSED: Final = {"gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"), "down_proj": ("ffn_down_exps",)}
"""The fused tensors of gpt-oss, which files of llama.cpp have in parts."""
_NORMS_HOLD_ONE_MORE: Final = frozenset({"gemma", "gemma2", "gemma3_text"})
"""The library multiplies by 1 + weight, llama.cpp by what the file holds."""
_MXFP4_BYTES: Final = 17
_NOT_A_NUMBER: Final = 255
ROTARY_FACTORS: Final = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Source:
    """A weight's tensor in the file, and its number among the experts in it, if it is one's."""

    tensor: GgufTensor
    expert: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape[0 if self.expert is None else 1 :]

    def read(self) -> Tensor:
        """Returns the weight in fp32."""
        return dequantized(self.tensor, self.expert)


@dataclass(frozen=True, slots=True)
class Zeros:
    """A bias that the library's class has and the file has not."""

    shape: tuple[int, ...]

    def read(self) -> Tensor:
        import torch

        return torch.zeros(self.shape)


@dataclass(frozen=True, slots=True)
class Fused:
    """Tensors [experts, out, in] that make one [experts, in, out], or biases [experts, out] that make one of them: gate
    and up have its outputs in turn. Raises InvalidSource for parts of different shapes, or of another number of
    dimensions."""

    parts: tuple[GgufTensor, ...]
    is_bias: bool

    def __post_init__(self) -> None:
        shapes = {part.shape for part in self.parts}
        if len(shapes) > 1 or len(min(shapes)) != (2 if self.is_bias else 3):
            raise InvalidSource(f"{self.parts[0].name} has shapes that do not fit: {sorted(shapes)}")

    @property
    def shape(self) -> tuple[int, ...]:
        experts, outputs, *inputs = self.parts[0].shape
        return (experts, *inputs, outputs * len(self.parts))

    def read(self) -> Tensor:
        """Returns the tensor in bf16."""
        import torch

        out = torch.empty(self.shape, dtype=torch.bfloat16)
        for expert, own in enumerate(out):
            for turn, part in enumerate(self.parts):
                values = dequantized(part, expert)
                own[..., turn :: len(self.parts)] = values if self.is_bias else values.T
        return out


Weight = Source | Fused | Zeros


def write_weights(
    named: Mapping[str, Weight], config: Mapping[str, Any], architecture: str, target: Path, progress: Progress
) -> None:
    from models.checkpoint.safetensors_file import Tensor as Stored
    from models.weights.conversion import PLAIN_FORMAT, bytes_of, write_shards

    _require_whole(target, {name: source.shape for name, source in named.items()})
    undo = unpermuted(config) if architecture == "llama" else {}
    one_more = config["model_type"] in _NORMS_HOLD_ONE_MORE

    def content(name: str) -> memoryview:
        import torch

        weight = named[name].read()
        part = name.rpartition(".")[0].rpartition(".")[2]
        if part in undo:
            weight = undo[part](weight)
        if one_more and name.endswith("norm.weight"):
            weight = weight - 1
        return bytes_of(weight.to(torch.bfloat16))

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
    expected = _shapes_in_files(model)
    for name, shape in expected.items():
        if name not in stored and not (name == "lm_head.weight" and config.tie_word_embeddings):
            raise InvalidSource(f"the file has no tensor for {name}")
        if name in stored and stored[name] != shape:
            raise InvalidSource(f"{name} is {list(stored[name])} in the file; its sizes say {list(shape)}")
    if unknown := sorted(stored.keys() - expected.keys()):
        raise InvalidSource(f"the file has a tensor for {unknown[0]}, which its sizes do not have")


def _shapes_in_files(model: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the tensors of a model's files: those of the library's model, but each expert by itself
    where files do not have them fused."""
    from models.weights import experts
    from models.weights.skeleton import experts_of

    names = experts.FAMILIES.get(model.config.model_type, experts.ExpertNames())
    if names.fused:
        return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    router = f"{experts.LIBRARY_PLACE}.{names.router}."
    shapes: dict[str, tuple[int, ...]] = {
        name: (linear.out_features, linear.in_features) for name, linear in experts_of(model).items()
    }
    for name, tensor in model.state_dict().items():
        if ".experts." not in name:
            shapes[name.replace(router, f"{names.router_of('')}.")] = tuple(tensor.shape)
    return shapes


def named_weights(tensors: Mapping[str, GgufTensor], config: Mapping[str, Any]) -> dict[str, Weight]:
    """Returns the tensors by transformers' names, each expert's by itself or fused, as the family's files have them.
    Raises InvalidSource for a tensor that the architecture does not have."""
    from models.weights import experts

    model_type = str(config["model_type"])
    names = experts.FAMILIES.get(model_type)
    weights: dict[str, Weight] = {}
    left = {name: tensor for name, tensor in tensors.items() if name != ROTARY_FACTORS}
    if names and names.fused:
        for layer in range(config["num_hidden_layers"]):
            weights |= _fused(left, layer)
    for name, tensor in left.items():
        block = re.fullmatch(r"blk\.(\d{1,4})\.(\w+)\.weight", name)
        if names and not names.fused and block and block[2] in _OF_EXPERTS:
            part = getattr(names, _OF_EXPERTS[block[2]])
            modules = names.parts(f"model.layers.{block[1]}.", tensor.shape[0], part)
            weights |= {f"{module}.weight": Source(tensor, number) for number, module in enumerate(modules)}
        elif names and not names.fused and block and block[2] == _ROUTER:
            weights[f"{names.router_of(f'model.layers.{block[1]}.')}.weight"] = Source(tensor)
        else:
            weights[_name(name, _BLOCKS.get(model_type, _BLOCK))] = Source(tensor)
    for name in list(weights) if model_type == "llama" else ():  # the library's biases are of all four projections
        if name.endswith("q_proj.bias"):
            weights.setdefault(name.replace("q_proj", "o_proj"), Zeros((int(config["hidden_size"]),)))
    return weights


def _fused(left: dict[str, GgufTensor], layer: int) -> dict[str, Weight]:
    """Takes what makes a layer's fused tensors and its sinks out of `left`. Returns them by transformers' names."""
    weights: dict[str, Weight] = {}
    for fused, parts in _FUSED.items():
        for kind, suffix in (("weight", ""), ("bias", "_bias")):
            of_kind = [f"blk.{layer}.{part}.{kind}" for part in parts]
            if all(name in left for name in of_kind):
                taken = tuple(left.pop(name) for name in of_kind)
                weights[f"model.layers.{layer}.mlp.experts.{fused}{suffix}"] = Fused(taken, kind == "bias")
    if (sinks := left.pop(f"blk.{layer}.{_SINKS}", None)) is not None:
        weights[f"model.layers.{layer}.self_attn.sinks"] = Source(sinks)
    return weights


def _name(name: str, blocks: Mapping[str, str]) -> str:
    """Returns transformers' name of a tensor. Raises InvalidSource for one that the architecture does not have."""
    block = re.fullmatch(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)", name)
    if block and block[2] in blocks:
        return f"model.layers.{block[1]}.{blocks[block[2]]}.{block[3]}"
    if name not in _WHOLE:
        raise InvalidSource(f"the file has a tensor {name[:80]!r}, which its architecture does not have here")
    return _WHOLE[name]


def unpermuted(config: Mapping[str, Any]) -> dict[str, Callable[[Tensor], Tensor]]:
    """llama.cpp rotates neighbouring dimensions, transformers the two halves of a head. Files of the architecture
    `llama` have the rows of queries and keys in the former order. Returns what restores the rows, by projection."""

    def restored(weight: Tensor, heads: int) -> Tensor:
        return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)

    return {
        "q_proj": partial(restored, heads=config["num_attention_heads"]),
        "k_proj": partial(restored, heads=config["num_key_value_heads"]),
    }


def dequantized(tensor: GgufTensor, number: int | None = None) -> Tensor:
    """Returns a tensor, or the one of this number in it, in fp32. Raises InvalidSource for a scale that is no
    number."""
    import numpy as np
    import torch
    from gguf import dequantize

    shape, data = tensor.shape, tensor.data
    if number is not None:
        shape, data = shape[1:], data.reshape(shape[0], -1, data.shape[-1])[number]
    if tensor.type.name == "MXFP4" and (data.reshape(-1, _MXFP4_BYTES)[:, 0] == _NOT_A_NUMBER).any():
        raise InvalidSource(f"{tensor.name} has a scale that is no number; the file is damaged")
    values = np.require(dequantize(data, tensor.type), np.float32, ["C", "W"])
    return torch.from_numpy(values).view(shape)
