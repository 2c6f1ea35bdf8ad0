"""A source is what a prompt is made of: raw text, a chat, or token ids, with what the server knows of the chat's past.

    messages   | before the cut ............ | the newest turns ... |
               └ Before: sums of all of them  └ read at each turn

The numbers of `Before` are sums over messages, so that a long chat's next turn need not read them again: a cut that
moves on adds the messages between its old position and its new one. What the template writes around messages adds up as
well where `Probes.is_additive` says so. The module knows no store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from service.context.partition import Named
from service.context.policies import USUAL_DECODE_RATIO, Turn
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Before:
    """Sums over all messages before a cut except the system's: how many there are, the tokens of their texts, and of
    these the questions' (`asked`) and the answers' (`answered`) as `policies.Turn` counts them. `written`: how many
    tokens shorter the chat is without them, as the template writes it. `digest`: the version whose tokens these are;
    `systems`: how many system messages stand first."""

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
        before.asked + sum(turn.question_tokens for turn in turns),
        before.answered + sum(turn.answer_tokens for turn in turns),
        before.written + written,
        len(systems),
        before.digest,
    )


def tokens_of(tokenizer: Tokenizer, messages: Sequence[Message]) -> int:
    return sum(tokenizer.text_tokens(text) for message in messages for text in message.texts)


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of a chat beside its messages. `cut`: the name of the message at which the chat was cut before.
    `before`: the numbers of what stands before that message; the chat then holds all of that part, or only what must
    stay. `limit`: the input budget that the cut was made for, 0 where it is not known. `summaries`: pairs of a position
    and a text that stands for the messages before it. `passages`: from the caller's knowledge base, best first; None
    where no room is set aside for any. `decode_ratio`: see `policies.LowWater`."""

    cut: str = ""
    before: Before | None = None
    summaries: tuple[tuple[int, str], ...] = ()
    passages: tuple[Document, ...] | None = None
    decode_ratio: float = USUAL_DECODE_RATIO
    limit: int = 0

    def is_outgrown(self, limit: int) -> bool:
        """Returns whether the cut was made for a smaller input budget than `limit`: messages before it may fit now."""
        return 0 < self.limit < limit


NO_PAST: Final = Past()


@dataclass(frozen=True, slots=True)
class Text:
    """A raw prompt; gets the tokenizer's own special tokens, unless it is to have none. `name` is the field that the
    client sent it in, for errors."""

    text: str
    add_special_tokens: bool = True
    name: str = "inputs"


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages, oldest first: system messages stand before all others, and the last message is the current one. `names`
    are the messages' names in a receipt; without names they are `m_0`, `m_1`, … by position. `past` is what the server
    knows of the chat.

    In a stored chat `positions` are the messages' positions, and `others` name messages that were not read because
    `past.before` has their numbers.
    """

    messages: tuple[Message, ...]
    names: tuple[str, ...] = ()
    past: Past = NO_PAST
    positions: tuple[int, ...] = ()
    others: tuple[Named, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        return self.names or tuple(f"m_{at}" for at in range(len(self.messages)))

    @property
    def placed(self) -> Sequence[int]:
        """Returns the messages' positions."""
        return self.positions or range(len(self.messages))

    @property
    def all_named(self) -> list[Named]:
        """Returns all messages in order, with `others`."""
        return sorted({**dict(self.others), **dict(zip(self.placed, self.named, strict=True))}.items())


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids, sent as they are. `name`: see `Text`."""

    token_ids: tuple[int, ...]
    name: str = "input_ids"


Source = Text | Chat | Ids
