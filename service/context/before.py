"""`Before` holds, in numbers, what stands before a chat's cut, so that a long chat's next turn need not read it again.

    messages   | before the cut ............ | the newest turns ... |
               └ Before: sums of all of them  └ read at each turn

The numbers are sums over messages: a cut that moves on adds the messages between its old position and its new one. What
the template writes around messages adds up as well where `Tokenizer.is_additive` says so. The module knows no store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from service.context.policies import Turn
from service.text.messages import Message
from service.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Before:
    """Sums over all messages before a cut except the system's: how many there are, the tokens of their texts, and
    `asked` and `answered` as in `policies.Turn`. `written`: how many tokens shorter the chat is without them, as the
    template writes it. `digest`: the version whose tokens these are; `systems`: how many system messages stand
    first."""

    messages: int = 0
    tokens: int = 0
    asked: int = 0
    answered: int = 0
    written: int = 0
    systems: int = 0
    digest: str = ""

    def to_dict(self) -> dict[str, int | str]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: object) -> Before | None:
        """Returns None where `value` is no stored form of a Before."""
        if not isinstance(value, Mapping) or value.keys() != set(cls.__slots__):
            return None
        numbers = [each for name, each in value.items() if name != "digest"]
        whole = all(type(each) is int and each >= 0 for each in numbers)
        return cls(**value) if whole and isinstance(value["digest"], str) else None


def added(
    before: Before,
    tokenizer: Tokenizer,
    systems: Sequence[Message],
    messages: Sequence[Message],
    turns: Sequence[Turn],
    whole: int | None = None,
) -> Before:
    """Returns `before` plus the first of `messages`, which make up `turns`; `messages` go on to the chat's end.
    `whole`: the tokens of `systems` and `messages` as the template writes them, where they are known."""
    count = sum(turn.last - turn.first for turn in turns)
    gone, left = messages[:count], messages[count:]
    whole = tokenizer.chat_tokens((*systems, *messages)) if whole is None else whole
    written = whole - tokenizer.chat_tokens((*systems, *left))
    return Before(
        before.messages + count,
        before.tokens + tokens_of(tokenizer, gone),
        before.asked + sum(turn.asked for turn in turns),
        before.answered + sum(turn.answered for turn in turns),
        before.written + written,
        len(systems),
        before.digest,
    )


def tokens_of(tokenizer: Tokenizer, messages: Sequence[Message]) -> int:
    return sum(tokenizer.text_tokens(text) for message in messages for text in message.texts)
