"""These wire models are the bodies about stored sessions. The store checks their values
(`service.storage.sessions.limits`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from service.api.shared.schemas import ModelReference, Wire, wrong

MessageId = Annotated[str, Field(min_length=1, max_length=64)]


class SessionBody(Wire):
    """The body that makes or changes a session: an absent field stays as it is, null removes it."""

    title: str | None = None
    model: ModelReference | None = None
    system: str | None = None
    policy: Literal["refuse", "window", "middle", "summarise", "retrieve"] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    ttl_seconds: float | int | None = None

    def fields(self) -> dict[str, Any]:
        """Returns the fields that the client sent."""
        return self.model_dump(exclude_unset=True)


class MessageBody(Wire):
    content: str | None = None
    pinned: bool | None = None

    @model_validator(mode="after")
    def _something(self) -> MessageBody:
        if self.content is None and self.pinned is None:
            raise wrong("content", "or pinned: send at least one of them")
        return self


class ForkBody(Wire):
    """`at` is the last message that the copy has."""

    at: MessageId
