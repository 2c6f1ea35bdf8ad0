"""This module writes a trained network as a transformers checkpoint.

The checkpoint has model.safetensors in bf16, config.json and generation_config.json.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from models.demo.network import Llama, Shape
from models.demo.tokenizer import BEGIN, END, PAD


def save_checkpoint(model: Llama, folder: Path) -> None:
    """Write the weights and the two configurations of `model` to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    _write(folder / "config.json", config(model.shape))
    _write(
        folder / "generation_config.json",
        {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD, "do_sample": False},
    )


def load_checkpoint(model: Llama, folder: Path) -> None:
    """Set the parameters of `model` to those that `save_checkpoint` wrote to `folder`, which are rounded to bf16."""
    model.load_state_dict(load_file(folder / "model.safetensors"))


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
