"""GGUF files for tests, version 3: metadata and tensors as llama.cpp's converter writes them for a checkpoint."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor

ALIGNMENT: Final = 32
F32: Final = 0
Q4_0: Final = 2
Q8_0: Final = 8
NAMES: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
EXPERT: Final = re.compile(r"model\.layers\.(\d+)\.\w+\.experts\.(\d+)\.(\w+)\.weight")
PARTS: Final = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
Stored = tuple[int, tuple[int, ...], bytes]
"""Type, shape and bytes of a tensor."""


def f32(tensor: Tensor) -> Stored:
    return F32, tuple(tensor.shape), tensor.float().contiguous().numpy().tobytes()


def q8_0(tensor: Tensor) -> Stored:
    """Blocks of 32: a scale in fp16, then 32 codes."""
    blocks = tensor.float().reshape(-1, 32)
    scale = (blocks.abs().amax(1) / 127).half()
    codes = (blocks / scale.float().clamp(min=1e-9)[:, None]).round().clamp(-127, 127).to(torch.int8)
    data = torch.cat((scale.view(torch.uint8).view(-1, 2), codes.view(torch.uint8)), dim=1)
    return Q8_0, tuple(tensor.shape), data.numpy().tobytes()


def q4_0(tensor: Tensor) -> Stored:
    """Blocks of 32: a scale in fp16, then 16 bytes of which the lower halves hold the first 16 codes."""
    blocks = tensor.float().reshape(-1, 32)
    scale = (blocks.abs().amax(1) / 8).half()
    codes = (blocks / scale.float().clamp(min=1e-9)[:, None] + 8).round().clamp(0, 15).to(torch.uint8)
    halves = codes[:, :16] | codes[:, 16:] << 4
    return Q4_0, tuple(tensor.shape), torch.cat((scale.view(torch.uint8).view(-1, 2), halves), dim=1).numpy().tobytes()


def of_checkpoint(
    directory: Path, path: Path, form: Callable[[Tensor], Stored] = f32, **changes: Any
) -> dict[str, Tensor]:
    """Writes the checkpoint in `directory` as the GGUF file `path`, its matrices in a format. `changes` go over the
    metadata; None leaves a key out, and `__` stands for a dot. Returns the checkpoint's tensors."""
    config = json.loads((directory / "config.json").read_text())
    stored = load_file(directory / "model.safetensors")
    weights = dict(sorted(stored.items(), key=lambda item: [int(part) for part in re.findall(r"\d+", item[0])]))
    kinds = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe"}
    architecture = kinds.get(config["model_type"], config["model_type"])
    tensors = {}
    stacked: dict[str, list[Tensor]] = {}
    for name, tensor in weights.items():
        if expert := EXPERT.fullmatch(name):
            stacked.setdefault(f"blk.{expert[1]}.ffn_{PARTS[expert[3]]}_exps.weight", []).append(tensor)
            continue
        if architecture == "llama":
            tensor = _permuted(name, tensor, config)
        tensors[_name(name)] = form(tensor) if tensor.dim() > 1 else f32(tensor)
    tensors |= {name: form(torch.stack(parts)) for name, parts in stacked.items()}
    metadata = _metadata(config, architecture, directory) | {key.replace("__", "."): v for key, v in changes.items()}
    write(path, {key: value for key, value in metadata.items() if value is not None}, tensors)
    return weights


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Stored]) -> None:
    head, data = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))], b""
    for key, value in metadata.items():
        head += [_text(key), _value(value)]
    for name, (kind, shape, content) in tensors.items():
        data += b"\0" * (-len(data) % ALIGNMENT)
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += [_text(name), sizes, struct.pack("<IQ", kind, len(data))]
        data += content
    begin = b"".join(head)
    path.write_bytes(begin + b"\0" * (-len(begin) % ALIGNMENT) + data)


def _name(name: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    module, _, kind = name.rpartition(".")
    if module in whole:
        return f"{whole[module]}.{kind}"
    _, _, number, rest = module.split(".", 3)
    return f"blk.{number}.{NAMES[rest]}.{kind}"


def _permuted(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Neighbouring dimensions are rotated together: rows d and d + half of a head come side by side."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.view(config[heads], 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _metadata(config: Mapping[str, Any], architecture: str, directory: Path) -> dict[str, Any]:
    told = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = told["model"]["vocab"] | {each["content"]: each["id"] for each in told["added_tokens"]}
    special = {each["id"] for each in told["added_tokens"]}
    tokens = sorted(vocabulary, key=lambda token: int(vocabulary[token]))
    tokens += [f"[PAD{at}]" for at in range(len(tokens), config["vocab_size"])]
    theta = (config.get("rope_parameters") or config)["rope_theta"]
    own = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim"),
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(theta),
    }
    if active := config.get("num_experts_per_tok"):
        own |= {"expert_count": config["num_local_experts"], "expert_used_count": active}
        own["expert_feed_forward_length"] = config.get("moe_intermediate_size")
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in own.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if at in special else 1 for at in range(len(tokens))],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": max(special),
        "tokenizer.chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:",
    }


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if value and isinstance(value[0], int):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
