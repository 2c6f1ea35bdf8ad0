"""The trial loads a foreign version's tokenizer and renders chats by its template, as a server does.

It runs in a limited child of an import (`models.checkpoint.limited`): a template that never ends, or writes without
end, is refused before it is a version.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from service.errors import InvalidRequest
from service.text.messages import Message
from service.text.sandbox import TooMuch, renderings_within
from service.text.tokenizer import Tokenizer

SECONDS: Final = 5.0
"""Of processor time for all chats; usual templates need some hundredths."""
_TURNS: Final = 32
_TURN: Final = (Message("user", "What is in a lunch box? " * 8), Message("assistant", "밥과 반찬.\n" * 8))
_ASK: Final = Message("user", "a")
_CHATS: Final = ((_ASK,), (Message("system", "b"), _ASK), (*_TURN * _TURNS, _ASK))


def main(directory: str) -> str:
    """Returns the sentence of a refusal, or ""."""
    try:
        tokenizer = Tokenizer.load(Path(directory))
    except InvalidRequest as error:
        return error.message
    if tokenizer.chat_template is None:
        return ""
    with renderings_within(SECONDS):
        if why := _why_not(tokenizer, _CHATS[0]):
            return why
        _find_facts(tokenizer)
        return next((why for chat in _CHATS if (why := _why_not(tokenizer, chat))), "")


def _find_facts(tokenizer: Tokenizer) -> None:
    """Has all chats rendered that a server finds out with what a template writes."""
    probes = tokenizer.probes
    with suppress(InvalidRequest):  # refused by the template, as any chat may be
        _ = (probes.is_additive, probes.named_roles, probes.opening_of("tool"), tokenizer.describes_calls)


def _why_not(tokenizer: Tokenizer, chat: Sequence[Message]) -> str:
    """Returns why a chat passes a bound, or "": what a template refuses by itself is no matter here."""
    try:
        tokenizer.chat_tokens(chat)
    except InvalidRequest as error:
        if isinstance(error.__cause__, TooMuch):
            return f"The chat template {error.__cause__} for a chat of {len(chat)} messages; mend it, or leave it out"
    return ""
