"""This module describes what bodies of several dialects say of a chat: template variables, a session's turn."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.api.shared.schemas import ChatMessage, unsupported, wrong

TemplateVariables = Annotated[
    dict[Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_]{0,63}$")], bool | int | float | str | None],
    Field(max_length=32, description="Variables of the version's chat template, such as enable_thinking."),
]


def one_answer(sequences: int, field: str) -> None:
    """Raises for several answers to one turn of a stored session."""
    if sequences > 1:
        raise unsupported(field, "cannot act in a session: one answer is stored")


def fit_a_session(messages: list[ChatMessage] | None) -> None:
    """Raises for messages that a turn of a stored session cannot have."""
    if messages is None:
        raise unsupported("session_id", "needs messages: what the user says now")
    roles = [message.role for message in messages]
    if any(role not in ("user", "tool") for role in roles):
        raise wrong("messages", "of a session's turn are the user's or a tool's: the session has all others")
    if roles != sorted(roles):
        raise wrong("messages", "of a session's turn have results of tools first: a user's message begins a new turn")
