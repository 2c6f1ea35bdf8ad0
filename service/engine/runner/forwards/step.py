"""A step's inputs as tensors: the batch's tokens packed into rows. This module reads sequences and changes nothing.

item 0: 3 prompt tokens   item 1: 1 token, 2 drafts   item 2: 2 prompt tokens   padding to the row quantum
| p0 p1 p2               | d e f                     | q0 q1                   | . . |
        ^ samples          ^ ^ ^ each samples           a row of an unfinished prompt samples nothing
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from service.engine.runner.forwards.attention import AttentionPlan, SequenceRows
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.pooling import FinalStates, pooled_rows
from service.engine.sequences.batch import Batch, Scheduled
from service.engine.sequences.sequence import Sequence

NO_ROWS: Final = range(0)


@dataclass(frozen=True, slots=True)
class RowRules:
    """Row paddings that make results independent of the batch: of the linear layers and of attention's products
    (see `row_blocks`)."""

    linear: int = 1
    attention: int = 1


@dataclass(frozen=True, slots=True)
class LogitRows:
    """The logit rows of one scheduled item. `sample` holds the rows to sample from: of its last known token and of the
    drafts behind it, and none before the prompt's end. `prompt` holds the rows that predict `targets` (prompt
    logprobs)."""

    sample: range
    prompt: range
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A sequence's encoder input. The decoder's keys and values of its `count` tokens lie at as many positions from the
    start of `block_table`. `token_ids` is empty if they are there already."""

    token_ids: tuple[int, ...]
    count: int
    block_table: Seq[int]


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """Rows with one adapter: `count` rows from `row` on; None means all."""

    row: int
    count: int | None
    adapter: str

    @property
    def rows(self) -> slice:
        return slice(self.row, None if self.count is None else self.row + self.count)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The inputs of one step: packed rows [rows] and, in `logit_rows`, the packed rows that need logits, padded.
    `where` is parallel to the batch's items and indexes into `logit_rows`. For an encoder-decoder model `encoded` is
    parallel to `sequences`, whose positions and blocks are then the decoder's. `adapter_rows` holds the rows with an
    adapter; `logit_adapter_rows` holds them by their places in `logit_rows`."""

    token_ids: Tensor
    positions: Tensor
    plan: AttentionPlan
    sequences: tuple[SequenceRows, ...]
    logit_rows: Tensor
    where: tuple[LogitRows, ...]
    encoded: tuple[Encoded, ...] = ()
    adapter_rows: tuple[AdapterRows, ...] = ()
    logit_adapter_rows: tuple[AdapterRows, ...] = ()
    final: FinalStates | None = None
    """States that the forward gives beside the logits, if any item is pooled."""


def pack(batch: Batch, cache: KVCache, rules: RowRules, device: torch.device) -> Step:
    """Packs a batch: each item's tokens from position num_computed_tokens on, and its drafts behind them. An encoder's
    input takes no rows of the decoder."""
    token_ids: list[int] = []
    positions: list[int] = []
    sequences: list[SequenceRows] = []
    rows: list[int] = []
    where: list[LogitRows] = []
    encoded: list[Encoded] = []
    adapter_rows: list[AdapterRows] = []
    logit_adapter_rows: list[AdapterRows] = []
    state_rows: list[range | None] = []
    for item in batch.scheduled:
        sequence, start = item.sequence, item.sequence.num_computed_tokens
        tokens, table, window_table = item.token_ids, sequence.block_table, sequence.window_table
        if slots := sequence.num_encoder_slots:
            encoded.append(_encoded(sequence, table))
            tokens, start = tokens[max(0, slots - start) :], max(0, start - slots)
            table = table[slots // cache.block_size :]
        packed = SequenceRows(len(token_ids), len(tokens), start, table, window_table)
        token_ids += tokens
        positions += range(start, start + packed.count)
        sequences.append(packed)
        first = len(rows)
        where.append(_logit_rows(item, packed, rows))
        state_rows.append(pooled_rows(item, packed.row, start, packed.count))
        if adapter := sequence.request.adapter:
            adapter_rows.append(AdapterRows(packed.row, packed.count, adapter))
            logit_adapter_rows.append(AdapterRows(first, len(rows) - first, adapter))
    padding = -len(token_ids) % rules.linear
    rows += [rows[0] if rows else 0] * (-len(rows) % rules.linear)
    plan = AttentionPlan(cache, sequences, len(token_ids) + padding, rules.attention, device)
    return Step(
        torch.tensor(token_ids + [0] * padding, device=device),
        torch.tensor(positions + [0] * padding, device=device),
        plan,
        tuple(sequences),
        torch.tensor(rows, dtype=torch.long, device=device),
        tuple(where),
        tuple(encoded),
        tuple(adapter_rows),
        tuple(logit_adapter_rows),
        FinalStates.of(state_rows, device),
    )


def _encoded(sequence: Sequence, table: Seq[int]) -> Encoded:
    token_ids = sequence.request.token_ids
    return Encoded(() if sequence.num_computed_tokens else token_ids, len(token_ids), table)


def _logit_rows(item: Scheduled, packed: SequenceRows, rows: list[int]) -> LogitRows:
    """Appends to `rows` the packed rows of which this item needs logits. Row p predicts token p + 1."""
    sequence = item.sequence
    tokens, slots = sequence.decoder_token_ids, sequence.num_encoder_slots
    first = len(rows)
    if packed.count == 1 and item.samples:
        rows.append(packed.row)
        return LogitRows(range(first, first + 1), NO_ROWS, ())
    begin, count = packed.start, 0
    if sequence.request.params.prompt_logprobs is not None:
        begin = max(begin, sequence.request.params.prompt_logprobs_start - 1)
        count = max(0, min(packed.start + packed.count, sequence.num_prompt_tokens - slots - 1) - begin)
    row = packed.row + begin - packed.start
    rows += range(row, row + count)
    prompt = range(first, first + count)
    targets = tuple(tokens[begin + 1 : begin + 1 + count])
    first = len(rows)
    if item.samples:
        rows += range(packed.row + packed.count - 1 - len(item.draft_token_ids), packed.row + packed.count)
    return LogitRows(range(first, len(rows)), prompt, targets)
