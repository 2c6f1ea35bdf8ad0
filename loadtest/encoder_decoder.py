"""This test compares encoder-decoder models with transformers' `generate`: `python -m loadtest.encoder_decoder`.

It sends the same greedy requests of different lengths in one process, in turn. Our engine gets them one by one;
transformers gets one padded batch. It prints output tokens a second, medians of the rounds, and the ratio.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from service.engine.process.worker import build_core
from service.engine.protocol.messages import EngineConfig, Request, SamplingParams
from service.engine.runner.loading.building import build_runner

T5_BASE: dict[str, Any] = {"vocab_size": 32128, "d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
BART_BASE: dict[str, Any] = {"vocab_size": 50265, "d_model": 768, "encoder_layers": 6, "decoder_layers": 6}
LONGEST = 512
BATCHES = (1, 8, 32)
START = 0

Prompts = Sequence[tuple[int, ...]]


def shapes() -> dict[str, Any]:
    """As published: flan-t5-base and bart-base."""
    t5 = transformers.T5Config(**T5_BASE, feed_forward_proj="gated-gelu", eos_token_id=None)
    bart = transformers.BartConfig(**BART_BASE, encoder_ffn_dim=3072, decoder_ffn_dim=3072, eos_token_id=None)
    return {"t5-base": t5, "bart-base": bart}


def prompts(count: int, vocabulary: int, seed: int) -> Prompts:
    """From 16 to 400 tokens."""
    draw = random.Random(seed)
    return [tuple(draw.randrange(3, vocabulary) for _ in range(draw.randint(16, 400))) for _ in range(count)]


def ours(directory: Path, tokens: int) -> Callable[[Prompts], int]:
    config = EngineConfig(
        model_dir=str(directory), precision="fp32", dtype="fp32", max_model_len=2 * LONGEST, decoder_start=(START,)
    )
    runner, info = build_runner(config, lambda phase, fraction: None)

    def run(asked: Prompts) -> int:
        core = build_core(config, runner, info.blocks_total)
        params = SamplingParams(max_tokens=tokens, min_tokens=tokens)
        for number, prompt in enumerate(asked):
            core.add(Request(str(number), prompt, params))
        made = 0
        while core.has_work:
            made += sum(len(output.token_ids) for output in core.step())
        return made

    return run


def theirs(directory: Path, tokens: int) -> Callable[[Prompts], int]:
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory, dtype=torch.float32)

    def run(asked: Prompts) -> int:
        longest = max(map(len, asked))
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in asked])
        mask = torch.tensor([[1] * len(prompt) + [0] * (longest - len(prompt)) for prompt in asked])
        with torch.inference_mode():
            how = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "num_beams": 1}
            out = model.generate(ids, attention_mask=mask, decoder_start_token_id=START, **how)
        return int(out.shape[0] * (out.shape[1] - 1))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(f"{'shape':<12}{'at once':>8}{'ours':>10}{'theirs':>10}{'ratio':>8}")
    for name, config in shapes().items():
        with tempfile.TemporaryDirectory() as folder:
            transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
            ways = [make(Path(folder), given.tokens) for make in (ours, theirs)]
            for batch in BATCHES:
                rates: list[list[float]] = [[], []]
                for seed in range(given.rounds + 1):
                    asked = prompts(batch, config.vocab_size, seed)
                    for way, found in zip(ways, rates, strict=True):
                        started = time.perf_counter()
                        made = way(asked)
                        found.append(made / (time.perf_counter() - started))
                mine, peer = (statistics.median(found[1:]) for found in rates)
                ratio = statistics.median(a / b for a, b in zip(rates[0][1:], rates[1][1:], strict=True))
                print(f"{name:<12}{batch:>8}{mine:>10.1f}{peer:>10.1f}{ratio:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
