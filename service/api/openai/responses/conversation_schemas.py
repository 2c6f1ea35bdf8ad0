"""These wire models are the bodies of OpenAI's conversations."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.api.openai.responses.item_schemas import Item, ItemList
from service.api.openai.schemas import Metadata
from service.api.shared.schemas import MAX_MESSAGES, Wire


class ConversationBody(Wire):
    """A new conversation: what was said so far, and what it is to be known by."""

    items: ItemList | None = None
    metadata: Metadata | None = None


class ConversationItemsBody(Wire):
    """Items to add to a conversation. A result names a call since the user's last message."""

    items: Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]
