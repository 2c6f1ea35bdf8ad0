"""CUDA graphs launch all kernels of a decode step at once.

A GPU computes a step of few rows in 2 ms, and the processor takes 15 ms to launch its kernels one by one (TinyLlama's
shape on an H200). A graph repeats what was recorded, on the same tensors. So a step's numbers are copied into those
tensors, padded to one of a few sizes; a size is recorded when a step first has it.

    sequence 0   | token | position | slot | its blocks, then the scratch block up to `length` positions |
    sequence 1   | token | position | slot | ...                                                          |
    padding      |   0   |     0    | the scratch block's ...                                            |

Steps with a prompt's chunk, an adapter or pooled states go to the decoder itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from models.weights.loading import LowRankWeights
from service.engine.runner.forwards.attention import (
    AttentionPlan,
    BatchedQueries,
    batched_positions,
    block_table,
    padded,
    padded_length,
    slots_of,
)
from service.engine.runner.forwards.decoder import FusedDecoder
from service.engine.runner.forwards.step import RowRules, Step
from service.engine.runner.kv_cache import KVCache

TOKEN, POSITION, SLOT, BLOCKS = range(4)
"""Columns of a graph's inputs; from BLOCKS on, a sequence's blocks."""


@dataclass(frozen=True, slots=True)
class _Graph:
    """A recorded step of as many rows as `inputs` [rows, BLOCKS + blocks] int64 has: replayed, it computes `logits`
    [rows, vocabulary]."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    logits: Tensor


class GraphedDecoder:
    """A fused decoder on a GPU, whose decode steps are graphs. Its cache has no window blocks and lies on one
    device."""

    kind = FusedDecoder.kind
    attends = FusedDecoder.attends
    invariant = FusedDecoder.invariant
    no_states = FusedDecoder.no_states

    def __init__(self, decoder: FusedDecoder, cache: KVCache, rules: RowRules) -> None:
        self._decoder, self._cache, self._rules = decoder, cache, rules
        self._most_positions = batched_positions(cache, cache.device)
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._pool: Any = None  # the handle of the memory that all graphs share

    @property
    def vocab_size(self) -> int:
        return self._decoder.vocab_size

    @property
    def model(self) -> nn.Module:
        return self._decoder

    def load_adapter(self, name: str, weights: Mapping[str, LowRankWeights]) -> None:
        self._decoder.load_adapter(name, weights)

    def unload_adapter(self, name: str) -> None:
        self._decoder.unload_adapter(name)

    def __call__(self, step: Step) -> Tensor:
        size = self._size(step)
        if size is None:
            logits: Tensor = self._decoder(step)
            return logits
        numbers = self._numbers(step, *size)
        if size not in self._graphs:
            self._graphs[size] = self._recorded(numbers.to(self._cache.device), size[1])
        graph = self._graphs[size]
        graph.inputs.copy_(numbers)
        graph.inputs[: len(step.token_ids), TOKEN] = step.token_ids
        graph.graph.replay()
        return graph.logits.index_select(0, step.logit_rows)

    def _size(self, step: Step) -> tuple[int, int] | None:
        """Returns the step's padded rows and KV length, or None where it is no decode step or a large one."""
        sequences = step.sequences
        if not sequences or step.adapter_rows or step.final is not None or any(each.count != 1 for each in sequences):
            return None
        rows = -(-padded(len(sequences)) // self._rules.linear) * self._rules.linear
        length = padded_length(max(each.start for each in sequences) + 1)
        return (rows, length) if rows * length <= self._most_positions else None

    def _numbers(self, step: Step, rows: int, length: int) -> Tensor:
        """Returns the inputs on the host, without the tokens."""
        cache = self._cache
        slots = slots_of(step.sequences, rows, cache.block_size, cache.num_blocks)
        numbers = array("q")
        for sequence, slot in zip(step.sequences, slots, strict=False):
            numbers.extend((0, sequence.start, slot))
            numbers.extend(block_table(sequence, length, cache.block_size, cache.num_blocks))
        unused = [cache.num_blocks] * -(-length // cache.block_size)
        for slot in slots[len(step.sequences) :]:
            numbers.extend((0, 0, slot, *unused))
        return torch.frombuffer(numbers, dtype=torch.int64).view(rows, -1)

    def _recorded(self, inputs: Tensor, length: int) -> _Graph:
        self._decoder(self._step(inputs, length))  # libraries load kernels at their first use, which no graph can hold
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):  # adapters are read beside it
            logits = self._decoder(self._step(inputs, length))
        self._pool = graph.pool()
        return _Graph(graph, inputs, logits)

    def _step(self, inputs: Tensor, length: int) -> Step:
        plan = _InputsPlan(self._cache, self._rules, inputs, length)
        rows = torch.arange(len(inputs), device=inputs.device)
        return Step(inputs[:, TOKEN], inputs[:, POSITION], plan, (), rows, ())


class _InputsPlan(AttentionPlan):
    """The plan of a step whose numbers are read from `inputs` when it is computed."""

    def __init__(self, cache: KVCache, rules: RowRules, inputs: Tensor, length: int) -> None:
        super().__init__(cache, (), len(inputs), rules.attention, inputs.device)
        self._inputs, self._length = inputs, length

    @cached_property
    def slots(self) -> Tensor:
        return self._inputs[:, SLOT]

    @cached_property
    def batched_queries(self) -> list[BatchedQueries]:
        rows = torch.arange(self.num_rows, device=self.device)
        positions, blocks = self._inputs[:, POSITION : POSITION + 1], self._inputs[:, BLOCKS:]
        return [BatchedQueries(rows, positions, blocks, self._length)]
