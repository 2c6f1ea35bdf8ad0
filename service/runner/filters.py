"""Which tokens top-k, top-p, min-p and typical-p leave to draw from. Knows rows of scores and parameters; no chance.

Every row is judged alone: sums run along a row in an order that does not depend on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from service.engine.messages import SamplingParams

TOP_CANDIDATES = 512
STRETCH = 256
Params = Seq[SamplingParams]


def has_filter(params: SamplingParams) -> bool:
    """Whether any filter can drop a token."""
    return any(active(params) for active, _ in FILTERS)


def filtered(scores: Tensor, params: Params) -> Tensor:
    """Minus infinity where a filter drops a token, each filter seeing what those before it left."""
    for active, keep in FILTERS:
        members = [i for i, p in enumerate(params) if active(p)]
        if not members:
            continue
        part = take(scores, members)
        part = part.masked_fill(~keep(part, [params[i] for i in members]), float("-inf"))
        scores = (
            part if len(members) == len(params) else scores.index_copy(0, torch.tensor(members).to(scores.device), part)
        )
    return scores


def take(table: Tensor, indices: Seq[int]) -> Tensor:
    if len(indices) == table.shape[0]:
        return table
    return table.index_select(0, torch.tensor(indices, device=table.device))


def column(like: Tensor, values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=like.dtype, device=like.device)[:, None]


def weights_of(scores: Tensor) -> Tensor:
    """Probabilities but for a factor."""
    return (scores - scores.amax(-1, keepdim=True)).exp_()


def stretches_of(weights: Tensor) -> Tensor:
    """[rows, stretches, STRETCH]. Sums of stretches do not depend on the number of rows; those of one long row do, for
    torch cuts it among its threads."""
    return torch.nn.functional.pad(weights, (0, -weights.shape[1] % STRETCH)).view(len(weights), -1, STRETCH)


def _keep_top_k(scores: Tensor, params: Params) -> Tensor:
    counts = [min(p.top_k, scores.shape[1]) for p in params]
    largest = scores.topk(max(counts), dim=-1).values
    return _keep_largest(scores, largest, torch.tensor(counts, device=scores.device))


def _keep_top_p(scores: Tensor, params: Params) -> Tensor:
    """The fewest likeliest tokens whose probabilities reach top_p, at least one (Holtzman et al., 2020)."""
    wanted = column(scores, (p.top_p for p in params)).double()
    best = scores.amax(-1, keepdim=True)
    total = stretches_of(weights_of(scores)).sum(-1).double().cumsum(-1)[:, -1:].log() + best.double()
    width = min(TOP_CANDIDATES, scores.shape[1])
    largest = scores.topk(width, dim=-1).values
    before = _mass_before(largest, total)
    short = (before[:, -1] < wanted[:, 0]).nonzero()[:, 0].tolist() if width < scores.shape[1] else []
    if not short:
        return _keep_largest(scores, largest, (before < wanted).sum(-1).clamp_(min=1))
    if len(short) == len(params):
        largest = scores.sort(dim=-1, descending=True).values
        return _keep_largest(scores, largest, (_mass_before(largest, total) < wanted).sum(-1).clamp_(min=1))
    wide = set(short)
    parts = (short, [i for i in range(len(params)) if i not in wide])
    kept = torch.empty(scores.shape, dtype=torch.bool, device=scores.device)
    for members in parts:
        kept[members] = _keep_top_p(scores[members], [params[i] for i in members])
    return kept


def _mass_before(largest: Tensor, total: Tensor) -> Tensor:
    """Probability of all tokens before each of the sorted ones. Sums one after the other, so a prefix's are its own."""
    probabilities = (largest.double() - total).exp()
    return probabilities.cumsum(-1) - probabilities


def _keep_largest(scores: Tensor, largest: Tensor, counts: Tensor) -> Tensor:
    """The `counts` [rows] largest of each row, ties by lower id; `largest` are the rows' largest values, sorted."""
    least = largest.gather(1, counts[:, None] - 1)
    kept = scores >= least
    if bool((kept.sum(-1) == counts).all()):  # no ties at the border
        return kept
    room = counts[:, None] - (largest > least).sum(-1, keepdim=True)
    tied = scores == least
    return (scores > least) | (tied & (tied.cumsum(-1) <= room))


def _keep_min_p(scores: Tensor, params: Params) -> Tensor:
    """Tokens at least min_p times as likely as the likeliest."""
    probabilities = scores.softmax(-1)
    return probabilities >= column(scores, (p.min_p for p in params)) * probabilities.amax(-1, keepdim=True)


def _keep_typical(scores: Tensor, params: Params) -> Tensor:
    """Tokens whose surprise is nearest to the entropy, until typical_p is reached (Meister et al., 2023)."""
    logprobs = scores.log_softmax(-1)
    entropy = -(logprobs * logprobs.exp()).nansum(-1, keepdim=True)
    distance = (-logprobs - entropy).abs()
    nearest, order = distance.sort(dim=-1, stable=True)
    mass = logprobs.exp().double().gather(1, order).cumsum(-1)
    last = (mass < column(mass, (p.typical_p for p in params))).sum(-1, keepdim=True).clamp_(max=scores.shape[1] - 1)
    return distance <= nearest.gather(1, last)


Filter = tuple[Callable[[SamplingParams], bool], Callable[[Tensor, Params], Tensor]]
FILTERS: tuple[Filter, ...] = (
    (lambda p: p.top_k > 0, _keep_top_k),
    (lambda p: p.top_p < 1.0, _keep_top_p),
    (lambda p: p.min_p > 0.0, _keep_min_p),
    (lambda p: p.typical_p < 1.0, _keep_typical),
)
