"""Sampling of a body: the fields that every dialect spells alike, with the values that switch an absent field off."""

from __future__ import annotations

from typing import Any

from service.engine.protocol.messages import NEUTRAL, SamplingParams


def sampling_of(fields: object, *, temperature: float, min_tokens: int | None = None, **given: Any) -> SamplingParams:
    """Returns the sampling of `fields`, which have the names of `SamplingParams`; None and a missing one are off.
    Dialects differ in the default of `temperature` and in the name of `min_tokens`, so the caller gives both, and as
    `given` what a dialect names in its own way."""
    named = {name: getattr(fields, name, None) for name in NEUTRAL} | given
    shaping = {name: value for name, value in named.items() if value is not None}
    shaping |= {"temperature": temperature, "top_k": max(shaping.get("top_k", 0), 0)}
    bias = getattr(fields, "logit_bias", None) or {}
    return SamplingParams(min_tokens=min_tokens or 0, logit_bias=tuple(bias.items()), **shaping)
