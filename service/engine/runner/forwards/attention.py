"""Attention computes packed query rows over KV blocks. It knows blocks and positions, not requests.

On a CPU with native kernels, these attend (see `native/src/attention.h`). Elsewhere torch operations attend, as
follows. The result does not depend on batch and chunks: bit for bit, a query row depends only on its own sequence's
keys up to its position. Three rules ensure that, and tests/unit/test_attention.py tests them:

1. Matrix products run over shapes whose rows do not depend on the number of rows: query rows are padded to
   `row_quantum` (measured at load, see `row_blocks.bmm_row_quantum`), keys to whole KV tiles of KV_TILE positions.
2. The sum over positions is cut at absolute positions (multiples of KV_TILE) and added KV tile by KV tile in order.
3. Masked positions have weight exactly 0 and finite values, so more padding adds exact zeros at the end.

    packed rows     | a a a a | b | c | d d | pad |      one row = one token
    batched queries   prefill: a query tile of one sequence, up to QUERY_TILE rows; decode: one row each of many
    their product     [sequences * kv_heads, rows * queries_per_kv padded, head_dim] x [.., head_dim, positions]
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from service.engine.runner.kv_cache import KVCache
from service.engine.runner.native.attention import heads_struct
from service.engine.runner.native.library import KINDS, library

KV_TILE = 128
QUERY_TILE = 128
WIDE_QUERY_TILE, WIDE_TILE_TOKENS = 512, 2048
"""A GPU waits for the launches of many small products, so its tiles are wide up to so many tokens; behind them the
scores would be large."""
MAX_BATCHED_POSITIONS = 2048
"""The most sequences times padded length of one decode product on a CPU. Its gathered keys must stay in the processor's
cache, and under the size from which the allocator takes fresh pages every time (3-4x slower at 64 sequences)."""
GATHERED_BYTES = 1 << 28
"""The most gathered keys and values of one decode product on a GPU, which wants few products."""


class DistanceBias:
    """A layer's addition to the score of a key by its distance: fp32 [heads, distances], from 0 on."""

    def __init__(self, table: Tensor) -> None:
        self.table = table.float()
        self.reversed = self.table.flip(1).contiguous()
        """The table for the kernels: it ends with distance 0."""

    @property
    def reach(self) -> int:
        return self.table.shape[1]

    def of(self, distances: Tensor) -> Tensor:
        """Returns [heads, ..] for distances [..]; any value for a negative distance."""
        return self.table[:, distances.clamp(min=0)]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """A layer's attention: softmax(softcap(scale * q·k + bias)) over the last `window` positions (None: all). `sinks`,
    fp32 [heads], are scores of one more key in every row's softmax, which has no value (Xiao et al., 2023)."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    bias: DistanceBias | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """`count` packed rows from `row` on: the positions from `start` on of the sequence with this block table.
    `window_table` is that of the layers with window blocks, if the cache has any."""

    row: int
    count: int
    start: int
    block_table: Seq[int]
    window_table: Seq[int] = ()


@dataclass(slots=True, eq=False)
class BatchedQueries:
    """Sequences whose query rows run in one product. `rows` [sequences * count] are packed rows, `positions`
    [sequences, count] theirs, `blocks` [sequences, n] the padded block tables, `length` the padded KV length."""

    rows: Tensor
    positions: Tensor
    blocks: Tensor
    length: int
    _gather_rows: dict[int, Tensor] = field(default_factory=dict)
    _blocked: dict[tuple[int, int, int | None], Tensor] = field(default_factory=dict)

    def gather_rows(self, cache: KVCache, kv_heads: int) -> Tensor:
        if kv_heads not in self._gather_rows:
            self._gather_rows[kv_heads] = cache.block_rows(self.blocks, kv_heads)
        return self._gather_rows[kv_heads]

    def blocked(self, queries_per_kv: int, padded: int, window: int | None) -> Tensor:
        """Returns [sequences, 1, padded rows, length], True where a query row must not look. Padding rows look
        everywhere."""
        key = (queries_per_kv, padded, window)
        if key not in self._blocked:
            kv = torch.arange(self.length, device=self.positions.device)
            query = self.positions.repeat_interleave(queries_per_kv, dim=1)[:, :, None]
            hidden = kv > query
            if window is not None:
                hidden |= kv <= query - window
            extra = padded - hidden.shape[1]
            self._blocked[key] = torch.nn.functional.pad(hidden, (0, 0, 0, extra))[:, None]
        return self._blocked[key]

    def bias(self, bias: DistanceBias, queries_per_kv: int, padded: int) -> Tensor:
        """Returns the addition to the scores [sequences * kv_heads, padded rows, length]; 0 for padding rows."""
        distances = self.positions[:, :, None] - torch.arange(self.length, device=self.positions.device)
        found = bias.of(distances)  # [heads, sequences, count, length]
        heads, sequences, count, length = found.shape
        found = found.view(heads // queries_per_kv, queries_per_kv, sequences, count, length).permute(2, 0, 3, 1, 4)
        folded = found.reshape(-1, count * queries_per_kv, length)
        return torch.nn.functional.pad(folded, (0, 0, 0, padded - count * queries_per_kv))


class AttentionPlan:
    """One step's indices: where new keys go and which rows look at which blocks. Each is made at its first use, and
    every layer uses them; layers with window blocks use those of `windowed`."""

    def __init__(
        self,
        cache: KVCache,
        sequences: Seq[SequenceRows],
        num_rows: int,
        row_quantum: int,
        device: torch.device,
        in_windows: bool = False,
    ) -> None:
        """With `in_windows` the tables are of window blocks."""
        self.cache = cache
        self._in_windows = in_windows
        self._scratch_block = cache.num_window_blocks if in_windows else cache.num_blocks
        self.sequences = tuple(sequences)
        self.row_quantum = row_quantum
        self.device = device
        self.num_rows = num_rows
        self._slot_rows: dict[int, Tensor] = {}
        self._elsewhere: dict[torch.device, AttentionPlan] = {}

    def on(self, device: torch.device) -> AttentionPlan:
        """Returns the plan for layers on this device."""
        if device == self.device:
            return self
        if device not in self._elsewhere:
            rows = self.sequences, self.num_rows, self.row_quantum
            self._elsewhere[device] = AttentionPlan(self.cache, *rows, device, self._in_windows)
        return self._elsewhere[device]

    @cached_property
    def windowed(self) -> AttentionPlan:
        """The plan of the layers with window blocks; this one if the cache has none."""
        if self._in_windows or not self.cache.num_window_blocks:
            return self
        sequences = [replace(each, block_table=each.window_table) for each in self.sequences]
        return AttentionPlan(self.cache, sequences, self.num_rows, self.row_quantum, self.device, True)

    def of(self, layer: int) -> AttentionPlan:
        """Returns the plan of a layer."""
        return self.windowed if self.cache.has_window_blocks(layer) else self

    @cached_property
    def slots(self) -> Tensor:
        """The slot of each row's keys and values [rows]."""
        slots = slots_of(self.sequences, self.num_rows, self.cache.block_size, self._scratch_block)
        return torch.tensor(slots, device=self.device)

    @cached_property
    def batched_queries(self) -> list[BatchedQueries]:
        return [
            *_decode_queries(
                self.sequences,
                batched_positions(self.cache, self.device),
                self.cache.block_size,
                self._scratch_block,
                self.device,
            ),
            *_prefill_queries(self.sequences, self.cache.block_size, self._scratch_block, self.device),
        ]

    @cached_property
    def tables(self) -> Tensor:
        """The sequences' block tables one after the other, int64, on the CPU. Raises ValueError for a table that is too
        short, because its sequence would see the next one's blocks."""
        joined = array("q")
        for sequence in self.sequences:
            blocks = _blocks(sequence, self.cache.block_size)
            if len(sequence.block_table) < blocks:
                known = len(sequence.block_table)
                raise ValueError(f"a block table of {known} blocks for a sequence that fills {blocks}")
            joined.extend(sequence.block_table[:blocks])
        return torch.frombuffer(joined, dtype=torch.int64) if joined else torch.empty(0, dtype=torch.int64)

    @cached_property
    def sequence_rows(self) -> Tensor:
        """Row, count, start and the beginning of its table in `tables`, for each sequence [n, 4] int64, on the CPU."""
        rows, at = [], 0
        for sequence in self.sequences:
            rows.append((sequence.row, sequence.count, sequence.start, at))
            at += _blocks(sequence, self.cache.block_size)
        return torch.tensor(rows, dtype=torch.int64).view(-1, 4)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        """Writes key and value [rows, kv_heads, dim] and returns [rows, heads, value_dim] for query [rows, heads, dim].
        Padding rows get zeros."""
        plan = self.of(layer)
        plan.write(layer, key, value)
        return plan.look(layer, query, spec)

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Writes key and value [rows, kv_heads, dim] into the slots of the rows' positions. This is the layer's plan
        (see `of`)."""
        heads = key.shape[1]
        if heads not in self._slot_rows:
            self._slot_rows[heads] = self.cache.slot_rows(self.slots, heads)
        self.cache.write(layer, key, value, self._slot_rows[heads])

    def look(self, layer: int, query: Tensor, spec: AttentionSpec) -> Tensor:
        """Returns [rows, heads, value_dim] for query [rows, heads, dim], from the keys and values up to each row's
        position. This is the layer's plan (see `of`)."""
        kernels = library() if self.device.type == "cpu" and self.cache.dtype in KINDS else None
        if kernels is not None:
            struct = heads_struct(self.cache, layer, query.shape[1], spec)
            return kernels.attend(struct, self.sequence_rows, self.tables, query).to(query.dtype)
        out = query.new_zeros(self.num_rows, query.shape[1], self.cache.shapes[layer].value_dim)
        for queries in self.batched_queries:
            out.index_copy_(0, queries.rows, self._attend_batched(queries, layer, query, spec))
        return out

    def _attend_batched(self, queries: BatchedQueries, layer: int, query: Tensor, spec: AttentionSpec) -> Tensor:
        kv_heads = self.cache.shapes[layer].kv_heads
        sequences, count = queries.positions.shape
        queries_per_kv = query.shape[1] // kv_heads
        keys, values = self.cache.gather(layer, queries.gather_rows(self.cache, kv_heads), sequences * kv_heads)
        dtype = matmul_dtype(query.dtype, query.device)

        folded = (
            query.index_select(0, queries.rows).view(sequences, count, kv_heads, queries_per_kv, -1).transpose(1, 2)
        )
        folded = folded.reshape(sequences * kv_heads, count * queries_per_kv, -1).to(dtype)
        padded = -(-folded.shape[1] // self.row_quantum) * self.row_quantum
        if padded != folded.shape[1]:
            folded = torch.nn.functional.pad(folded, (0, 0, 0, padded - folded.shape[1]))

        blocked = queries.blocked(queries_per_kv, padded, spec.window)
        bias = None if spec.bias is None else queries.bias(spec.bias, queries_per_kv, padded)
        weights = _weights(folded, keys[:, : queries.length].to(dtype), blocked, bias, spec)
        mixed = _mix(weights.to(dtype), values[:, : queries.length].to(dtype))
        mixed = mixed[:, : count * queries_per_kv].view(sequences, kv_heads, count, queries_per_kv, -1).transpose(1, 2)
        return mixed.reshape(sequences * count, kv_heads * queries_per_kv, -1).to(query.dtype)


def matmul_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Returns bf16 if the device multiplies it natively, else fp32, which is several times faster there."""
    native = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
    return dtype if native else torch.float32


def _weights(query: Tensor, keys: Tensor, blocked: Tensor, bias: Tensor | None, spec: AttentionSpec) -> Tensor:
    """Returns softmax weights [sequences * kv_heads, rows, positions] in fp32."""
    scores = torch.bmm(query, keys.transpose(1, 2)).float().mul_(spec.scale)
    if bias is not None:
        scores += bias
    if spec.softcap is not None:
        scores = scores.div_(spec.softcap).tanh_().mul_(spec.softcap)
    sequences = blocked.shape[0]
    scores.view(sequences, -1, *scores.shape[1:]).masked_fill_(blocked, float("-inf"))
    weights = scores.softmax(-1)
    return weights if spec.sinks is None else weights * _share_beside_sinks(scores, weights, spec.sinks, sequences)


def _share_beside_sinks(scores: Tensor, weights: Tensor, sinks: Tensor, sequences: int) -> Tensor:
    """Returns what sinks leave of the weights: S / (S + exp(sink - most)), with S the sum of exp(score - most). A row's
    largest weight is 1 / S, so its sum does not depend on padding either."""
    of_heads = sinks.view(scores.shape[0] // sequences, -1)  # [kv_heads, queries_per_kv]
    rows = torch.arange(scores.shape[1], device=scores.device) % of_heads.shape[1]
    excess = of_heads[:, rows].repeat(sequences, 1)[:, :, None] - scores.amax(-1, keepdim=True)
    return 1 / (1 + excess.exp() * weights.amax(-1, keepdim=True))


def _mix(weights: Tensor, values: Tensor) -> Tensor:
    """Returns weights x values in fp32, summed KV tile by KV tile in the order of positions."""
    total = torch.bmm(weights[:, :, :KV_TILE], values[:, :KV_TILE]).float()
    for first in range(KV_TILE, weights.shape[2], KV_TILE):
        last = first + KV_TILE
        total += torch.bmm(weights[:, :, first:last], values[:, first:last])
    return total


def slots_of(sequences: Seq[SequenceRows], num_rows: int, size: int, scratch_block: int) -> list[int]:
    slots = [scratch_block * size] * num_rows
    for sequence in sequences:
        for i, position in enumerate(range(sequence.start, sequence.start + sequence.count), sequence.row):
            slots[i] = sequence.block_table[position // size] * size + position % size
    return slots


def _blocks(sequence: SequenceRows, block_size: int) -> int:
    """Returns the number of blocks that hold the sequence up to its last row."""
    return -(-(sequence.start + sequence.count) // block_size)


def _kv_tiles(end: int) -> int:
    return -(-end // KV_TILE)


def padded(count: int) -> int:
    """Returns `count` rounded up to 1, 2, 3, 4, 6, 8, 12, 16, ..: few different numbers, at most half unused."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power


def padded_length(end: int) -> int:
    """Returns `end` rounded up to whole KV tiles, of which there are few different numbers."""
    return KV_TILE * padded(_kv_tiles(end))


def block_table(sequence: SequenceRows, length: int, block_size: int, scratch_block: int) -> list[int]:
    """Returns the block table, cut or filled with the scratch block, for `length` positions."""
    needed = -(-length // block_size)
    used = list(sequence.block_table[: min(needed, _blocks(sequence, block_size))])
    return used + [scratch_block] * (needed - len(used))


def batched_positions(cache: KVCache, device: torch.device) -> int:
    """Returns the most sequences times padded length of one decode product."""
    if device.type == "cpu":
        return MAX_BATCHED_POSITIONS
    values = max(shape.kv_heads * (shape.key_dim + shape.value_dim) for shape in cache.shapes)
    gathered = torch.float32 if cache.dtype is torch.int8 else cache.dtype
    return GATHERED_BYTES // (values * gathered.itemsize)


def _decode_queries(
    sequences: Seq[SequenceRows], positions: int, block_size: int, scratch_block: int, device: torch.device
) -> list[BatchedQueries]:
    """Returns single rows, grouped by padded context length; of each product at most so many `positions`."""
    buckets: dict[int, list[SequenceRows]] = {}
    for sequence in sequences:
        if sequence.count == 1:
            buckets.setdefault(padded_length(sequence.start + 1), []).append(sequence)
    batched = []
    for length, members in sorted(buckets.items()):
        most = max(1, positions // length)
        for first in range(0, len(members), most):
            batched.append(_batched(members[first : first + most], length, block_size, scratch_block, device))
    return batched


def _prefill_queries(
    sequences: Seq[SequenceRows], block_size: int, scratch_block: int, device: torch.device
) -> list[BatchedQueries]:
    batched = []
    for sequence in sequences:
        if sequence.count == 1:
            continue
        is_wide = device.type != "cpu" and sequence.start + sequence.count <= WIDE_TILE_TOKENS
        most = WIDE_QUERY_TILE if is_wide else QUERY_TILE
        for first in range(0, sequence.count, most):
            count = min(most, sequence.count - first)
            tile = SequenceRows(sequence.row + first, count, sequence.start + first, sequence.block_table)
            length = _kv_tiles(tile.start + count) * KV_TILE
            batched.append(_batched([tile], length, block_size, scratch_block, device))
    return batched


def _batched(
    members: Seq[SequenceRows], length: int, block_size: int, scratch_block: int, device: torch.device
) -> BatchedQueries:
    count = members[0].count
    offsets = torch.arange(count)
    rows = torch.tensor([sequence.row for sequence in members])[:, None] + offsets
    positions = torch.tensor([sequence.start for sequence in members])[:, None] + offsets
    blocks = torch.tensor([block_table(sequence, length, block_size, scratch_block) for sequence in members])
    return BatchedQueries(rows.reshape(-1).to(device), positions.to(device), blocks.to(device), length)
