"""GGUF files for tests, version 3: metadata and tensors as llama.cpp's converter writes them for a checkpoint."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from models.imports import gguf_tokenizer

ALIGNMENT: Final = 32
F32: Final = 0
BF16: Final = 30
MXFP4: Final = 39
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
GEMMA_NAMES: Final = {
    **NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GPT_OSS_NAMES: Final = {**NAMES, "post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"}
NAMES_OF: Final = {"gemma2": GEMMA_NAMES, "gemma3": GEMMA_NAMES, "gpt-oss": GPT_OSS_NAMES}
KINDS: Final = {
    "mistral": "llama",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss",
}
EXPERT: Final = re.compile(r"model\.layers\.(\d+)\.\w+\.experts\.(\d+)\.(\w+)\.weight")
PARTS: Final = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
Stored = tuple[int, tuple[int, ...], bytes]
"""Type, shape and bytes of a tensor."""


def f32(tensor: Tensor) -> Stored:
    return F32, tuple(tensor.shape), tensor.float().contiguous().numpy().tobytes()


def bf16(tensor: Tensor) -> Stored:
    return BF16, tuple(tensor.shape), tensor.bfloat16().contiguous().view(torch.uint8).numpy().tobytes()


def mxfp4(blocks: Tensor, scales: Tensor) -> Stored:
    """`blocks` uint8 [experts, out, blocks, 16] and `scales` uint8 of a published checkpoint, whose bytes hold
    neighbours. A block of llama.cpp is the scale, then 16 bytes of which the lower halves hold the first 16 codes."""
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    halves = codes[..., :16] | codes[..., 16:] << 4
    data = torch.cat((scales[..., None], halves), dim=-1)
    return MXFP4, (*scales.shape[:2], scales.shape[2] * 32), data.contiguous().numpy().tobytes()


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
    directory: Path, path: Path, form: Callable[[Tensor], Stored] = f32, parts: int = 0, **changes: Any
) -> dict[str, Tensor]:
    """Writes the checkpoint in `directory` as the GGUF file `path`, its matrices in a format, in `parts` if given.
    `changes` go over the metadata; None leaves a key out, `__` stands for a dot. Returns the checkpoint's tensors."""
    config = json.loads((directory / "config.json").read_text())
    stored = load_file(directory / "model.safetensors")
    weights = dict(sorted(stored.items(), key=lambda item: [int(part) for part in re.findall(r"\d+", item[0])]))
    architecture = KINDS.get(config["model_type"], config["model_type"])
    tensors: dict[str, Stored] = {}
    stacked: dict[str, list[Tensor]] = {}
    for name, tensor in weights.items():
        if expert := EXPERT.fullmatch(name):
            stacked.setdefault(f"blk.{expert[1]}.ffn_{PARTS[expert[3]]}_exps.weight", []).append(tensor)
            continue
        if ".experts." in name:
            tensors |= _fused(name, weights, form)
            continue
        if architecture == "llama":
            tensor = _permuted(name, tensor, config)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor.float() + 1
        is_matrix = tensor.dim() > 1 and not name.endswith(("router.weight", "norm.weight"))
        tensors[_name(name, architecture)] = form(tensor) if is_matrix else f32(tensor)
    tensors |= {name: form(torch.stack(parts)) for name, parts in stacked.items()}
    metadata = _metadata(config, architecture, directory) | {key.replace("__", "."): v for key, v in changes.items()}
    told = {key: value for key, value in metadata.items() if value is not None}
    if parts:
        write_parts(path, told, tensors, parts)
    else:
        write(path, told, tensors)
    return weights


def _fused(name: str, weights: Mapping[str, Tensor], form: Callable[[Tensor], Stored]) -> dict[str, Stored]:
    """gpt-oss: the fused tensors of a layer hold gate and up in turn. Those in bf16 are [experts, in, out], packed ones
    and biases have outputs in the second dimension."""
    module, _, kind = name.rpartition(".")
    layer, part = module.split(".")[2], "gate_up" if kind.startswith("gate_up") else "down"
    names = ("gate", "up") if part == "gate_up" else ("down",)

    def own(tensor: Tensor, turn: int) -> Tensor:
        return tensor[:, turn :: len(names)]

    found = {}
    for turn, each in enumerate(names):
        gguf = f"blk.{layer}.ffn_{each}_exps"
        if kind.endswith("_bias"):
            found[f"{gguf}.bias"] = f32(own(weights[name], turn))
        elif kind.endswith("_blocks"):
            scales = weights[name.replace("_blocks", "_scales")]
            found[f"{gguf}.weight"] = mxfp4(own(weights[name], turn), own(scales, turn))
        elif not kind.endswith("_scales"):
            found[f"{gguf}.weight"] = form(own(weights[name].transpose(1, 2), turn))
    return found


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


