"""Wire models of stored sessions. What their values may be is the store's to say (`service.sessions.limits`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from service.api.schemas.base import ContextFields, DeadlineMs, ModelReference, Priority, Wire, wrong
from service.api.schemas.native import Parameters

MessageId = Annotated[str, Field(min_length=1, max_length=64)]


class SessionBody(Wire):
    """To make a session or to change one: a field that is not there stays as it is, null takes it away."""

    title: str | None = None
    model: ModelReference | None = None
    system: str | None = None
    policy: Literal["refuse", "window", "middle", "summarise", "retrieve"] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    ttl_seconds: float | int | None = None

    def fields(self) -> dict[str, Any]:
        """Those that were sent."""
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
    """`at`: the last message that the copy has."""

    at: MessageId


class RegenerateBody(Wire):
    parameters: Parameters = Field(default_factory=Parameters)
    context: ContextFields | None = None
    stream: bool = False
    priority: Priority = 0
    deadline_ms: DeadlineMs | None = None
