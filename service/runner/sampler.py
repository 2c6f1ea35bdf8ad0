"""Logits → token ids and logprobs. Knows rows and sampling parameters; nothing of models or steps.

Rows are independent: every operation works along a row, and randomness is one number from (seed, output position), so a
row's token is the same alone or among others. The order of operations is that of transformers' `generate`: repetition
penalty, frequency and presence penalties, logit bias, banned stop tokens, temperature, top-k, top-p, min-p, typical-p.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from service.engine.batch import SampledToken, Scheduled
from service.engine.messages import MIN_TEMPERATURE, SamplingParams, TokenLogprobs
from service.runner.filters import STRETCH, TOP_CANDIDATES, column, filtered, has_filter, stretches_of, take, weights_of

MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """What one row of logits is sampled with. `token_ids` is prompt + output so far, read only, of an encoder-decoder
    model the decoder's; `drafts` come behind it and count as output."""

    params: SamplingParams
    token_ids: list[int]
    num_prompt_tokens: int
    drafts: tuple[int, ...] = ()

    @classmethod
    def of(cls, item: Scheduled) -> list[SamplerRow]:
        """One for its last known token, and one for each draft behind it as if it and those before it were true."""
        sequence, drafts = item.sequence, item.draft_token_ids
        params, known = sequence.request.params, sequence.decoder_token_ids
        prompt = sequence.num_prompt_tokens - sequence.num_encoder_slots
        if not drafts:
            return [cls(params, known, prompt)]
        return [cls(params, known, prompt, drafts[:count]) for count in range(len(drafts) + 1)]

    @property
    def position(self) -> int:
        """Index of the token to be sampled among the output tokens."""
        return len(self.token_ids) + len(self.drafts) - self.num_prompt_tokens

    @property
    def seen(self) -> list[int]:
        """Every token before the one to be sampled."""
        return [*self.token_ids, *self.drafts]


def sample(logits: Tensor, rows: Seq[SamplerRow]) -> list[SampledToken]:
    """One token for each row of `logits` [rows, vocabulary]. A row without a finite maximum gives token_id None and
    does not touch its neighbours. `logits` is not changed."""
    if not rows:
        return []
    raw = logits.float()
    scores = process(raw, rows)
    random = [i for i, row in enumerate(rows) if row.params.temperature >= MIN_TEMPERATURE]
    best, greedy = scores.max(-1)
    usable = torch.isfinite(best)
    if scores is not raw:
        usable &= torch.isfinite(raw.amax(-1))
    tokens = greedy.masked_fill(~usable, -1).tolist()
    drawable = [i for i in random if tokens[i] >= 0]
    if drawable:
        chosen = draw(take(scores, drawable), [rows[i] for i in drawable])
        for i, token in zip(drawable, chosen, strict=True):
            tokens[i] = token
    return _with_logprobs(raw, rows, tokens)


def verified(item: Scheduled, sampled: Iterator[SampledToken]) -> SampledToken:
    """Takes the tokens of the item's rows; the first of them, with those that follow true drafts."""
    first, *others = islice(sampled, len(item.draft_token_ids) + 1)
    following: list[SampledToken] = []
    for draft, token in zip(item.draft_token_ids, others, strict=True):
        if draft != (following[-1] if following else first).token_id:
            break
        following.append(token)
    return replace(first, following=tuple(following)) if following else first


def token_logprobs(logits: Tensor, tokens: Seq[int], top: int) -> list[TokenLogprobs]:
    """Raw logprobs of `tokens`, one a row of `logits` [rows, vocabulary], and of the `top` likeliest of each row."""
    table = logits.float().log_softmax(-1)
    chosen = table.gather(1, torch.tensor(tokens, device=table.device)[:, None])[:, 0].tolist()
    if not top:
        return [TokenLogprobs(value) for value in chosen]
    values, ids = table.sort(dim=-1, descending=True, stable=True) if top > TOP_CANDIDATES else _top(table, top)
    pairs = zip(ids[:, :top].tolist(), values[:, :top].tolist(), strict=True)
    return [
        TokenLogprobs(value, tuple(zip(row_ids, row_values, strict=True)))
        for value, (row_ids, row_values) in zip(chosen, pairs, strict=True)
    ]


def _with_logprobs(raw: Tensor, rows: Seq[SamplerRow], tokens: Seq[int]) -> list[SampledToken]:
    found: dict[int, TokenLogprobs] = {}
    asking = [i for i, row in enumerate(rows) if row.params.logprobs is not None and tokens[i] >= 0]
    for top in {rows[i].params.logprobs for i in asking}:
        members = [i for i in asking if rows[i].params.logprobs == top]
        found.update(
            zip(members, token_logprobs(take(raw, members), [tokens[i] for i in members], top or 0), strict=True)
        )
    return [SampledToken(None) if token < 0 else SampledToken(token, found.get(i)) for i, token in enumerate(tokens)]


