"""A generation is what one HTTP request wants generated and what has become of it, for the span that is made at its
end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fastapi import Request

from service.generation.opening import Opening
from service.generation.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class Generation:
    """The requests of one HTTP request, all with the same parameters; `opening` has their answers as they begin."""

    requests: Sequence[GenerationRequest]
    is_streamed: bool
    opening: Opening = field(default_factory=Opening)

    @classmethod
    def begin(cls, http: Request, requests: Sequence[GenerationRequest], *, stream: bool) -> Generation:
        """Returns the generation, which `edge` finds at the request's end."""
        made = cls(requests, stream)
        http.state.generation = made
        return made
