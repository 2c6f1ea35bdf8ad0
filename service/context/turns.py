"""Turns get their numbers of tokens here, as the version's template writes them.

    [ beside: systems, documents, opening of the answer ] [ turn ] [ turn ] … [ last turn ]

Where `Probes.is_additive` holds, these numbers sum up to the prompt's length. Each turn is rendered by itself, without
the systems and tools, and remembered, so that a long history costs one look-up a turn when it comes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.context.policies import Turn, turn_ranges
from service.errors import InvalidRequest
from service.text.messages import Document, Message
from service.text.probing import QUESTION
from service.text.tokenizer import Tokenizer


def turns_of(tokenizer: Tokenizer, messages: Sequence[Message], pinned: Sequence[bool]) -> tuple[Turn, ...]:
    """Returns the turns of a chat's messages behind its first system messages."""
    ranges, counting = turn_ranges([message.role for message in messages]), tokenizer.for_turns()
    return tuple(
        _turn(counting, tuple(messages[first:last]), first, any(pinned[first:last]), is_last=last == len(messages))
        for first, last in ranges
    )


def _turn(tokenizer: Tokenizer, messages: tuple[Message, ...], first: int, pinned: bool, *, is_last: bool) -> Turn:
    tokens = tokenizer.turn_tokens(messages, is_last=is_last)
    answers = [at for at, message in enumerate(messages) if message.role == "assistant"]
    questions, calls = tokens, answers
    if not is_last:
        questions = tokenizer.turn_tokens(messages[: answers[-1]] if answers else messages, is_last=True)
        calls = answers[:-1]
    return Turn(first, first + len(messages), tokens, questions, pinned, _Calls(tokenizer, messages, calls))


@dataclass(frozen=True, slots=True)
class _Calls:
    """The tokens of a turn at its calls, of which `messages_each` says how many messages they had. A call is counted
    when its number is read, because a turn may hold hundreds."""

    tokenizer: Tokenizer
    messages: tuple[Message, ...]
    messages_each: Sequence[int]

    def __len__(self) -> int:
        return len(self.messages_each)

    def __getitem__(self, at: int, /) -> int:
        return self.tokenizer.turn_tokens(self.messages[: self.messages_each[at]], is_last=True)


def tokens_beside(
    tokenizer: Tokenizer, systems: Sequence[Message], documents: Sequence[Document], last: Sequence[Message]
) -> int:
    """Returns how many tokens a chat takes beside its turns; `last` are the messages of its last turn."""
    try:
        whole = tokenizer.chat_tokens((*systems, QUESTION), documents=documents)
        return whole - tokenizer.message_tokens(QUESTION)
    except InvalidRequest:  # the template wants another chat
        whole = tokenizer.chat_tokens((*systems, *last), documents=documents)
        return whole - tokenizer.for_turns().turn_tokens(tuple(last), is_last=True)
