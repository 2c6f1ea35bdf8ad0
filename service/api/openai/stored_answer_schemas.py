"""These models describe stored chat completions, their lists, and the messages that they answer."""

from __future__ import annotations

from typing import Literal

from service.api.openai.answer_schemas import ChatCompletion
from service.api.shared.answer_schemas import CalledTool, IdPage, Shown


class StoredCompletion(ChatCompletion):
    metadata: dict[str, str]


class StoredCompletions(IdPage[StoredCompletion]):
    """Oldest first, unless `order` is `desc`."""


class StoredMessage(Shown):
    """`content` is null where the message is calls only; text parts are one text."""

    id: str
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None


class StoredMessages(IdPage[StoredMessage]):
    """Oldest first, unless `order` is `desc`."""


class DeletedCompletion(Shown):
    id: str
    object: Literal["chat.completion.deleted"]
    deleted: Literal[True]
