"""This module turns the text, chat or ids of one call into the token ids to send, with their receipt, or into an error
that says by how much the prompt does not fit. Of a chat, the ids hold what its policy keeps.

    window            [ prompt ............................ | reserve ....... | free ]
    input budget      [ <= window - reserve, <= max_input_tokens ]

A chat goes through these modules, in this order:

    sources      messages, documents, and what is known of the chat's past
    composition  Unicode's composed form; roles and calls are checked
    budget       how many tokens the prompt may have
    excerpts     documents: all, or the parts that match or rank highest
    trimming     turns: `policies` chooses the cut, `retrieval` what comes back; the template renders what is sent
    counts       the receipt, made when it is asked for; its `partition` says in numbers which messages were sent
    inspection   each message with one of `reasons`, and each token, where the request wants them

It knows the tokenizer and numbers of tokens; no sessions, no engine, no wire format. Counts come first: nothing as long
as the prompt is built before the prompt is known to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from service.context.budget import Budget, ContextOptions
from service.context.composition import compose, current, nfc, require_calls, require_systems
from service.context.counts import NO_SUMMARY_NOTE, Counted, Sent
from service.context.excerpts import Placed, by_match, by_rank
from service.context.inspection import Inspection, inspect_chat, inspect_raw
from service.context.receipt import Parts, Receipt
from service.context.sources import Before, Chat, Ids, Source, Text
from service.context.trimming import Trimmed, trim
from service.errors import ContextOverflow, InvalidRequest, UnsupportedField
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer

__all__ = ["NO_SUMMARY_NOTE", "Chat", "Ids", "Prompt", "Source", "Text", "build_prompt"]

HAS_BOS_NOTE: Final = "the prompt begins with BOS itself, so that no other is added"
Inspect = Callable[[Receipt], Inspection]
_OF_CHATS: Final = ("pin", "knowledge", "low_water", "documents_budget", "recall_budget", "summary_budget")


class Prompt:
    """`token_ids` are `receipt.used` in number. `max_new_tokens` fits behind them in the window. Everything else is
    counted at its first use, so that an answer's first token does not wait for it. `inspect` is set where the request
    wants an inspection."""

    def __init__(
        self,
        token_ids: tuple[int, ...],
        max_new_tokens: int,
        count: Callable[[], Counted],
        inspect: Inspect | None = None,
    ) -> None:
        self.token_ids = token_ids
        self.max_new_tokens = max_new_tokens
        self._count = count
        self._inspect = inspect

    @cached_property
    def _counted(self) -> Counted:
        return self._count()

    @property
    def receipt(self) -> Receipt:
        return self._counted.receipt

    @cached_property
    def inspection(self) -> Inspection | None:
        """Returns None where the request does not want it. Of a long prompt it is work for a thread."""
        return None if self._inspect is None else self._inspect(self.receipt)

    def shown(self, receipt: Receipt) -> dict[str, object]:
        """Returns the wire form of `receipt`, which is this prompt's, with the inspection where the request wants one.
        The store never gets an inspection."""
        return {**receipt.to_dict(), **(self.inspection.to_dict() if self.inspection else {})}

    @property
    def tokens_before_truncation(self) -> int:
        """Returns the prompt's length with nothing left out: for a chat, as the template writes all its messages and
        documents."""
        return self._counted.whole

    @property
    def before_cut(self) -> Before | None:
        return self._counted.before

    @property
    def cut_limit(self) -> int:
        """Returns the input budget that the cut was made for."""
        return self._counted.limit


def build_prompt(
    tokenizer: Tokenizer,
    window: int,
    source: Source,
    *,
    documents: Sequence[Document] = (),
    max_new_tokens: int | None,
    truncate: int | None = None,
    room: int | None = None,
    context: ContextOptions | None = None,
    answer_window: int | None = None,
) -> Prompt:
    """Builds the prompt. `max_new_tokens` None takes all room that is left. `truncate` keeps the last so many tokens of
    a raw prompt (TGI); with `room` a raw prompt of more tokens than that, or than the window, loses its end.
    `answer_window` is set for a version whose encoder reads the prompt; the prompt then has `window` for itself.

    Raises ContextOverflow(window, needed_tokens, reserve, prompt_tokens), InvalidRequest, UnsupportedField. Pure; a
    text of `tokenizer.long_text` characters or more is worth a thread.
    """
    budget = Budget(window, max_new_tokens, context or ContextOptions(), answer_window)
    budget.require_answer()
    if isinstance(source, Chat):
        if truncate is not None:
            raise UnsupportedField(
                "`truncate` cuts raw `inputs` only; leave it out for messages.", param="truncate", fields=("inputs",)
            )
        return _chat_prompt(tokenizer, budget, source, tuple(documents))
    _refuse_turns(budget.options)
    if documents:
        raise UnsupportedField("`documents` are placed by the chat template; send `messages`.", param="documents")
    if truncate is not None and truncate < 1:
        raise InvalidRequest("`truncate` must be at least 1.", param="truncate")
    limits = RawLimits(truncate, None if room is None else min(room, budget.limit))
    if isinstance(source, Text):
        return _text_prompt(tokenizer, budget, source, limits)
    return _ids_prompt(tokenizer, budget, source, limits)


def _chat_prompt(tokenizer: Tokenizer, budget: Budget, chat: Chat, documents: tuple[Document, ...]) -> Prompt:
    messages, documents, notes = compose(chat.messages, documents)
    require_systems(tokenizer, messages)
    require_calls(messages)
    room = budget.documents
    while True:
        placed = _placed(tokenizer, budget, messages, documents, room)
        trimmed = trim(tokenizer, budget, messages, chat.named, tuple(each for _, each in placed), chat.past)
        if not placed or budget.options.chosen == "refuse" or trimmed.document_tokens <= budget.documents:
            break
        room -= trimmed.document_tokens - budget.documents  # the template writes them longer than they were counted
    if not trimmed.encoded.count:
        raise InvalidRequest(
            "This version's chat template writes nothing for these messages, and no answer can follow an empty prompt: "
            "send other messages, or `inputs` instead.",
            param="messages",
            fields=("inputs",),
        )
    if placed:
        _require_documents(budget, trimmed, [each for _, each in placed])

    sent = Sent(tokenizer, budget, chat, messages, documents, tuple(placed), trimmed, notes)
    return _prompt(budget, trimmed.encoded.ids(), sent.counted, lambda receipt: inspect_chat(sent, receipt))


def _placed(
    tokenizer: Tokenizer, budget: Budget, messages: Sequence[Message], documents: tuple[Document, ...], room: int
) -> list[Placed]:
    match budget.options.chosen:
        case "refuse":
            return list(enumerate(documents))
        case "retrieve":
            return by_match(tokenizer, documents, room, current(messages))
        case _:
            return by_rank(tokenizer, documents, room)


def _require_documents(budget: Budget, trimmed: Trimmed, documents: Sequence[Document]) -> None:
    for index, (share, document) in enumerate(zip(trimmed.encoded.shares.documents, documents, strict=True)):
        if share is None and document.text.strip():
            raise InvalidRequest(
                f"This version's chat template places no documents (documents[{index}]); put the text into a message.",
                param="documents",
            )
    tokens = trimmed.document_tokens
    if tokens > budget.documents:
        raise ContextOverflow(
            f"The documents have {tokens} tokens, their budget {budget.documents}: shorten them by "
            f"{tokens - budget.documents} tokens or raise context.documents_budget.",
            param="documents",
            window=budget.window,
            needed_tokens=budget.needed(trimmed.encoded.count),
            reserve=budget.reserve,
            prompt_tokens=trimmed.encoded.count,
            documents_tokens=tokens,
            documents_budget=budget.documents,
        )


def _prompt(budget: Budget, token_ids: Sequence[int], count: Callable[[], Counted], inspect: Inspect) -> Prompt:
    inspection = inspect if budget.options.inspect else None
    return Prompt(tuple(token_ids), budget.answer(len(token_ids)), count, inspection)


def _refuse_turns(options: ContextOptions) -> None:
    """Raises UnsupportedField for an option that acts on turns or documents: a raw prompt has none."""
    values = {name: getattr(options, name) for name in _OF_CHATS}
    for name, value in {**values, "policy": options.chosen != "refuse"}.items():
        if value is not None and value is not False and value != ():
            raise UnsupportedField(
                f"`context.{name}` acts on chats, and this prompt is none; send `messages`.", param=f"context.{name}"
            )


@dataclass(frozen=True, slots=True)
class RawLimits:
    """How a raw prompt is shortened: to its last `last` tokens, and then to its first `first`. None leaves all."""

    last: int | None
    first: int | None

    def kept(self, count: int) -> int:
        """Returns how many of so many tokens are left."""
        return min(each for each in (count, self.last, self.first) if each is not None)

    def of(self, ids: Sequence[int], added: Sequence[bool]) -> tuple[Sequence[int], Sequence[bool]]:
        """Returns what is left of the tokens, and of the marks of those that the tokenizer added. What it added at the
        end stays there: models that embed are trained to read their vector from it."""
        if self.last is not None:
            ids, added = ids[-self.last :], added[-self.last :]
        if self.first is None or len(ids) <= self.first:
            return ids, added
        ends = next((number for number, each in enumerate(reversed(added)) if not each), 0)
        text = max(0, self.first - ends)
        return [*ids[:text], *ids[len(ids) - ends :]], [*added[:text], *added[len(added) - ends :]]


def _require_some(count: int, param: str) -> None:
    if count == 0:
        raise InvalidRequest(f"`{param}` holds no token; send some text.", param=param)


def _text_prompt(tokenizer: Tokenizer, budget: Budget, source: Text, limits: RawLimits) -> Prompt:
    composed, notes = nfc(source.text)
    encoded = tokenizer.encode_text(composed, add_special_tokens=source.add_special_tokens)
    notes = (*notes, HAS_BOS_NOTE) if encoded.has_bos else notes
    _require_some(encoded.count, source.name)
    kept = limits.kept(encoded.count)
    budget.require(kept, source.name)
    ids, added = limits.of(encoded.ids(), encoded.added())
    receipt = Receipt.of(budget, Parts(template=sum(added), current=kept - sum(added)), notes)
    receipt = replace(receipt, dropped_tokens=encoded.count - kept)
    return _prompt(
        budget,
        ids,
        lambda: Counted(receipt, encoded.count),
        lambda _: inspect_raw(tokenizer, ids, added, encoded.count),
    )


def _ids_prompt(tokenizer: Tokenizer, budget: Budget, source: Ids, limits: RawLimits) -> Prompt:
    ids = source.token_ids
    _require_some(len(ids), source.name)
    kept = limits.kept(len(ids))
    budget.require(kept, source.name)
    if any(not 0 <= id < tokenizer.vocab_size for id in ids):
        raise InvalidRequest(f"Token ids must be from 0 to {tokenizer.vocab_size - 1}.", param=source.name)
    left, added = limits.of(ids, [False] * len(ids))
    receipt = replace(Receipt.of(budget, Parts(current=kept), ()), dropped_tokens=len(ids) - kept)
    return _prompt(
        budget,
        left,
        lambda: Counted(receipt, len(ids)),
        lambda _: inspect_raw(tokenizer, left, added, len(ids)),
    )
