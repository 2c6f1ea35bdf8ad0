"""The model runner computes a batch: one forward pass, then sampled tokens. It knows no queue, clock or text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from models.weights.loading import LowRankWeights, load_adapter
from service.engine.kv_cache.window import WindowPool
from service.engine.protocol.messages import Request, SamplingParams, TokenLogprobs
from service.engine.protocol.profiling import NamedPart
from service.engine.runner.draft_model import DraftModel
from service.engine.runner.forwards.forward import CannotServe, Forward
from service.engine.runner.forwards.step import RowRules, Step, pack
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.native.library import library
from service.engine.runner.offload_file import OffloadFile
from service.engine.runner.pooling import pooled
from service.engine.runner.sampling.masks import MaskThread, PendingMasks
from service.engine.runner.sampling.row import SamplerRow
from service.engine.runner.sampling.sampler import Sampler, verified
from service.engine.runner.trace_recorder import TraceRecorder
from service.engine.sequences.batch import Batch, BlockCopy, SampledToken, Scheduled
from service.engine.sequences.constraint import Grammars
from service.engine.sequences.sequence import Sequence

PART_ROWS: Final = 256
"""Rows of prompt logits in one part: enough for the linear layers' full speed."""


def parts_of(batch: Batch) -> list[dict[int, Scheduled]]:
    """What is computed together, by the items' places in the batch; the parts one after the other. An item that is cut
    has a piece in several parts, and only its last piece can sample."""
    parts: list[dict[int, Scheduled]] = [{}]
    room = PART_ROWS
    for place, item in enumerate(batch.scheduled):
        num_rows = _num_logprob_rows(item)
        if not num_rows:
            parts[0][place] = item
            continue
        if num_rows <= room:
            parts[-1][place] = item
            room -= num_rows
            continue
        for piece in _pieces(item, room):
            if not room:
                parts.append({})
                room = PART_ROWS
            parts[-1][place] = piece
            room -= piece.num_tokens
    return parts


def joined(earlier: SampledToken | None, later: SampledToken | None) -> SampledToken | None:
    """What two pieces of one item gave, as if they were one."""
    if earlier is None or later is None:
        return earlier or later
    return replace(later, prompt_logprobs=earlier.prompt_logprobs + later.prompt_logprobs)


def _num_logprob_rows(item: Scheduled) -> int:
    """Returns the number of rows whose prompt logprobs are asked for. An encoder's input is never cut
    and has no logits."""
    sequence, params = item.sequence, item.sequence.request.params
    start = sequence.num_computed_tokens
    if params.prompt_logprobs is None or sequence.num_encoder_slots or start >= sequence.num_prompt_tokens:
        return 0
    return max(0, start + item.num_tokens - max(start, params.prompt_logprobs_start - 1))


def _pieces(item: Scheduled, room: int) -> Iterator[Scheduled]:
    """The first takes what room there is, if any."""
    start, left = item.sequence.num_computed_tokens, item.num_tokens
    while left:
        count = min(left, room or PART_ROWS)
        whole = count == item.num_tokens
        yield item if whole else Scheduled(replace(item.sequence, num_computed_tokens=start), count)
        start, left, room = start + count, left - count, 0


