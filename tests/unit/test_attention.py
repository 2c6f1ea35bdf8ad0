"""Attention over blocks: close to the textbook formula, and bitwise the same for every way to cut the work."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from service.engine.kv_cache.kv_size import Demand, KVBlocks, KVBytes, LayerShape, choose_blocks
from service.engine.runner.forwards.attention import (
    KV_TILE,
    MAX_BATCHED_POSITIONS,
    AttentionPlan,
    AttentionSpec,
    SequenceRows,
    batched_positions,
    matmul_dtype,
)
from service.engine.runner.kv_cache import KVCache, bytes_per_block, decode, encode
from service.engine.runner.row_blocks import bmm_row_quantum
from tests.effort import drawn, meeting
from tests.kernels import KERNELS, use

CPU = torch.device("cpu")
BLOCK_SIZE = 8
DIM = 16
LENGTHS = (1, 5, KV_TILE, KV_TILE + 1, 200, 300)
SINKS = torch.tensor([0.5, -3.0, 8.0, 90.0, 0.0, 2.0])
"""Of as many heads as there are; the others stay unused."""
SPECS = [
    AttentionSpec(0.25),
    AttentionSpec(0.25, window=40),
    AttentionSpec(0.3, window=150, softcap=20.0),
    AttentionSpec(0.25, window=40, sinks=SINKS),
]
NAMES = ["causal", "window", "softcap", "sinks"]
HEADS = [(4, 4), (4, 1), (6, 2)]
STORED = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
"""What keys and values are kept in; queries and answers are fp32 beside 8-bit ones."""


def computed(stored: torch.dtype) -> torch.dtype:
    return torch.float32 if stored is torch.int8 else stored


@pytest.fixture(autouse=True, params=KERNELS)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs on each instruction set that this processor has, and on torch operations."""
    use(request.param, monkeypatch)
    return str(request.param)


@dataclass
class Sample:
    """One sequence's rows: query [length, heads, dim], key and value [length, kv_heads, dim], and its blocks."""

    query: Tensor
    key: Tensor
    value: Tensor
    blocks: list[int]

    def __len__(self) -> int:
        return len(self.query)


