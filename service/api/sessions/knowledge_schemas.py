"""These wire models are the bodies about the knowledge base. The store checks their values
(`service.storage.sessions.limits`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.api.shared.schemas import SessionId, Wire


class KnowledgeBody(Wire):
    """A document for all chats of the caller, or with `session_id` for one session."""

    text: Annotated[str, Field(min_length=1)]
    title: str | None = None
    session_id: SessionId | None = None
