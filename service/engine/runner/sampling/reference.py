"""The reference draws tokens and computes logprobs in torch operations. The native kernels repeat it bit for bit; the
reference serves where there are no kernels.

Drawing inverts the cumulative distribution over the kept tokens in the order of their ids, in integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from service.engine.protocol.messages import TokenLogprobs
from service.engine.runner.sampling.filters import UNIT, filtered, masses_of, weights_of
from service.engine.runner.sampling.row import POINT_BITS, SamplerRow


@contextmanager
def _one_thread() -> Iterator[None]:
    """A row's operations are short: several threads would wait for one another longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class TorchSampling:
    """Each row [vocabulary] is computed by itself, by the calling thread."""

    def penalize(self, logits: Seq[Tensor], rows: Seq[SamplerRow]) -> None:
        """In place, by the counts that every one of these rows has."""
        for each, row in zip(logits, rows, strict=True):
            _penalize(each, row)

    def mask(self, logits: Seq[Tensor], masks: Seq[bytes]) -> None:
        """In place: minus infinity where a row's mask has no bit."""
        for each, mask in zip(logits, masks, strict=True):
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=len(each), bitorder="little")
            each[torch.from_numpy(bits == 0)] = float("-inf")

    def draw(self, scores: Seq[Tensor], rows: Seq[SamplerRow]) -> list[int]:
        """One token for each row; -1 where it holds no usable number."""
        with _one_thread():
            return [_draw(each, row) for each, row in zip(scores, rows, strict=True)]

    def logprobs(self, logits: Seq[Tensor], tokens: Seq[int], tops: Seq[int]) -> list[TokenLogprobs | None]:
        """Of each row's token, and of as many of its likeliest; None where the row holds no usable number."""
        with _one_thread():
            return [_logprobs(*each) for each in zip(logits, tokens, tops, strict=True)]


def _penalize(logits: Tensor, row: SamplerRow) -> None:
    p, counts = row.params, row.counts
    assert counts is not None
    ids = torch.tensor(counts.token_ids, dtype=torch.long)
    output = torch.tensor(counts.output_counts, dtype=torch.float32)
    values = logits[ids]
    values = torch.where(values < 0, values * p.repetition_penalty, values / p.repetition_penalty)
    logits[ids] = values - output * p.frequency_penalty - (output > 0) * p.presence_penalty


def _draw(scores: Tensor, row: SamplerRow) -> int:
    peak, likeliest = scores.max(0)
    if not math.isfinite(peak):
        return -1
    if row.is_greedy:
        return int(likeliest)
    weights = filtered(scores, weights_of(scores, row.params.temperature), row.params)
    sums = masses_of(weights).cumsum(0)
    point = row.point * int(sums[-1]) >> POINT_BITS
    return int(torch.searchsorted(sums, point, right=True))


def _logprobs(logits: Tensor, token: int, top: int) -> TokenLogprobs | None:
    peak = float(logits.max())
    if not math.isfinite(peak):
        return None
    mass = int(masses_of(weights_of(logits, 1.0)).sum())
    ids = _likeliest(logits, top).tolist() if top else []
    return logprobs_of(float(logits[token]), peak, mass, ids, logits[ids].tolist())


def _likeliest(logits: Tensor, top: int) -> Tensor:
    """Ids, sorted by their logits, ties by lower id: topk gives the right values but any of the tied ids."""
    ids = (logits >= logits.topk(top).values[-1]).nonzero()[:, 0]
    return ids[logits[ids].sort(descending=True, stable=True).indices][:top]


def logprobs_of(score: float, peak: float, mass: int, ids: Seq[int], scores: Seq[float]) -> TokenLogprobs:
    """From a row's scores, of which `peak` is the largest and `mass` that of all at temperature 1."""
    level = peak + math.log(mass / UNIT)
    return TokenLogprobs(score - level, tuple((id, each - level) for id, each in zip(ids, scores, strict=True)))