def samples(heads: int, kv_heads: int, dtype: torch.dtype) -> list[Sample]:
    """Sequences of LENGTHS in scattered blocks of one pool that stores `dtype`."""
    generator = torch.Generator().manual_seed(1)
    free = list(range(sum(-(-length // BLOCK_SIZE) for length in LENGTHS)))
    random.Random(1).shuffle(free)

    def noise(length: int, count: int) -> Tensor:
        return torch.randn(length, count, DIM, generator=generator).to(computed(dtype))

    return [
        Sample(
            noise(length, heads),
            noise(length, kv_heads),
            noise(length, kv_heads),
            [free.pop() for _ in range(-(-length // BLOCK_SIZE))],
        )
        for length in LENGTHS
    ]


class Pool:
    """A cache and the attention of steps over it."""

    def __init__(self, kv_heads: int, dtype: torch.dtype, spec: AttentionSpec) -> None:
        blocks = sum(-(-length // BLOCK_SIZE) for length in LENGTHS)
        self.cache = KVCache([LayerShape(kv_heads, DIM, DIM)], blocks, BLOCK_SIZE, dtype, CPU)
        compute = matmul_dtype(computed(dtype), CPU)
        self.quantum = max(bmm_row_quantum(DIM, KV_TILE, compute, CPU), bmm_row_quantum(KV_TILE, DIM, compute, CPU))
        self.spec = spec

    def step(self, parts: Sequence[tuple[Sample, int, int]], padding: int = 3) -> list[Tensor]:
        """Each part's output for positions [first, last) of its sample."""
        sequences, row = [], 0
        for sample, first, last in parts:
            sequences.append(SequenceRows(row, last - first, first, sample.blocks))
            row += last - first

        def pack(name: str) -> Tensor:
            rows = torch.cat([getattr(sample, name)[first:last] for sample, first, last in parts])
            return torch.cat((rows, rows[:1].expand(padding, -1, -1)))

        plan = AttentionPlan(self.cache, sequences, row + padding, self.quantum, CPU)
        out = plan.attend(0, pack("query"), pack("key"), pack("value"), self.spec)
        return [out[sequence.row : sequence.row + sequence.count] for sequence in sequences]


def fitted(spec: AttentionSpec, heads: int) -> AttentionSpec:
    return spec if spec.sinks is None else replace(spec, sinks=spec.sinks[:heads].clone())


def reference(sample: Sample, spec: AttentionSpec) -> Tensor:
    """Softmax attention with full matrices in fp64."""
    queries_per_kv = sample.query.shape[1] // sample.key.shape[1]
    query = sample.query.double().transpose(0, 1)
    key, value = (t.double().repeat_interleave(queries_per_kv, 1).transpose(0, 1) for t in (sample.key, sample.value))
    scores = query @ key.transpose(1, 2) * spec.scale
    if spec.softcap is not None:
        scores = (scores / spec.softcap).tanh() * spec.softcap
    age = torch.arange(len(sample))[:, None] - torch.arange(len(sample))
    hidden = (age < 0) | (age >= (spec.window or len(sample)))
    scores = scores.masked_fill(hidden, float("-inf"))
    if spec.sinks is not None:
        sink = spec.sinks.double()[:, None, None].expand(-1, len(sample), 1)
        return (torch.cat((scores, sink), -1).softmax(-1)[..., :-1] @ value).transpose(0, 1)
    return (scores.softmax(-1) @ value).transpose(0, 1)


def in_chunks(pool: Pool, all_samples: Sequence[Sample], rng: random.Random) -> list[Tensor]:
    """Every sample in random chunks, in steps with random others; the last rows one at a time."""
    done = [0] * len(all_samples)
    parts: list[list[Tensor]] = [[] for _ in all_samples]
    while any(start < len(sample) for start, sample in zip(done, all_samples, strict=True)):
        ready = [i for i, sample in enumerate(all_samples) if done[i] < len(sample)]
        members = rng.sample(ready, rng.randint(1, len(ready)))
        work = []
        for i in members:
            left = len(all_samples[i]) - done[i]
            work.append((all_samples[i], done[i], done[i] + (1 if left < 4 else rng.randint(1, min(left, 90)))))
        for i, (_, _, last), out in zip(members, work, pool.step(work, rng.randint(0, 5)), strict=True):
            parts[i].append(out)
            done[i] = last
    return [torch.cat(part) for part in parts]


@pytest.mark.parametrize(("kernels", "name", "of_heads"), meeting(KERNELS, NAMES, HEADS), ids=str, indirect=["kernels"])
def test_close_to_the_formula(name: str, of_heads: tuple[int, int]) -> None:
    heads, kv_heads = of_heads
    spec = fitted(SPECS[NAMES.index(name)], heads)
    for dtype, bound in ((torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.int8, 3e-2)):
        pool = Pool(kv_heads, dtype, spec)
        for sample in samples(heads, kv_heads, dtype):
            (out,) = pool.step([(sample, 0, len(sample))])
            torch.testing.assert_close(out.double(), reference(sample, spec), atol=bound, rtol=bound)


@pytest.mark.parametrize(
    ("kernels", "name", "of_heads", "stored"),
    meeting(KERNELS, NAMES, HEADS, [*STORED]),
    ids=str,
    indirect=["kernels"],
)
def test_bitwise_the_same_alone_in_chunks_and_in_a_crowd(name: str, of_heads: tuple[int, int], stored: str) -> None:
    (heads, kv_heads), dtype = of_heads, STORED[stored]
    all_samples, spec = samples(heads, kv_heads, dtype), fitted(SPECS[NAMES.index(name)], heads)
    alone = [Pool(kv_heads, dtype, spec).step([(sample, 0, len(sample))], 0)[0] for sample in all_samples]
    for seed in range(drawn(1, 3)):
        pool = Pool(kv_heads, dtype, spec)
        for one, other in zip(alone, in_chunks(pool, all_samples, random.Random(seed)), strict=True):
            assert torch.equal(one, other)
    together = Pool(kv_heads, dtype, spec).step([(sample, 0, len(sample)) for sample in all_samples])
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("dtype", STORED.values(), ids=STORED)
def test_small_spans_are_their_rows_one_by_one(dtype: torch.dtype) -> None:
    """A decode row with its drafted tokens: 2 to 8 rows at once, over the edges of blocks, tiles and chunks."""
    for spec in SPECS:
        pool, sample = Pool(2, dtype, spec), samples(6, 2, dtype)[-1]
        whole = pool.step([(sample, 0, len(sample))])[0]
        for count in range(2, 9):
            for first in (120, 125, 251, len(sample) - count):
                assert torch.equal(pool.step([(sample, first, first + count)])[0], whole[first : first + count])


def test_padding_rows_get_zeros_and_write_nowhere() -> None:
    sample = samples(4, 4, torch.float32)[2]
    pool = Pool(4, torch.float32, SPECS[0])
    before = pool.cache.keys[0][[b for b in range(pool.cache.num_blocks) if b not in sample.blocks]].clone()
    plan = AttentionPlan(pool.cache, [SequenceRows(0, len(sample), 0, sample.blocks)], len(sample) + 4, 4, CPU)
    padded = [torch.cat((t, t[:4])) for t in (sample.query, sample.key, sample.value)]
    out = plan.attend(0, padded[0], padded[1], padded[2], pool.spec)
    assert not out[len(sample) :].any()
    others = [b for b in range(pool.cache.num_blocks) if b not in sample.blocks]
    assert torch.equal(pool.cache.keys[0][others], before)


def test_8_bit_rows_are_off_by_half_a_code_at_most() -> None:
    """Each row by its own largest magnitude; zeros and a value that is no number harm nobody."""
    rows = torch.randn(50, 24, generator=torch.Generator().manual_seed(2)) * torch.logspace(-6, 6, 50)[:, None]
    rows[7] = 0
    stored = encode(rows)
    assert stored.dtype is torch.int8 and stored.shape == (50, 28)
    half = rows.abs().amax(-1, keepdim=True) / 127 / 2
    assert bool(((decode(stored) - rows).abs() <= half * (1 + 1e-5)).all())
    assert torch.equal(encode(rows[3:4]), stored[3:4])
    cache = KVCache([LayerShape(1, 24, 24)], 4, BLOCK_SIZE, torch.int8, CPU)
    rows[9] = float("nan")
    cache.write(0, rows[:30, None], rows[:30, None], torch.arange(30))
    assert torch.isfinite(decode(cache.keys[0])).all()
    assert bytes_per_block(cache.shapes, BLOCK_SIZE, torch.int8) == cache.keys[0][0].nbytes + cache.values[0][0].nbytes


def test_blocks_hold_what_was_written() -> None:
    """[block, head, offset] of a slot, against the picture in kv_cache."""
    cache = KVCache([LayerShape(2, 3, 5)], 4, BLOCK_SIZE, torch.float32, CPU)
    slots = torch.tensor([3 * BLOCK_SIZE + 1, 2])
    key, value = torch.randn(2, 2, 3), torch.randn(2, 2, 5)
    cache.write(0, key, value, cache.slot_rows(slots, 2))
    for head, (row, block, offset) in itertools.product(range(2), ((0, 3, 1), (1, 0, 2))):
        assert torch.equal(cache.keys[0][block, head, offset], key[row, head])
        assert torch.equal(cache.values[0][block, head, offset], value[row, head])
    keys, _ = cache.gather(0, cache.block_rows(torch.tensor([[3, 0]]), 2), 2)
    assert torch.equal(keys[1, 1], key[0, 1]) and torch.equal(keys[1, BLOCK_SIZE + 2], key[1, 1])


@pytest.mark.parametrize(
    ("kv_cache_bytes", "tokens", "free", "blocks"),
    [(1000, 10**9, 0, 10), (0, 64, 10**9, 4), (0, 10**9, 5000, 20)],
    ids=["by bytes", "by need", "by memory"],
)
def test_number_of_blocks(kv_cache_bytes: int, tokens: int, free: int, blocks: int) -> None:
    demand = Demand(1, tokens, 64, 16)
    assert choose_blocks(kv_cache_bytes, KVBytes(100), None, demand, free) == KVBlocks(blocks)


def test_no_block_fits() -> None:
    with pytest.raises(MemoryError, match="at least 100 bytes"):
        choose_blocks(99, KVBytes(60, 40), 32, Demand(1, 64, 64, 16), 10**9)


@pytest.mark.parametrize(
    ("kv_heads", "dim", "dtype", "positions"),
    [
        (4, 64, torch.bfloat16, 1 << 18),  # TinyLlama
        (8, 128, torch.bfloat16, 1 << 16),  # Llama 3 8B
        (8, 128, torch.int8, 1 << 15),  # its codes are gathered as fp32
    ],
)
def test_a_gpu_gathers_a_quarter_of_a_gib_at_most(kv_heads: int, dim: int, dtype: torch.dtype, positions: int) -> None:
    cache = KVCache([LayerShape(1, 8, 8), LayerShape(kv_heads, dim, dim)], 2, 16, dtype, CPU)
    assert batched_positions(cache, torch.device("cuda")) == positions
    assert batched_positions(cache, CPU) == MAX_BATCHED_POSITIONS
