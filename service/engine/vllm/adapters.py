"""This module writes a version's adapter as PEFT lays it out, for vLLM, which reads nothing else.

A version keeps each module's rank and scale; PEFT's configuration has them as patterns (`models.weights.adapters`). The
module runs in vLLM's interpreter and knows bytes, no tensors.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from service.engine.vllm.safetensors import Entry, rewrite

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