class ModelRunner:
    """One model on one device, the only owner of its weights and KV tensors. One thread calls it."""

    def __init__(
        self,
        forward: Forward,
        cache: KVCache,
        rules: RowRules,
        device: torch.device,
        offload: OffloadFile | None = None,
    ) -> None:
        self.num_disk_blocks = offload.num_disk_blocks if offload else 0
        self._offload = offload
        self.forward = forward
        self.vocab_size = forward.vocab_size
        self.no_states = forward.no_states
        self.cache = cache
        self._rules = rules
        self._device = device
        self._sampler = Sampler()
        self._masks = MaskThread()
        self.grammars: Grammars | None = None
        self.draft_model: DraftModel | None = None
        self.adapters: set[str] = set()
        self.verifies_drafts = forward.invariant and device.type == "cpu"

    def windows(self) -> WindowPool | None:
        """Returns a new pool of the cache's window blocks, if it has any."""
        return self.cache.windows()

    @torch.inference_mode()
    def read_adapter(self, name: str, directory: str) -> Callable[[], None]:
        """Reads the adapter of the version in `directory`; any thread may call it, beside steps. What it returns makes
        it part of the model and tries it, between two steps. Raises OSError or InvalidSource, and the result raises
        CannotServe for an adapter that this forward cannot compute. So does reading one for a divided model."""
        if self.cache.is_divided:
            raise CannotServe("a model that is divided among devices takes no adapters: use vLLM with tensor_parallel")
        return partial(self._attach, name, load_adapter(directory, self._device))

    def load_adapter(self, name: str, directory: str) -> None:
        """Both at once."""
        self.read_adapter(name, directory)()

    @torch.inference_mode()
    def _attach(self, name: str, weights: Mapping[str, LowRankWeights]) -> None:
        self.forward.load_adapter(name, weights)
        try:
            self.forward(self._trial(name))
        except BaseException:
            self.forward.unload_adapter(name)
            raise
        self.adapters.add(name)

    def _trial(self, adapter: str) -> Step:
        """Two tokens in the block that nobody reads."""
        sequence = Sequence.of(Request("trial", (0, 0), SamplingParams(max_tokens=1), adapter=adapter))
        sequence.block_table = [self.cache.num_blocks]
        sequence.window_table = [self.cache.num_window_blocks]
        return pack(Batch((Scheduled(sequence, 2),)), self.cache, self._rules, self._device)

    def recorder(self, kind: str) -> TraceRecorder:
        """Returns a recorder of this thread's operators, for a profile of this kind."""
        kernels = library()
        names = {"_packed": "pack", "_logits": "forward", "_sampled": "sample"}
        parts = [NamedPart(self, method, f"dosirak::{name}") for method, name in names.items()]
        if self.draft_model is not None:
            parts.append(NamedPart(self.draft_model, "draft", "dosirak::draft"))
        return TraceRecorder(kind, self._device, [*parts, *self._sampler.parts], kernels)

    def unload_adapter(self, name: str) -> None:
        """Frees an adapter that no sequence uses."""
        self.adapters.discard(name)
        self.forward.unload_adapter(name)

    def copy(self, copies: Seq[BlockCopy]) -> Seq[BlockCopy]:
        """Makes these between the blocks and the offload file, in order; those that failed."""
        return self._offload.copy(copies) if self._offload else copies

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[SampledToken | None]:
        """Writes the keys and values of every scheduled token into its sequence's blocks, then samples. Parallel to
        `batch.scheduled`: a SampledToken where the item samples or has prompt logprobs to tell, else None. Changes no
        sequence. Behind drafts every row samples as if they were true; what follows the first untrue one is dropped.

        Prompt logprobs come with the row that predicts them: a step over prompt positions [a, b) tells those of the
        tokens a+1 .. b, so that all chunks together tell each prompt position from 1 on exactly once.
        """
        results: list[SampledToken | None] = [None] * len(batch.scheduled)
        for part in parts_of(batch):
            for place, result in zip(part, self._run(Batch(tuple(part.values()))), strict=True):
                results[place] = joined(results[place], result)
        return results

    def _run(self, batch: Batch) -> list[SampledToken | None]:
        allowed = self._masks.begin(batch.scheduled)
        step = self._packed(batch)
        return self._sampled(batch.scheduled, step, self._logits(step), allowed)

    def _packed(self, batch: Batch) -> Step:
        return pack(batch, self.cache, self._rules, self._device)

    def _logits(self, step: Step) -> Tensor:
        return self.forward(step)

    def _sampled(
        self, items: Seq[Scheduled], step: Step, logits: Tensor, masks: PendingMasks
    ) -> list[SampledToken | None]:
        allowed = masks.result()
        rows = [row for item in items if item.samples for row in SamplerRow.of(item, allowed.get(item.sequence, ()))]
        sampled = iter(self._sampler.sample(_sample_logits(logits, step), rows, in_place=True))
        results = [verified(item, sampled) if item.samples else None for item in items]
        for i, where in enumerate(step.where):
            if where.targets:
                top = items[i].sequence.request.params.prompt_logprobs or 0
                logprobs = self._sampler.token_logprobs(
                    logits[where.prompt.start : where.prompt.stop], where.targets, top
                )
                results[i] = _with_prompt(results[i], tuple(logprobs))
        if step.final is not None:
            for i, states in enumerate(step.final.of_items):
                if vector := pooled(items[i], states):
                    results[i] = SampledToken(None, pooled=vector)
        return results

    @torch.inference_mode()
    def prompt_logits(self, batch: Batch) -> Tensor:
        """Of a single prompt that asks for prompt logprobs: the logits [n, vocabulary] that predict its next tokens;
        writes its keys and values. Samples nothing."""
        step = pack(batch, self.cache, self._rules, self._device)
        rows = step.where[0].prompt
        return self.forward(step)[rows.start : rows.stop]


def _sample_logits(logits: Tensor, step: Step) -> Tensor:
    """The rows to sample from, in the order of the items."""
    rows = [row for where in step.where for row in where.sample]
    if rows == list(range(len(rows))):
        return logits[: len(rows)]
    return logits.index_select(0, torch.tensor(rows, device=logits.device))


def _with_prompt(token: SampledToken | None, logprobs: tuple[TokenLogprobs, ...]) -> SampledToken:
    if token is None:
        return SampledToken(None, prompt_logprobs=logprobs)
    return replace(token, prompt_logprobs=logprobs)
