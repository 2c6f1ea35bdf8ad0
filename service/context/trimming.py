"""Which messages of a chat are sent, and their tokens. Which turns go where not all fit is for `policies` to say.

Whether a turn fits is told by counts that are made once a message, so that a long history costs a look-up each time it
comes again; what is then sent is rendered by the version's template and counted as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from service.context import policies
from service.context.budget import Budget
from service.context.policies import LOW_WATER, Turn, turns_of
from service.errors import InvalidRequest
from service.text.chat import EncodedChat
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer

SYSTEM_ROLES = ("system", "developer")
_PARAGRAPH = "\n\n"


@dataclass(frozen=True, slots=True)
class Trimmed:
    """`sent` are the indices of the messages in `encoded`, ascending; `cut` is the first of the newest turns' messages,
    None where all are sent."""

    sent: tuple[int, ...]
    encoded: EncodedChat
    cut: int | None = None


def trim(
    tokenizer: Tokenizer,
    budget: Budget,
    messages: Sequence[Message],
    names: Sequence[str],
    documents: tuple[Document, ...],
    before: str = "",
) -> Trimmed:
    """By the policy of the budget's options. Raises ContextOverflow where what must be sent does not fit (all of it by
    `refuse`; else system messages, pinned turns and the last one), InvalidRequest for a pin that is no message."""
    pinned = _pinned(budget.options.pin, names)
    policy = budget.options.chosen
    systems = sum(message.role in SYSTEM_ROLES for message in messages)
    rest = messages[systems:]
    if policy == "refuse" or not rest:
        encoded = tokenizer.encode_chat(messages, documents=documents)
        budget.require(encoded.count, "messages")
        return Trimmed(tuple(range(len(messages))), encoded)
    counts = [tokenizer.message_tokens(message) for message in rest]
    turns = turns_of([message.role for message in rest], counts, pinned[systems:])
    least = tokenizer.encode_chat([*messages[:systems], *rest[turns[-1].first :]], documents=documents).count
    budget.require(least, "messages")
    room = budget.limit - least + turns[-1].tokens
    low_water = LOW_WATER if budget.options.low_water is None else budget.options.low_water
    start = next((at for at, turn in enumerate(turns) if names[systems + turn.first] == before), 0)
    cut = policies.cut_of(policy, turns, room, low_water, start)
    step = 1
    while True:
        sent = (*range(systems), *_messages(turns, policies.kept(policy, turns, cut), systems))
        encoded = tokenizer.encode_chat([messages[at] for at in sent], documents=documents)
        if encoded.count <= budget.limit or cut >= len(turns) - 1:
            break
        cut, step = min(cut + step, len(turns) - 1), 2 * step  # the template wrote more around these than around others
    budget.require(encoded.count, "messages")
    return Trimmed(sent, encoded, systems + turns[cut].first if len(sent) < len(messages) else None)


def _messages(turns: Sequence[Turn], kept: Sequence[int], systems: int) -> list[int]:
    return [systems + at for turn in kept for at in range(turns[turn].first, turns[turn].last)]


def _pinned(pins: Sequence[str], names: Sequence[str]) -> list[bool]:
    wanted = set(pins)
    unknown = wanted - set(names)
    if unknown:
        raise InvalidRequest(
            f"context.pin: {min(unknown)[:80]!r} is no message of this chat; they are {names[0]} to {names[-1]}.",
            param="context.pin",
        )
    return [name in wanted for name in names]


def fitting(tokenizer: Tokenizer, documents: Sequence[Document], budget: int) -> tuple[Document, ...]:
    """Those of the highest rank that fit so many tokens; of the first that does not, its leading paragraphs that do."""
    kept: list[Document] = []
    for document in documents:
        budget -= tokenizer.text_tokens(document.title or "")
        paragraphs = document.text.split(_PARAGRAPH)
        leading = partial(_tokens_of_first, tokenizer, paragraphs)
        count = bisect_right(range(1, len(paragraphs) + 1), budget, key=leading)
        if count:
            kept.append(replace(document, text=_PARAGRAPH.join(paragraphs[:count])))
        if count < len(paragraphs):
            break
        budget -= tokenizer.text_tokens(document.text)
    return tuple(kept)


def _tokens_of_first(tokenizer: Tokenizer, paragraphs: Sequence[str], count: int) -> int:
    return tokenizer.text_tokens(_PARAGRAPH.join(paragraphs[:count]))
