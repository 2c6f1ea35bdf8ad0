"""This test measures what the Hadamard transform of `int8` costs: steps of one model with the transform and without it.

    python -m loadtest.hadamard --threads 2

Both models have random weights and the shape of TinyLlama-1.1B, or of SmolLM2-135M. Their steps alternate in one
process: decode steps of 1, 8 and 32 sequences, and a prompt.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from models.weights.hadamard import BLOCK
from models.weights.shapes import Shape
from service.engine.runner.loading.narrow import BLOCK_SIZE, CONTEXT, narrow_runner, step_seconds
from service.host import usable_cores

SHAPES = {
    "TinyLlama-1.1B": Shape("TinyLlama-1.1B", 22, 2048, 32, 4, 64, 5632, 32000, 2048, tied=False),
    "SmolLM2-135M": Shape("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152, 2048, tied=True),
}
STEPS = ((1, 1), (8, 1), (32, 1), (1, 512))
"""(sequences, rows of each)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--model", choices=SHAPES, default="TinyLlama-1.1B")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    shape = SHAPES[given.model]
    blocks = max(sequences * -(-(CONTEXT + rows) // BLOCK_SIZE) for sequences, rows in STEPS)
    plain, mixed = (narrow_runner(shape, blocks, block) for block in (1, BLOCK))
    print(f"{given.model}, {given.threads} threads, medians of {given.rounds} paired rounds")
    print("| sequences x rows | without, ms | with, ms | ratio |\n|---|---|---|---|")
    for sequences, rows in STEPS:
        pairs = [
            (step_seconds(plain, sequences, rows), step_seconds(mixed, sequences, rows)) for _ in range(given.rounds)
        ]
        without, with_transform = (statistics.median(side) * 1e3 for side in zip(*pairs, strict=True))
        ratio = statistics.median(after / before for before, after in pairs)
        print(f"| {sequences} x {rows} | {without:.2f} | {with_transform:.2f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
