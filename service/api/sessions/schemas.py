"""These wire models are stored chats and the knowledge base."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from service.api.shared.answer_schemas import CalledTool, FinishReason, Object, Page, Receipt, Shown, Time, Usage
from service.api.shared.schemas import ModelReference, Wire, wrong
from service.api.shared.unions import BY_TYPE

MessageId = Annotated[str, Field(min_length=1, max_length=64)]


class SessionBody(Wire):
    """The body that makes or changes a session: an absent field stays as it is, null removes it."""

    title: str | None = None
    model: ModelReference | None = None
    system: str | None = None
    policy: Literal["refuse", "window", "middle", "summarise", "retrieve"] | None = None
    metadata: dict[str, Any] | None = None
    ttl_seconds: Annotated[float | int, BY_TYPE] | None = None

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


class SessionShown(Shown):
    """`revision` counts writes, from 1, and is the `ETag`."""

    id: str
    title: str | None
    model: str | None
    system: str | None
    policy: str | None
    metadata: Object
    revision: int
    message_count: int
    ttl_seconds: float
    created_at: Time
    updated_at: Time
    expires_at: Time


class MessageShown(Shown):
    """The fields from `context` on are an assistant's only: they say how the answer was made. `answer_id` is the
    answer's `id`; null where it is not known, or where the text was edited since. `tool_calls`, `reasoning` and
    `tool_call_id` are there where they are set."""

    id: str
    role: str
    content: str
    name: str | None
    pinned: bool
    created_at: Time
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    context: Receipt | None = None
    model: str | None = None
    version: str | None = None
    digest: str | None = None
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    answer_id: str | None = None


class KnowledgeItem(Shown):
    """A document without its text. `passages` is their number."""

    id: str
    title: str | None
    session_id: str | None
    passages: int
    created_at: Time


class KnowledgeShown(KnowledgeItem):
    text: str


class SessionPage(Page[SessionShown]):
    """Newest first."""


class MessagePage(Page[MessageShown]):
    """Oldest first."""


class KnowledgePage(Page[KnowledgeItem]):
    """Newest first, without texts."""
