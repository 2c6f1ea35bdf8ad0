"""What adapters cost: `GOMP_SPINCOUNT=10000 python -m loadtest.adapters`, as the engine's own environment has it.

Decode and prefill of an engine without adapters, with four that are loaded and not used, and with four in the batch; in
turn, round by round, on random weights of a 135M Llama's shape.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from models import adapters, skeleton
from models.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, precision_of
from models.quantize import quantize_rows
from service.engine.core import EngineCore
from service.engine.messages import EngineConfig
from service.engine.request import Request, SamplingParams
from service.engine.worker import build_core
from service.runner.building import build_runner
from service.runner.model_runner import ModelRunner

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
BATCH, ADAPTERS, PROMPT, NEW = 8, 4, 64, 64
LONG = 512


def save_base(directory: Path, precision: str) -> Path:
    """Random weights; int8 as a version stores them."""
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
    """On every linear layer but the head."""
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


def measure(core: EngineCore, owners: list[str], draw: Random, prompt: int, new: int) -> float:
    """Tokens a second: of decode where `new` is more than 1, else of prefill."""
    params = SamplingParams(max_tokens=new, min_tokens=new)
    for number, owner in enumerate(owners):
        ids = tuple(draw.randrange(49152) for _ in range(prompt))
        core.add(Request(f"{draw.random()} {number}", ids, params, adapter=owner))
    started, made, prefilled = time.perf_counter(), 0, 0.0
    while core.has_work:
        outputs = core.step()
        made += sum(len(output.token_ids) for output in outputs)
        if not prefilled and made >= len(owners):
            prefilled, made = time.perf_counter(), 0
    if new == 1:
        return prompt * len(owners) / (prefilled - started)
    return made / (time.perf_counter() - prefilled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "int8"])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    precision_of(options.precision)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder, "base")
        base.mkdir()
        save_base(base, options.precision)
        made = [save_adapter(base, Path(folder, str(number)), options.rank) for number in range(ADAPTERS)]
        config = EngineConfig(
            model_dir=str(base), precision=options.precision, max_model_len=2048, speculation=False, max_num_seqs=BATCH
        )
        plain, info = build_runner(config, lambda phase, fraction: None)
        loaded, _ = build_runner(config, lambda phase, fraction: None)
        for directory in made:
            loaded.adapt(directory.name, str(directory))
        names = [directory.name for directory in made]
        show(options, info.kernels, rounds(config, info.blocks_total, plain, loaded, names, options.rounds))


def rounds(
    config: EngineConfig, blocks: int, plain: ModelRunner, loaded: ModelRunner, names: list[str], count: int
) -> dict[str, dict[str, list[float]]]:
    mixed = [names[number % len(names)] for number in range(BATCH)]
    half = [owner if number % 2 else "" for number, owner in enumerate(mixed)]
    ways: dict[str, tuple[ModelRunner, list[str]]] = {
        "no adapters": (plain, [""] * BATCH),
        "4 loaded, none used": (loaded, [""] * BATCH),
        "4 rows of 8 with one": (loaded, half),
        "8 rows with 4 adapters": (loaded, mixed),
        "8 rows with 1 adapter": (loaded, names[:1] * BATCH),
    }
    works: dict[str, Callable[[EngineCore, list[str], Random], float]] = {
        "decode, 8 at once": lambda core, owners, draw: measure(core, owners, draw, PROMPT, NEW),
        "decode, alone": lambda core, owners, draw: measure(core, owners[-1:], draw, PROMPT, NEW),
        f"prefill, {LONG} tokens": lambda core, owners, draw: measure(core, owners[-1:], draw, LONG, 1),
    }
    found: dict[str, dict[str, list[float]]] = {work: {way: [] for way in ways} for work in works}
    for number in range(count + 1):
        for way, (runner, owners) in ways.items():
            core = build_core(config, runner, blocks)
            for work, run in works.items():
                rate = run(core, owners, Random(number))
                if number:  # the first round warms up
                    found[work][way].append(rate)
    return found


def show(options: Any, kernels: tuple[str, ...], found: dict[str, dict[str, list[float]]]) -> None:
    print(f"{platform.machine()}, {', '.join(kernels)}; {options.precision}, rank {options.rank} on all linear layers")
    for work, ways in found.items():
        first = ways["no adapters"]
        for way, rates in ways.items():
            ratio = median(mine / theirs for mine, theirs in zip(rates, first, strict=True))
            print(f"{work:22} {way:24} {median(rates):9.1f} tokens/s  {ratio:6.3f} of none")


if __name__ == "__main__":
    main()
