"""This test measures the cost of adapters: `GOMP_SPINCOUNT=10000 python -m loadtest.adapters`, as engines have it.

It times decode steps without adapters, with four loaded and unused, with one and with four in the batch. The cases
alternate step by step, so other load affects all alike. The model has random weights of a 135M Llama's shape.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from models.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from models.weights import adapters, skeleton
from models.weights.int8 import quantize_rows
from service.engine.process.core import EngineCore
from service.engine.process.worker import build_core
from service.engine.protocol.messages import EngineConfig, Request, SamplingParams
from service.engine.runner.loading.building import build_runner
from service.engine.runner.model_runner import ModelRunner

SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
ADAPTERS, PROMPT, NEW = 4, 32, 1900


def save_base(directory: Path, precision: str) -> Path:
    """Saves random weights; int8 weights as a version stores them."""
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE))
    model.to(torch.bfloat16)
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(directory)
    linears = {f"{name}.weight" for name, each in model.named_modules() if isinstance(each, torch.nn.Linear)}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if precision == "int8" and name in linears:
            tensors[name], tensors[f"{name}_scale"] = quantize_rows(tensor)
        elif precision == "int8" or name != "lm_head.weight":
            tensors[name] = tensor.clone()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


def save_adapter(base: Path, directory: Path, rank: int) -> Path:
    """Saves an adapter on every linear layer but the head."""
    directory.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    modules = []
    for linear in skeleton.build(base).linears.values():
        if linear.module == "lm_head":
            continue
        modules.append(adapters.LowRank(linear.module, rank, 0.5))
        for side, shape in (("lora_A", (rank, linear.in_features)), ("lora_B", (linear.out_features, rank))):
            tensors[adapters.tensor_name(linear.module, side)] = (torch.randn(shape) * 0.02).to(torch.bfloat16)
    save_file(tensors, directory / ADAPTER_WEIGHTS)
    (directory / ADAPTER_CONFIG).write_text(adapters.as_text(modules))
    return directory


def decoding(core: EngineCore, owners: list[str]) -> EngineCore:
    """Returns an engine with one decoding sequence for each of `owners`."""
    params = SamplingParams(max_tokens=NEW, min_tokens=NEW)
    for number, owner in enumerate(owners):
        ids = tuple(Random(number).randrange(SHAPE["vocab_size"]) for _ in range(PROMPT))
        core.add(Request(str(number), ids, params, adapter=owner))
    for _ in range(len(owners) + 8):
        core.step()
    return core


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "int8"])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder, "base")
        base.mkdir()
        save_base(base, options.precision)
        made = [save_adapter(base, Path(folder, str(number)), options.rank) for number in range(ADAPTERS)]
        config = EngineConfig(
            model_dir=str(base),
            precision=options.precision,
            max_model_len=2048,
            speculation=False,
            max_num_seqs=options.batch,
        )
        plain, info = build_runner(config, lambda phase, fraction: None)
        loaded, _ = build_runner(config, lambda phase, fraction: None)
        for directory in made:
            loaded.load_adapter(directory.name, str(directory))
        names = [made[number % ADAPTERS].name for number in range(options.batch)]
        ways: dict[str, tuple[ModelRunner, list[str]]] = {
            "no adapters": (plain, [""] * options.batch),
            "4 loaded, none used": (loaded, [""] * options.batch),
            "1 adapter in all rows": (loaded, names[:1] * options.batch),
            "4 adapters in turn": (loaded, names),
        }
        cores = {
            way: decoding(build_core(config, runner, info.blocks_total), owners)
            for way, (runner, owners) in ways.items()
        }
        print(f"{platform.machine()}, {', '.join(info.kernels)}; {options.precision}, rank {options.rank}")
        show(timed(cores, options.seconds), options.batch)


def timed(cores: dict[str, EngineCore], seconds: float) -> dict[str, list[float]]:
    """Seconds of each step."""
    found: dict[str, list[float]] = {way: [] for way in cores}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and all(core.has_work for core in cores.values()):
        for way, core in cores.items():
            started = time.perf_counter()
            core.step()
            found[way].append(time.perf_counter() - started)
    return found


def show(found: dict[str, list[float]], batch: int) -> None:
    first = quantiles(found["no adapters"], n=10)
    for way, times in found.items():
        tenths = quantiles(times, n=10)
        usual, fastest = tenths[4], tenths[0]
        print(
            f"{way:22} {1e3 * usual:7.2f} ms a step, {batch / usual:6.1f} tokens/s, {first[4] / usual:.3f} of none; "
            f"in the fastest tenth {1e3 * fastest:.2f} ms, {first[0] / fastest:.3f}; {len(times)} steps"
        )


if __name__ == "__main__":
    main()
