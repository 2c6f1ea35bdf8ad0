"""Sampling of a body: the fields that every dialect spells alike, with the values that switch an absent field off."""

from __future__ import annotations

from typing import Protocol

from service.generation.request import Sampling


class SamplingFields(Protocol):
    """The fields that every dialect spells alike."""

    @property
    def top_p(self) -> float | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def min_p(self) -> float | None: ...
    @property
    def typical_p(self) -> float | None: ...
    @property
    def repetition_penalty(self) -> float | None: ...
    @property
    def frequency_penalty(self) -> float | None: ...
    @property
    def presence_penalty(self) -> float | None: ...
    @property
    def logit_bias(self) -> dict[int, float] | None: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def ignore_eos(self) -> bool | None: ...


def sampling_with(fields: SamplingFields, temperature: float, min_tokens: int | None) -> Sampling:
    """Returns the sampling of `fields`. Dialects differ in the default of `temperature` and in the name of
    `min_tokens`, so the caller gives both."""
    return Sampling(
        temperature=temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        top_k=max(fields.top_k or 0, 0),
        min_p=fields.min_p or 0.0,
        typical_p=1.0 if fields.typical_p is None else fields.typical_p,
        repetition_penalty=1.0 if fields.repetition_penalty is None else fields.repetition_penalty,
        frequency_penalty=fields.frequency_penalty or 0.0,
        presence_penalty=fields.presence_penalty or 0.0,
        logit_bias=tuple((fields.logit_bias or {}).items()),
        seed=fields.seed,
        min_tokens=min_tokens or 0,
        ignore_eos=bool(fields.ignore_eos),
    )
