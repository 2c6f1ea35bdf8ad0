"""The sampler makes token ids and logprobs of logits. It knows rows and parameters; no models or steps.

logits ─▶ processors: penalties, bias, bans, masks ─▶ temperature, top-k, top-p, min-p, typical-p ─▶ token
      └─────────────────────────────────────────────────────────────────────────────────────▶ its logprobs, raw

Rows are independent: every operation works along a row, and chance is one number from (seed, output position), so a
row's token is the same alone or among others.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from service.engine.protocol.messages import TokenLogprobs
from service.engine.protocol.profiling import NamedPart
from service.engine.runner.native.library import library
from service.engine.runner.sampling.native import NativeSampling
from service.engine.runner.sampling.processors import Bans, Bias, LogitsProcessor, Masks, Penalties
from service.engine.runner.sampling.reference import TorchSampling
from service.engine.runner.sampling.row import SamplerRow
from service.engine.sequences.batch import SampledToken, Scheduled


class Backend(Protocol):
    """The arithmetic over rows [vocabulary] of fp32 logits or scores."""

    def penalize(self, logits: Seq[Tensor], rows: Seq[SamplerRow]) -> None:
        """In place, by the counts that every one of these rows has."""

    def mask(self, logits: Seq[Tensor], masks: Seq[bytes]) -> None:
        """In place: minus infinity where a row's mask has no bit."""

    def draw(self, scores: Seq[Tensor], rows: Seq[SamplerRow]) -> list[int]:
        """One token for each row; -1 where it holds no usable number."""

    def logprobs(self, logits: Seq[Tensor], tokens: Seq[int], tops: Seq[int]) -> list[TokenLogprobs | None]:
        """Of each row's token, and of as many of its likeliest; None where the row holds no usable number."""


class Sampler:
    """Samples on the CPU, wherever the logits lie. Owns the room that changed logits take; one thread calls it."""

    def __init__(self, backend: Backend | None = None) -> None:
        """By default the native kernels where they are built, else torch operations: both give the same."""
        kernels = library()
        self._backend = backend or (TorchSampling() if kernels is None else NativeSampling(kernels))
        masks = Masks(self._backend.mask)
        self._processors: tuple[LogitsProcessor, ...] = (Penalties(self._backend.penalize), Bias(), Bans(), masks)
        self._room = torch.empty(0)

    @property
    def parts(self) -> Seq[NamedPart]:
        """Returns the kernels that a profile names; torch names its operators itself."""
        return self._backend.parts if isinstance(self._backend, NativeSampling) else ()

    def sample(self, logits: Tensor, rows: Seq[SamplerRow], in_place: bool = False) -> list[SampledToken]:
        """One token for each row of `logits` [rows, vocabulary]. A row without a usable number gives token_id None and
        does not touch its neighbours. `logits` is not changed, but with `in_place`, which spares copies, where a row
        asks for no logprobs."""
        raw = list(logits.float().cpu().unbind(0))
        tokens = self._drawn(raw, rows, in_place)
        asking = [i for i, row in enumerate(rows) if row.params.logprobs is not None and tokens[i] >= 0]
        tops = [rows[i].params.logprobs or 0 for i in asking]
        logprobs = self._logprobs([raw[i] for i in asking], [tokens[i] for i in asking], tops)
        by_row = dict(zip(asking, logprobs, strict=True))
        return [
            SampledToken(None)
            if token < 0 or (i in by_row and by_row[i] is None)
            else SampledToken(token, by_row.get(i))
            for i, token in enumerate(tokens)
        ]

    def _drawn(self, raw: Seq[Tensor], rows: Seq[SamplerRow], in_place: bool) -> list[int]:
        """One token for each row; -1 where it holds no usable number. Rows whose token is certain cost nothing."""
        tokens = [row.allowed if isinstance(row.allowed, int) else -1 for row in rows]
        open_ = [i for i, row in enumerate(rows) if not isinstance(row.allowed, int)]
        chosen = [rows[i] for i in open_]
        scores = self.processed([raw[i] for i in open_], chosen, in_place)
        drawn = self._backend.draw(scores, chosen) if open_ else ()
        for i, token in zip(open_, drawn, strict=True):
            tokens[i] = token
        return tokens

    def token_logprobs(self, logits: Tensor, tokens: Seq[int], top: int) -> list[TokenLogprobs]:
        """Raw logprobs of `tokens`, one a row of `logits` [rows, vocabulary], and of the `top` likeliest of each row;
        NaN for a row without a usable number."""
        logprobs = self._logprobs(list(logits.float().cpu().unbind(0)), tokens, [top] * len(tokens))
        return [each or TokenLogprobs(float("nan")) for each in logprobs]

    def _logprobs(self, logits: Seq[Tensor], tokens: Seq[int], tops: Seq[int]) -> list[TokenLogprobs | None]:
        return self._backend.logprobs(logits, tokens, [min(top, logits[0].shape[0]) for top in tops])

    def processed(self, raw: Seq[Tensor], rows: Seq[SamplerRow], in_place: bool = False) -> list[Tensor]:
        """`raw`, but changed copies for the rows that a processor concerns; `in_place` as in `sample`."""
        scores = list(raw)
        concerned = [i for i, row in enumerate(rows) if any(each.concerns(row) for each in self._processors)]
        kept = [i for i in concerned if not in_place or rows[i].params.logprobs is not None]
        for i, copy in zip(kept, self._copies([raw[i] for i in kept]), strict=True):
            scores[i] = copy
        for processor in self._processors:
            members = [i for i in concerned if processor.concerns(rows[i])]
            if members:
                processor.apply([scores[i] for i in members], [rows[i] for i in members])
        return scores

    def _copies(self, rows: Seq[Tensor]) -> Seq[Tensor]:
        """In the same memory as the last ones: new pages for as much would take longer than the copy. By this thread
        alone: torch's would wait for one another at every row."""
        if not rows:
            return ()
        size = len(rows) * len(rows[0])
        if self._room.numel() < size:
            self._room = torch.empty(size)
        copies = self._room[:size].view(len(rows), -1).unbind(0)
        for copy, row in zip(copies, rows, strict=True):
            copy.numpy()[:] = row.numpy()
        return copies


def verified(item: Scheduled, sampled: Iterator[SampledToken]) -> SampledToken:
    """Takes the tokens of the item's rows; the first of them, with those that follow true drafts."""
    first, *others = islice(sampled, len(item.draft_token_ids) + 1)
    following: list[SampledToken] = []
    for draft, token in zip(item.draft_token_ids, others, strict=True):
        if draft != (following[-1] if following else first).token_id:
            break
        following.append(token)
    return replace(first, following=tuple(following)) if following else first
