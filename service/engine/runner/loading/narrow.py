"""A narrow model is made of random 8-bit weights, to measure what a step costs beside its products. It reads no files.

Its layers are so narrow that most of their time goes into waits between threads, norms and attention.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor

from models.weights.hadamard import BLOCK
from models.weights.shapes import Shape
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.forwards.blueprint import LayerOutline, Outline, Rotary, assemble
from service.engine.runner.forwards.decoder import FusedDecoder
from service.engine.runner.forwards.forward import Forward
from service.engine.runner.forwards.native_decoder import NativeDecoder
from service.engine.runner.forwards.step import RowRules
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.linear import Int8Linear
from service.engine.runner.model_runner import ModelRunner
from service.engine.runner.native.library import library
from service.engine.sequences.batch import Batch, Scheduled
from service.engine.sequences.sequence import Sequence

BLOCK_SIZE: Final = 16
CONTEXT: Final = 64
_REPEATS: Final = 20
_LEAST: Final = 4
_SECONDS: Final = 0.1


def narrow(layers: int) -> Shape:
    return Shape("narrow", layers, 256, 4, 2, 64, 512, 1024, 512)


def narrow_runner(shape: Shape, num_blocks: int) -> ModelRunner:
    """Returns a runner of a model of this shape, computed as served models are."""
    device, outline = torch.device("cpu"), _outline(shape)
    cache = KVCache(outline.shapes, num_blocks, BLOCK_SIZE, torch.bfloat16, device)
    whole = assemble(outline, _Random(shape), shape.context_window)
    forward: Forward = FusedDecoder(whole) if library() is None else NativeDecoder(whole, cache)
    return ModelRunner(forward, cache, RowRules(), device)


def step_seconds(runner: ModelRunner, sequences: int, rows: int) -> float:
    """Returns the median time of a step of `sequences` with `rows` each: behind CONTEXT tokens, or a prompt."""
    scheduled, blocks = [], -(-(CONTEXT + rows) // BLOCK_SIZE)
    for number in range(sequences):
        known = CONTEXT if rows == 1 else 0
        request = Request(f"{number}", (1,) * (known + rows), SamplingParams(max_tokens=2))
        sequence = Sequence.of(request)
        sequence.num_computed_tokens = known
        sequence.block_table = list(range(number * blocks, (number + 1) * blocks))
        scheduled.append(Scheduled(sequence, rows))
    batch = Batch(tuple(scheduled))
    times: list[float] = []
    while len(times) < _LEAST or (len(times) < _REPEATS and sum(times) < _SECONDS):
        started = time.perf_counter()
        runner.run(batch)
        times.append(time.perf_counter() - started)
    return median(times[1:])


class _Random:
    """Weights of the shape by the outline's names (`blueprint.Weights`)."""

    dtype = torch.bfloat16

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def linear(self, name: str) -> Any:
        shape = self._shape
        outputs, depth = {
            "qkv": (shape.qkv_width, shape.hidden),
            "output": (shape.hidden, shape.attention_width),
            "gate_up": (2 * shape.intermediate, shape.hidden),
            "down": (shape.hidden, shape.intermediate),
            "head": (shape.vocabulary, shape.hidden),
        }[name]
        weight, scale = torch.randint(-127, 128, (outputs, depth), dtype=torch.int8), torch.full((outputs,), 1e-3)
        return Int8Linear(weight, scale, hadamard=BLOCK)

    def tensor(self, name: str) -> Tensor:
        size = (self._shape.vocabulary, self._shape.hidden) if name == "embedding" else (self._shape.hidden,)
        return torch.rand(size).to(torch.bfloat16)


def _outline(shape: Shape) -> Outline:
    half = shape.head_dim // 2
    layer = LayerOutline(
        ("qkv",), ("output",), ("gate_up",), ("down",), "norm", None, "norm", None, None, None,
        shape.head_dim**-0.5, None, None,
    )  # fmt: skip
    return Outline(
        embedding="embedding",
        embedding_scale=1.0,
        rotaries=(Rotary(tuple(10000.0 ** (-at / half) for at in range(half))),),
        layers=(layer,) * shape.layers,
        norm="norm",
        norm_offset=0.0,
        head="head",
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        eps=1e-5,
        activation="silu",
        logit_softcap=None,
    )
