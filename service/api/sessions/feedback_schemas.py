"""This wire model is the body of a vote on an answer. The store checks its texts
(`service.storage.sessions.limits`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from service.api.shared.schemas import Wire, wrong

AnswerId = Annotated[str, Field(min_length=1, max_length=100)]


def _whole(value: Any) -> Any:
    """Returns None for what equals a whole number but is none, as true and 1.0."""
    return value if type(value) is int else None


class FeedbackBody(Wire):
    """`id` is the id of an answer in a session of the caller. `rating` 1 is good, -1 is bad. `preferred_over` is the id
    of another answer, the worse of the two."""

    id: AnswerId
    rating: Annotated[Literal[1, -1], BeforeValidator(_whole)]
    preferred_over: AnswerId | None = None
    comment: Annotated[str, Field(max_length=2000)] | None = None

    @model_validator(mode="after")
    def _is_one_opinion(self) -> FeedbackBody:
        if self.preferred_over is not None and self.rating < 0:
            text = "cannot be with rating -1: give the better answer as `id` with rating 1, or remove preferred_over"
            raise wrong("preferred_over", text)
        if self.preferred_over == self.id:
            raise wrong(
                "preferred_over", "must be another answer than `id`: send the id of the worse one, or remove it"
            )
        return self
