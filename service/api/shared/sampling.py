"""Sampling of a body: the fields that every dialect spells alike, and which of them the client has left open."""

from __future__ import annotations

from typing import Any, TypedDict

from service.engine.protocol.messages import FILTERS, NEUTRAL, SamplingParams
from service.generation.request import CHANCE


class Sampling(TypedDict):
    """Two fields of a generation request."""

    sampling: SamplingParams
    unset: frozenset[str]


def sampling_of(
    fields: object, *, defaults: dict[str, float], min_tokens: int | None = None, **own: float | None
) -> Sampling:
    """Returns the sampling of `fields`, which have the names of `SamplingParams`; None and a missing one are unset.
    Unset parameters have the dialect's `defaults`, or are off. `own` are those that a dialect names in its own way,
    and so is `min_tokens`. Chance is left open where neither a temperature nor a filter is given."""
    named: dict[str, Any] = {name: getattr(fields, name, None) for name in NEUTRAL} | own
    values = {name: value for name, value in named.items() if value is not None}
    unset = frozenset(NEUTRAL) - values.keys()
    is_shaped = "temperature" in values or any(values.get(name, NEUTRAL[name]) != NEUTRAL[name] for name in FILTERS)
    shaping = {**defaults, **values}
    shaping["top_k"] = max(shaping.get("top_k", 0), 0)
    bias = getattr(fields, "logit_bias", None) or {}
    params = SamplingParams(min_tokens=min_tokens or 0, logit_bias=tuple(bias.items()), **shaping)
    return Sampling(sampling=params, unset=unset if is_shaped else unset | {CHANCE})
