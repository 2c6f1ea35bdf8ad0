"""A logits processor changes a row's logits before a token is drawn from them. It knows rows and parameters; nothing of
filters, chance or kernels.

The order is that of transformers' `generate`: penalties, logit bias, banned tokens; then what a grammar does not allow.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol

import torch
from torch import Tensor

from service.engine.runner.sampling.row import SamplerRow, is_penalised


class LogitsProcessor(Protocol):
    """One kind of change. Rows are independent: a row's change must not depend on the others."""

    def concerns(self, row: SamplerRow) -> bool:
        """Whether this row's logits change."""
        ...

    def apply(self, logits: Seq[Tensor], rows: Seq[SamplerRow]) -> None:
        """In place: `logits[i]` [vocabulary], fp32, are those of `rows[i]`, each of which it concerns."""
        ...


class Penalties:
    """Repetition penalty as in CTRL (Keskar et al., 2019) over prompt and output; frequency and presence penalties as
    OpenAI defines them, over the output. `penalize` is the backend's."""

    def __init__(self, penalize: Callable[[Seq[Tensor], Seq[SamplerRow]], None]) -> None:
        self.apply = penalize

    def concerns(self, row: SamplerRow) -> bool:
        return row.counts is not None and bool(row.counts.token_ids) and is_penalised(row.params)


class Bias:
    """What `logit_bias` adds."""

    def concerns(self, row: SamplerRow) -> bool:
        return bool(row.params.logit_bias)

    def apply(self, logits: Seq[Tensor], rows: Seq[SamplerRow]) -> None:
        for each, row in zip(logits, rows, strict=True):
            ids, biases = zip(*row.params.logit_bias, strict=True)
            each.index_add_(0, torch.tensor(ids), torch.tensor(biases, dtype=each.dtype))


class Bans:
    """Stop tokens, in the first `min_tokens` places. Ids that the model does not have need no ban."""

    def concerns(self, row: SamplerRow) -> bool:
        return row.position < row.params.min_tokens and bool(row.params.stop_token_ids)

    def apply(self, logits: Seq[Tensor], rows: Seq[SamplerRow]) -> None:
        for each, row in zip(logits, rows, strict=True):
            for token_id in row.params.stop_token_ids:
                if 0 <= token_id < len(each):
                    each[token_id] = float("-inf")


class Masks:
    """What a grammar does not allow. `mask` is the backend's. A row whose token is certain is not drawn at all."""

    def __init__(self, mask: Callable[[Seq[Tensor], Seq[bytes]], None]) -> None:
        self._mask = mask

    def concerns(self, row: SamplerRow) -> bool:
        return isinstance(row.allowed, bytes)

    def apply(self, logits: Seq[Tensor], rows: Seq[SamplerRow]) -> None:
        self._mask(logits, [row.allowed for row in rows if isinstance(row.allowed, bytes)])