def write_parts(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Stored], parts: int) -> Path:
    """Writes the model in parts, as llama.cpp's gguf-split does. Returns the first."""
    names, paths = list(tensors), [path.with_name(f"{path.stem}-{n + 1:05}-of-{parts:05}.gguf") for n in range(parts)]
    for number, each in enumerate(paths):
        own = names[number * len(names) // parts : (number + 1) * len(names) // parts]
        told = {"split.no": number, "split.count": parts, "split.tensors.count": len(names)}
        write(each, {**(metadata if number == 0 else {}), **told}, {name: tensors[name] for name in own})
    return paths[0]


def _name(name: str, architecture: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    module, _, kind = name.rpartition(".")
    if module in whole:
        return f"{whole[module]}.{kind}"
    if kind == "sinks":
        return f"blk.{name.split('.')[2]}.attn_sinks.weight"
    _, _, number, rest = module.split(".", 3)
    return f"blk.{number}.{NAMES_OF.get(architecture, NAMES)[rest]}.{kind}"


def _permuted(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Neighbouring dimensions are rotated together: rows d and d + half of a head come side by side."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.view(config[heads], 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _metadata(config: Mapping[str, Any], architecture: str, directory: Path) -> dict[str, Any]:
    own = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim"),
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }
    if active := config.get("num_experts_per_tok"):
        own |= {"expert_count": config["num_local_experts"], "expert_used_count": active}
        own["expert_feed_forward_length"] = config.get("moe_intermediate_size")
    own |= _of_family(config, architecture)
    chat = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in own.items()},
        **(_sentencepiece if architecture.startswith("gemma") else _byte_level)(config, directory),
        "tokenizer.chat_template": chat,
    }


def _of_family(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """What the converter's classes of the architectures write besides."""
    rope = config.get("rope_parameters") or config
    if architecture in ("gemma", "gemma2"):
        capped = ("attn_logit_softcapping", "final_logit_softcapping") if architecture == "gemma2" else ()
        window = {"attention.sliding_window": config["sliding_window"]} if architecture == "gemma2" else {}
        return {"attention.value_length": config["head_dim"], **{key: config[key] for key in capped}, **window}
    if architecture == "gemma3":
        has_window = "sliding_attention" in config["layer_types"]
        capping = config["final_logit_softcapping"]
        return {
            "attention.value_length": config["head_dim"],
            "rope.freq_base": float(rope["full_attention"]["rope_theta"]),
            **_scaling(rope["full_attention"]),
            **({"final_logit_softcapping": capping} if capping else {}),
            **({"attention.sliding_window": config["sliding_window"]} if has_window else {}),
        }
    if architecture == "gpt-oss":
        return {
            "attention.value_length": config["head_dim"],
            "rope.freq_base": float(rope["rope_theta"]),
            **_scaling(rope),
            "attention.sliding_window": config["sliding_window"],
            "expert_feed_forward_length": config["intermediate_size"],
        }
    return {"rope.freq_base": float(rope["rope_theta"])}


def _scaling(rope: Mapping[str, Any]) -> dict[str, Any]:
    if rope["rope_type"] == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        return {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(rope["beta_fast"]),
            "rope.scaling.yarn_beta_slow": float(rope["beta_slow"]),
        }
    return {}


def _byte_level(config: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    told = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = told["model"]["vocab"] | {each["content"]: each["id"] for each in told["added_tokens"]}
    special = {each["id"] for each in told["added_tokens"]}
    tokens = sorted(vocabulary, key=lambda token: int(vocabulary[token]))
    tokens += [f"[PAD{at}]" for at in range(len(tokens), config["vocab_size"])]
    is_o200k = "Split" in json.dumps(told["pre_tokenizer"])
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-4o" if is_o200k else "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if at in special else 1 for at in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in told["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"] if is_o200k else max(special),
    }


def _sentencepiece(config: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Gemma's: user-defined tokens are written with the spaces that they stand for, scores fall piece by piece."""
    told = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = told["model"]["vocab"] | {each["content"]: each["id"] for each in told["added_tokens"]}
    texts = sorted(vocabulary, key=lambda token: int(vocabulary[token]))
    added = {each["content"]: each["special"] for each in told["added_tokens"]}
    types = []
    for text in texts:
        if text in added:
            types.append(3 if added[text] or text in ("<pad>", "<mask>") or text.startswith("<unused") else 4)
        else:
            types.append(6 if re.fullmatch(r"<0x[0-9A-F]{2}>", text) else 1)
    first = types.index(1)
    tokens = [text.replace("\u2581", " ") if kind == 4 else text for text, kind in zip(texts, types, strict=True)]
    scores = [{1: float(first - at), 6: 0.0}.get(kind, -1000.0) for at, kind in enumerate(types)]
    missing = config["vocab_size"] - len(tokens)
    tokens += [f"[PAD{at}]" for at in range(len(tokens), config["vocab_size"])]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores + [-10000.0] * missing,
        "tokenizer.ggml.token_type": types + [5] * missing,
        **{
            f"tokenizer.ggml.{name}_token_id": vocabulary[f"<{text}>"]
            for name, text in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad"))
        },
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
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
    if value and isinstance(value[0], float):
        return struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)
    if value and isinstance(value[0], int):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))


def convert_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Converts tokenizers in this process: the start of a limited child takes most of a second."""

    def run(_module: str, given: str, target: str, _subject: str, **_limits: object) -> None:
        architecture, vocabulary, options = json.loads(Path(given).read_text(encoding="utf-8"))
        gguf_tokenizer._write(architecture, vocabulary, options, Path(target))

    monkeypatch.setattr(gguf_tokenizer, "limited", SimpleNamespace(run=run))
