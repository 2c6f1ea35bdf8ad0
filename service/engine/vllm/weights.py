"""This module says where vLLM reads a version's weights: bf16 and fp32 as they are, int8 as compressed-tensors' W8A8.

An int8 version has the codes and scales of W8A8 already (`models.weights.quantize`): one scale for each output,
symmetric, activations quantized for each token. Only names and shapes differ, so the copy is written once, byte for
byte, without a library. A head that is tied to the embedding gets the embedding's bf16 weights: vLLM ties them again.

    [ 8 bytes: N, little endian ][ N bytes: JSON header ][ data: every tensor, back to back ]

An adapter is written as PEFT lays it out, which has each module's rank and scale as patterns. The module runs in vLLM's
interpreter, and reads files that a repository has checked when it published them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

Entry = dict[str, Any]
"""A tensor's `dtype`, `shape` and `data_offsets`."""
Change = Callable[[str, Entry], tuple[str, Entry] | None]
"""(name, entry) → the name and the entry of the copy, of as many bytes; None leaves the tensor out."""

_LENGTH_BYTES = 8


def rewrite(source: Path, target: Path, change: Change) -> list[str]:
    """Copies a file. Returns the names of the copy's tensors."""
    with source.open("rb") as reading, target.open("wb") as writing:
        length = int.from_bytes(reading.read(_LENGTH_BYTES), "little")
        header: dict[str, Entry] = json.loads(reading.read(length))
        header.pop("__metadata__", None)
        spans: list[tuple[int, int]] = []
        copied: dict[str, Entry] = {}
        end = 0
        for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
            changed = change(name, entry)
            if changed is None:
                continue
            first, last = entry["data_offsets"]
            spans.append((first, last))
            copied[changed[0]] = {**changed[1], "data_offsets": [end, end + last - first]}
            end += last - first
        text = json.dumps({"__metadata__": {"format": "pt"}, **copied}).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)
        writing.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for first, last in spans:
            reading.seek(_LENGTH_BYTES + length + first)
            _copy(reading, writing, last - first)
    return list(copied)


def _copy(reading: BinaryIO, writing: BinaryIO, size: int) -> None:
    while size > 0:
        chunk = reading.read(min(size, 1 << 24))
        if not chunk:
            raise ValueError("the file ends before its last tensor")
        writing.write(chunk)
        size -= len(chunk)


def link_others(source: Path, target: Path, besides: set[str]) -> None:
    """Puts the other files of a version beside, without their bytes where the file system allows that."""
    for path in source.iterdir():
        if path.name in besides or not path.is_file():
            continue
        try:
            (target / path.name).hardlink_to(path)
        except OSError:
            shutil.copyfile(path, target / path.name)


_CONFIG: Final = "config.json"
_INDEX: Final = "model.safetensors.index.json"
_SCALE: Final = ".weight_scale"
_HEAD: Final = "lm_head."


def written_for_vllm(model_dir: str, precision: str, data_dir: str, digest: str) -> str:
    """Returns the directory that vLLM reads; writes it where it is missing. Raises OSError, and ValueError for a
    precision that vLLM does not know."""
    if precision in ("bf16", "fp32"):
        return model_dir
    if precision != "int8":
        raise ValueError(f"vLLM cannot serve {precision}: load the version with our own engine, or its bf16 parent")
    source, target = Path(model_dir), Path(data_dir, "engines", "vllm", "versions", digest)
    if target.exists():
        return str(target)
    begun = target.with_name(f"{digest}.{os.getpid()}")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    try:
        _write(source, begun)
        begun.rename(target)
    except BaseException:
        shutil.rmtree(begun, ignore_errors=True)
        if not target.exists():
            raise
    return str(target)


def _write(source: Path, target: Path) -> None:
    config = json.loads((source / _CONFIG).read_text(encoding="utf-8"))
    tied = bool(config.get("tie_word_embeddings", True))

    def change(name: str, entry: Entry) -> tuple[str, Entry] | None:
        if tied and name.startswith(_HEAD):
            return None
        if name.endswith(_SCALE):
            return name, {**entry, "shape": [*entry["shape"], 1]}
        return name, entry

    shards = sorted(source.glob("*.safetensors"))
    names = {shard.name: rewrite(shard, target / shard.name, change) for shard in shards}
    config["quantization_config"] = quantization(tied)
    (target / _CONFIG).write_text(json.dumps(config), encoding="utf-8")
    if (source / _INDEX).exists():
        weight_map = {name: shard for shard, held in names.items() for name in held}
        (target / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
    link_others(source, target, {_CONFIG, _INDEX, "manifest.json", "model.yaml", *names})


def quantization(tied: bool) -> dict[str, object]:
    """Returns compressed-tensors' description of our int8: weights by output, activations by token."""
    eight = {"num_bits": 8, "type": "int", "symmetric": True}
    group: dict[str, object] = {
        "targets": ["Linear"] if tied else ["Linear", f"re:.*{_HEAD[:-1]}"],
        "weights": {**eight, "strategy": "channel", "dynamic": False},
        "input_activations": {**eight, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"] if tied else [],
    }


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def written_for_peft(directory: str, data_dir: str, name: str, max_rank: int) -> str:
    """Returns the directory with the adapter of the version in `directory`; writes it where it is missing. Raises
    ValueError for an adapter of a higher rank than the engine was started for."""
    source, target = Path(directory), Path(data_dir, "engines", "vllm", "adapters", name)
    modules = json.loads((source / CONFIG).read_text(encoding="utf-8"))["modules"]
    rank = max(each["rank"] for each in modules.values())
    if rank > max_rank:
        raise ValueError(
            f"the adapter has rank {rank}, and this engine was started for {max_rank}: unload the version, and load it "
            f'with "engine_options": {{"max_loras": 4, "max_lora_rank": {rank}}}'
        )
    if target.exists():
        return str(target)
    begun = target.with_name(f"{name}.{os.getpid()}")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    rewrite(source / WEIGHTS, begun / WEIGHTS, _peft)
    (begun / CONFIG).write_text(json.dumps(configuration(modules)), encoding="utf-8")
    _put(begun, target)
    return str(target)


def configuration(modules: dict[str, dict[str, float]]) -> dict[str, object]:
    """Returns PEFT's `adapter_config.json` for the modules of a version's: their ranks, and alpha = scale · rank."""
    return {
        "peft_type": "LORA",
        "r": max(each["rank"] for each in modules.values()),
        "lora_alpha": 1,
        "target_modules": sorted({name.rpartition(".")[2] for name in modules}),
        "rank_pattern": {name: each["rank"] for name, each in modules.items()},
        "alpha_pattern": {name: each["scale"] * each["rank"] for name, each in modules.items()},
        "bias": "none",
    }


def _peft(name: str, entry: Entry) -> tuple[str, Entry]:
    return f"base_model.model.{name}", entry


def _put(begun: Path, target: Path) -> None:
    """Another process may have been as fast: its files are the same."""
    try:
        begun.rename(target)
    except OSError:
        if not target.exists():
            raise
        shutil.rmtree(begun)