def _top(table: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The `top` largest of each row, ties by lower id: topk gives the right values but any of the tied ids."""
    least = table.topk(min(top, table.shape[1]), dim=-1).values[:, -1:]
    width = int((table >= least).sum(-1).max())
    ids = torch.where(table >= least, 1.0, 0.0).topk(width, dim=-1).indices.sort(-1).values
    values, order = table.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


# -- penalties, bias and bans: sparse, row by row ---------------------------------------------------------------------


def process(raw: Tensor, rows: Seq[SamplerRow]) -> Tensor:
    """`raw` itself when no row asks for a change, else a changed copy."""
    touched = [i for i, row in enumerate(rows) if _changes_logits(row)]
    if not touched:
        return raw
    scores = raw.clone()
    for i in touched:
        _process_row(scores[i], rows[i])
    return scores


def _changes_logits(row: SamplerRow) -> bool:
    p = row.params
    penalised = p.repetition_penalty != 1.0 or p.frequency_penalty != 0.0 or p.presence_penalty != 0.0
    return penalised or bool(p.logit_bias) or row.position < p.min_tokens


def _process_row(scores: Tensor, row: SamplerRow) -> None:
    """In place, on one row [vocabulary]. Repetition penalty as in CTRL (Keskar et al., 2019) over prompt and output;
    frequency and presence penalties as OpenAI defines them, over the output."""
    p = row.params
    if p.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(row.seen)), device=scores.device)
        values = scores[seen]
        scores[seen] = torch.where(values < 0, values * p.repetition_penalty, values / p.repetition_penalty)
    output = row.seen[row.num_prompt_tokens :]
    if output and (p.frequency_penalty or p.presence_penalty):
        ids, counts = torch.tensor(output, device=scores.device).unique(return_counts=True)  # type: ignore[no-untyped-call]
        scores[ids] -= counts * p.frequency_penalty + p.presence_penalty
    for token, bias in p.logit_bias:
        scores[token] += bias
    if row.position < p.min_tokens and p.stop_token_ids:
        scores[torch.tensor(p.stop_token_ids, device=scores.device)] = float("-inf")


# -- drawing ----------------------------------------------------------------------------------------------------------


def draw(scores: Tensor, rows: Seq[SamplerRow]) -> list[int]:
    """Inverse of the cumulative distribution over the kept tokens in the order of their ids, in fp64."""
    some = [i for i, row in enumerate(rows) if has_filter(row.params)]
    whole = [i for i in range(len(rows)) if i not in set(some)]
    scores = scores / column(scores, (row.params.temperature for row in rows))
    tokens = [0] * len(rows)
    for members, invert in ((some, _invert_kept), (whole, _invert_whole)):
        if members:
            drawn = invert(take(scores, members), [rows[i] for i in members])
            for i, token in zip(members, drawn, strict=True):
                tokens[i] = token
    return tokens


def _invert_kept(scores: Tensor, rows: Seq[SamplerRow]) -> list[int]:
    """Only the kept tokens' ids and weights are summed: [rows, most kept], padded with weight 0."""
    kept = filtered(scores, [row.params for row in rows]) > float("-inf")
    row_of, ids = kept.nonzero(as_tuple=True)
    counts = kept.sum(-1)
    columns = torch.arange(len(ids), device=scores.device) - (counts.cumsum(0) - counts)[row_of]
    table = ids.new_zeros(len(rows), int(counts.max()))
    table[row_of, columns] = ids
    weights = torch.zeros(table.shape, dtype=torch.float64, device=scores.device)
    weights[row_of, columns] = weights_of(scores)[row_of, ids].double()
    places = _invert(weights.cumsum(-1), rows).minimum(counts[:, None] - 1)
    return table.gather(1, places)[:, 0].tolist()


def _invert_whole(scores: Tensor, rows: Seq[SamplerRow]) -> list[int]:
    """First the stretch of ids, by the stretches' sums, then the id in it: no running sum over the vocabulary."""
    weights = stretches_of(weights_of(scores))
    sums = weights.sum(-1).double().cumsum(-1)
    points = column(sums, (uniform(row.params.seed, row.position) for row in rows)) * sums[:, -1:]
    stretches = torch.searchsorted(sums, points, right=True).clamp_(max=sums.shape[1] - 1)
    before = torch.nn.functional.pad(sums, (1, 0)).gather(1, stretches)
    within = weights.gather(1, stretches[:, :, None].expand(-1, -1, STRETCH))[:, 0].double().cumsum(-1)
    inside = torch.searchsorted(within, points - before, right=True)
    last = torch.searchsorted(
        within, within[:, -1:].contiguous()
    )  # rounding may leave the point behind the stretch's last weight
    return (stretches * STRETCH + inside.minimum(last))[:, 0].tolist()


def _invert(cumulative: Tensor, rows: Seq[SamplerRow]) -> Tensor:
    points = column(cumulative, (uniform(row.params.seed, row.position) for row in rows)) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, points, right=True)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, from splitmix64 (Steele, Lea and Flood, 2014) of the pair."""
    bits = _mix64(_mix64(seed & MASK64) ^ (position & MASK64))
    return (bits >> 11) / (1 << 53)


def _mix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)
