"""This module writes a trained network as a transformers checkpoint.

The checkpoint has the weights in bf16, in shards of 15 MiB where they are larger, config.json and
generation_config.json.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipe.network import Llama, Shape
from recipe.state import SHARD_BYTES, shards
from recipe.tokenizer import BEGIN, END, PAD


def save_checkpoint(model: Llama, folder: Path) -> None:
    """Write the weights and the two configurations of `model` to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
    }
    _save_weights(state, folder)
    _write(folder / "config.json", config(model.shape))
    _write(
        folder / "generation_config.json",
        {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD, "do_sample": False},
    )


def _save_weights(state: dict[str, Tensor], folder: Path) -> None:
    """One file, or the Hub's sharded layout where that file would be larger than SHARD_BYTES."""
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    groups = shards(state, SHARD_BYTES)
    if len(groups) == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = [f"model-{at + 1:05d}-of-{len(groups):05d}.safetensors" for at in range(len(groups))]
    for name, group in zip(names, groups, strict=True):
        save_file(group, folder / name, metadata={"format": "pt"})
    places = {tensor: name for name, group in zip(names, groups, strict=True) for tensor in group}
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    _write(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": places})


def load_checkpoint(model: Llama, folder: Path) -> None:
    """Set the parameters of `model` to those that `save_checkpoint` wrote to `folder`, which are rounded to bf16."""
    model.load_state_dict(load_tensors(folder))


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors that `save_checkpoint` wrote to `folder`, by name."""
    state: dict[str, Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        state |= load_file(path)
    return state


def config(shape: Shape) -> dict[str, object]:
    """The config.json of LlamaForCausalLM with the sizes of `shape`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.window,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "rms_norm_eps": shape.rms_norm_eps,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": PAD,
    }


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
