"""These wire models are OpenAI's conversations and their items."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from service.api.openai.lists import IdPage
from service.api.openai.responses.answer_schemas import FunctionCall, InputText, ItemStatus, OutputText, Reasoning
from service.api.openai.responses.item_schemas import OwnItems
from service.api.openai.schemas import Metadata
from service.api.shared.answer_schemas import Shown
from service.api.shared.schemas import Wire


class ConversationBody(Wire):
    """A new conversation: what was said so far, and what it is to be known by."""

    items: OwnItems | None = None
    metadata: Metadata | None = None


class ConversationItemsBody(Wire):
    """Items to add to a conversation. A result names a call since the user's last message."""

    items: Annotated[OwnItems, Field(min_length=1)]


class ConversationShown(Shown):
    """`conv_X` is the session `s_X`."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, Any]


class DeletedConversation(Shown):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class ConversationMessage(Shown):
    """`incomplete` is an answer that a limit or the guard has cut."""

    id: str
    type: Literal["message"]
    role: str
    status: ItemStatus
    content: list[Annotated[InputText | OutputText, Field(discriminator="type")]]


class FunctionCallOutput(Shown):
    id: str
    type: Literal["function_call_output"]
    call_id: str
    output: str
    status: ItemStatus


AnyItem = Annotated[ConversationMessage | FunctionCall | FunctionCallOutput | Reasoning, Field(discriminator="type")]


class ConversationItem(RootModel[AnyItem]):
    """One item of a conversation."""


class ConversationItems(IdPage[AnyItem]):
    """Newest first, unless `order` is `asc`; of added items in their order."""
