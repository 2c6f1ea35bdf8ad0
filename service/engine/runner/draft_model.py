"""The draft model guesses tokens for the model that serves: some passes over single rows, each sampled with the
parameters, the seed and the output position of the token that it stands for.

It has keys and values of its own in blocks with the numbers of the serving model's blocks. What it has read into a slot
is known by the token there. So nothing needs to be told to it: text that it has not read, because the serving model
decoded without drafts or found it in the prefix cache, is unread, and so are drafts that were wrong.

    token_ids       [ read ........ | unread ..... last ]
    first pass                        ^ these rows ... ^ samples draft 1
    next passes                                           draft 1 ▶ draft 2 ▶ draft 3

A slot may hold the same token of another text by chance. Then a draft rests on a wrong value, which costs speed at
most: every draft is verified.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from service.engine.protocol.messages import SamplingParams
from service.engine.runner.forwards.attention import AttentionPlan, SequenceRows
from service.engine.runner.forwards.forward import Forward
from service.engine.runner.forwards.step import RowRules, Step
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.sampling.row import SamplerRow, is_penalised
from service.engine.runner.sampling.sampler import Sampler
from service.engine.scheduling.cost import CostLine, StepWork, chunk_attention
from service.engine.scheduling.draft_model import DraftOrder
from service.engine.sequences.sequence import Sequence

MAX_READ_TOKENS: Final = 512
"""The most unread tokens in one pass, so that other sequences do not wait long."""
_TRIAL_ROWS: Final = (1, 2, 4, 8)
_TRIALS: Final = 6


class DraftModel:
    """A model that makes drafts. It implements `service.engine.scheduling.draft_model.DraftModel`. One thread calls
    it."""

    def __init__(self, forward: Forward, cache: KVCache, rules: RowRules, vocab_size: int, max_num_tokens: int) -> None:
        """`cache` has as many blocks as the serving model's, of the same size. `vocab_size` is that of the serving
        model. Measures some passes, so that the first drafts have a cost."""
        self.cost = CostLine()
        self.max_num_tokens = max_num_tokens
        self.forward = forward
        self.cache = cache
        self._rules = rules
        self._vocab_size = vocab_size
        self._sampler = Sampler()
        self._read = np.full((cache.num_blocks + 1, cache.block_size), -1, np.int64)
        self._measure()

    def num_unread(self, sequence: Sequence) -> int:
        return len(sequence.token_ids) - self._first_unread(sequence)

    @torch.inference_mode()
    def draft(self, orders: Seq[DraftOrder]) -> tuple[list[tuple[int, ...]], float]:
        started = time.perf_counter()
        sources = [_Source.of(order, self._first_unread(order.sequence)) for order in orders]
        ready = self._read_unread(sources)
        while ready:
            ready = self._pass([each for each in ready if len(each.drafts) < each.count])
        return [tuple(each.drafts) for each in sources], time.perf_counter() - started

    def _first_unread(self, sequence: Sequence) -> int:
        """Returns the first position whose slot holds another token than the sequence has there; at most the last."""
        tokens, size, at = sequence.token_ids, self.cache.block_size, sequence.num_read_tokens
        while at < len(tokens) - 1:
            block, first = sequence.block_table[at // size], at % size
            known = tokens[at : at - first + size]
            wrong = self._read[block, first : first + len(known)] != known
            at += int(wrong.argmax()) if wrong.any() else len(known)
            if wrong.any():
                break
        sequence.num_read_tokens = min(at, len(tokens) - 1)
        return sequence.num_read_tokens

    def _read_unread(self, sources: Seq[_Source]) -> list[_Source]:
        """Reads the unread tokens, MAX_READ_TOKENS at most. Returns the sources whose last token was read, with their
        first draft."""
        reading, room = [], MAX_READ_TOKENS
        for source in sorted(sources, key=lambda each: len(each.tokens)):
            if room:
                source.tokens = source.tokens[:room]
                room -= len(source.tokens)
                reading.append(source)
        return self._pass(reading)

    def _pass(self, sources: Seq[_Source]) -> list[_Source]:
        """Computes the tokens of the sources, and samples behind those that end with the newest token. Returns the
        sources that got a draft, which is their next token."""
        if not sources:
            return []
        sampling = [each for each in sources if each.is_complete]
        started = time.perf_counter()
        logits = self.forward(self._step([each.rows for each in sources], [each.is_complete for each in sources]))
        for each in sources:
            self._note(each)
        sampled = self._sampler.sample(self._fitted(logits[: len(sampling)]), [each.row() for each in sampling])
        self._observe(sources, time.perf_counter() - started)
        drafted = []
        for each, token in zip(sampling, sampled, strict=True):
            if token.token_id is not None:
                each.take(token.token_id)
                drafted.append(each)
        return drafted

    def _step(self, inputs: Seq[tuple[Seq[int], int, Seq[int]]], sampling: Seq[bool]) -> Step:
        """Packs (tokens, position of the first, block table). The last row of those that sample needs logits."""
        token_ids: list[int] = []
        positions: list[int] = []
        sequences: list[SequenceRows] = []
        logit_rows: list[int] = []
        for (tokens, start, table), samples in zip(inputs, sampling, strict=True):
            sequences.append(SequenceRows(len(token_ids), len(tokens), start, table))
            known = self.forward.vocab_size
            token_ids += [token if token < known else 0 for token in tokens]
            positions += range(start, start + len(tokens))
            if samples:
                logit_rows.append(len(token_ids) - 1)
        padding = [0] * (-len(token_ids) % self._rules.linear)
        logit_rows += [0] * (-len(logit_rows) % self._rules.linear)
        device = self.cache.device
        num_rows = len(token_ids) + len(padding)
        plan = AttentionPlan(self.cache, sequences, num_rows, self._rules.attention, device)
        return Step(
            torch.tensor(token_ids + padding, device=device),
            torch.tensor(positions + padding, device=device),
            plan,
            tuple(sequences),
            torch.tensor(logit_rows, dtype=torch.long, device=device),
            (),
        )

    def _fitted(self, logits: Tensor) -> Tensor:
        """Returns logits [rows, vocabulary of the serving model]: its parameters name tokens of that vocabulary."""
        missing = self._vocab_size - logits.shape[1]
        return torch.nn.functional.pad(logits.float(), (0, missing), value=float("-inf"))

    def _note(self, source: _Source) -> None:
        """Records which tokens now lie in the slots."""
        size, at = self.cache.block_size, source.start
        for token in source.tokens:
            self._read[source.sequence.block_table[at // size], at % size] = token
            at += 1

    def _observe(self, sources: Seq[_Source], seconds: float) -> None:
        rows = kv_tokens = 0
        attention = 0.0
        for each in sources:
            count = len(each.tokens)
            rows += count
            if count == 1:
                kv_tokens += each.start + 1
            else:
                attention += chunk_attention(each.start, count)
        self.cost.observe(StepWork(rows, kv_tokens, attention), seconds)

    @torch.inference_mode()
    def _measure(self) -> None:
        """Times passes over the block that nobody reads."""
        greedy = SamplerRow(SamplingParams(max_tokens=1), 0)
        for rows in _TRIAL_ROWS * _TRIALS:
            started = time.perf_counter()
            logits = self.forward(self._step([((0,), 0, (self.cache.num_blocks,))] * rows, [True] * rows))
            self._sampler.sample(self._fitted(logits[:rows]), [greedy] * rows)
            self.cost.observe(StepWork(rows, rows), time.perf_counter() - started)


@dataclass(slots=True, eq=False)
class _Source:
    """A sequence that gets drafts: the tokens of its next pass and their first position."""

    sequence: Sequence
    count: int
    tokens: Seq[int]
    start: int
    num_known: int
    params: SamplingParams
    drafts: list[int]

    @classmethod
    def of(cls, order: DraftOrder, start: int) -> _Source:
        sequence = order.sequence
        params = replace(sequence.request.params, logprobs=None)
        return cls(sequence, order.count, sequence.token_ids[start:], start, len(sequence.token_ids), params, [])

    @property
    def rows(self) -> tuple[Seq[int], int, Seq[int]]:
        return self.tokens, self.start, self.sequence.block_table

    @property
    def is_complete(self) -> bool:
        """Whether its tokens end with the newest one, so that a draft follows."""
        return self.start + len(self.tokens) == self.num_known + len(self.drafts)

    def row(self) -> SamplerRow:
        counts = self.sequence.counted() if is_penalised(self.params) else None
        if counts and self.drafts:
            counts = counts.behind(self.drafts)
        return SamplerRow(self.params, self.sequence.num_output_tokens + len(self.drafts), counts)

    def take(self, token: int) -> None:
        """Takes in a draft, which the next pass computes."""
        self.start += len(self.tokens)
        self.tokens = (token,)
        self.drafts.append(token)
