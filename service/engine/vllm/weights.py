"""This module says where vLLM reads a version's weights: bf16 and fp32 as they are, int8 as compressed-tensors' W8A8.

An int8 version has the codes and scales of W8A8 already (`models.weights.quantize`): one scale for each output,
symmetric, activations quantized for each token. Only names and shapes differ, so the copy is written once, byte for
byte. A head that is tied to the embedding gets the embedding's bf16 weights: vLLM ties them again.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Final

from service.engine.vllm.safetensors import Entry, link_others, rewrite

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
