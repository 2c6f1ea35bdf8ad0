"""Validation is the engine's own check of a request's numbers: the engine can compute with every number that passes.

The numbers can be computed in fp32, and the ids exist in the weights. The API refuses the same values by its fields'
names. This check covers every other way into the engine, so that a bad number ends its own request only. It knows no
scheduler and nothing of the model but its vocabulary size.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from service.engine.protocol.messages import BOUNDS, Request, SamplingParams

MAX_BIAS: Final = 1e4


def check_request(request: Request, vocab_size: int) -> None:
    """Raises ValueError, which names the field, for a number that the engine cannot compute with, or for a token id
    outside of [0, vocab_size). Stop tokens may be any ids, because they are only compared with sampled tokens."""
    check_params(request.params)
    _check_ids("token_ids", request.token_ids, vocab_size)
    _check_ids("emitted", request.emitted, vocab_size)
    _check_ids("logit_bias", [token_id for token_id, _ in request.params.logit_bias], vocab_size)


def check_params(params: SamplingParams) -> None:
    """Raises ValueError, which names the field, for a value out of range. A NaN is in no range."""
    p = params
    for name, value, low, high in (
        *((name, getattr(p, name), low, high) for name, (low, high) in BOUNDS.items()),
        *(("logit_bias", bias, -MAX_BIAS, MAX_BIAS) for _, bias in p.logit_bias),
    ):
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}; it must be from {low:g} to {high:g}")
    if p.grammar and p.min_tokens:
        raise ValueError("min_tokens cannot act beside a grammar, which says itself where an output may end")
    if p.pooling is not None and (p.max_tokens or p.prompt_logprobs is not None or p.grammar):
        raise ValueError("pooling ends with the prompt: max_tokens must be 0, without prompt_logprobs and grammar")
    for name, count in (
        ("max_tokens", p.max_tokens),
        ("logprobs", p.logprobs or 0),
        ("prompt_logprobs", p.prompt_logprobs or 0),
        ("prompt_logprobs_start - 1", p.prompt_logprobs_start - 1),
    ):
        if count < 0:
            raise ValueError(f"{name} is {count}; it must not be negative")


def _check_ids(name: str, ids: Collection[int], vocab_size: int) -> None:
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):  # at C's speed: a prompt has many
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise ValueError(f"{name} holds {wrong}; the model's token ids run from 0 to {vocab_size - 1}")
