"""Probing finds out what a version's chat template writes, by small chats that it renders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from service.errors import InvalidRequest
from service.text.chat import EncodedChat
from service.text.messages import Message, ToolCall

_ASK: Final = Message("user", "a")
_SYSTEM: Final = Message("system", "b")
_ANSWER: Final = Message("assistant", "c")
_WITH_RESULT: Final = [
    _ASK,
    Message("assistant", "", tool_calls=(ToolCall("d", "d", "{}"),)),
    Message("tool", "e", tool_call_id="d"),
]
_NAMES: Final = ("fg", "hi")


class Tokenizer(Protocol):
    """What is asked of a version's tokenizer."""

    def render_chat(self, messages: Sequence[Message]) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Message]) -> EncodedChat: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


def openings(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the end of a prompt behind a user's message, and behind a tool's; empty where the template cannot write
    one."""
    found = {"user": "", "tool": ""}
    for role, chat in (("user", [_ASK]), ("tool", _WITH_RESULT)):
        try:
            found[role] = tokenizer.decode(tokenizer.render_chat(chat), skip_special_tokens=False)
        except InvalidRequest:
            found[role] = found["user"]
    return found


def has_later_systems(tokenizer: Tokenizer) -> bool:
    """Whether the template writes a system message that is behind the chat's first."""
    return _writes_all(tokenizer, (_SYSTEM, Message("system", "d"), _ASK))


def has_systems_between(tokenizer: Tokenizer) -> bool:
    """Whether the template writes a system message behind an answer, with or without one at the chat's beginning."""
    said = (_ASK, _ANSWER, Message("system", "d"), Message("user", "e"))
    return all(_writes_all(tokenizer, chat) for chat in (said, (_SYSTEM, *said)))


def named_roles(tokenizer: Tokenizer) -> frozenset[str]:
    """Returns the roles whose messages' names the template writes."""
    chats = {
        "system": [_SYSTEM, _ASK],
        "user": [_ASK],
        "assistant": [_ASK, _ANSWER, _ASK],
        "tool": _WITH_RESULT,
    }
    return frozenset(role for role, chat in chats.items() if _writes_name(tokenizer, role, chat))


def _writes_all(tokenizer: Tokenizer, chat: Sequence[Message]) -> bool:
    try:
        return None not in tokenizer.encode_chat(chat).shares.messages
    except InvalidRequest:
        return False


def _writes_name(tokenizer: Tokenizer, role: str, chat: Sequence[Message]) -> bool:
    try:
        one, other = (
            tokenizer.render_chat([replace(each, name=name) if each.role == role else each for each in chat])
            for name in _NAMES
        )
    except InvalidRequest:
        return False
    return one != other
