"""These wire models are the bodies about stored sessions. The store checks their values
(`service.storage.sessions.limits`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from service.api.schemas.base import ModelReference, Wire, unsupported, wrong
from service.api.schemas.native import GenerationFields, one_answer
from service.api.schemas.tools import ToolChoice, Tools

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


class RegenerateBody(GenerationFields):
    """The parameters for answering the last question again, and the tools: a session keeps none."""

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _fits(self) -> RegenerateBody:
        parameters = self.parameters
        one_answer(parameters.n or 1, "parameters.n")
        one_answer(parameters.best_of or 1, "parameters.best_of")
        if parameters.adapter_id is not None:
            raise unsupported("parameters.adapter_id", "cannot act: the session says which model answers")
        if parameters.return_full_text:
            raise unsupported("parameters.return_full_text", "needs inputs: there is no other text to return")
        return self
