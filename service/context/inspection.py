"""An inspection lists a call's messages with what became of each and why, and the prompt token by token: of a chat, of
a raw text or of ids. Each message and each token is looked at once. It decides nothing; `reasons` has the sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from service.context.composition import KNOWLEDGE, SUMMARY
from service.context.counts import Sent, document_names
from service.context.partition import nearest
from service.context.reasons import Reasons, State, document_reason
from service.context.receipt import Receipt
from service.text.tokenizer import Tokenizer

PROMPT_ROLE, DOCUMENT_ROLE, SUMMARY_ROLE, KNOWLEDGE_ROLE = "prompt", "document", "summary", "knowledge"


@dataclass(frozen=True, slots=True)
class InspectedMessage:
    """One message, document, summary or raw prompt. `id` is its name in the receipt, None where it has none. `tokens`
    are those of its texts: as they were sent, or of the whole text where it was not sent."""

    id: str | None
    role: str
    tokens: int
    state: State
    why: str


@dataclass(frozen=True, slots=True)
class RenderedToken:
    """`text` is what the token adds to the text of the tokens before it. `message` is the index of the inspected
    message that the token belongs to; None for the template's own tokens."""

    id: int
    text: str
    message: int | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """`messages` hold everything that was sent, and of the messages that were not, those that the receipt names;
    `unlisted` is the number of the others."""

    messages: Sequence[InspectedMessage]
    rendered: Sequence[RenderedToken]
    unlisted: int = 0

    def to_dict(self) -> dict[str, object]:
        """Returns the fields that it adds to a receipt. The encoder of JSON writes the values as they are: a prompt may
        have 100,000 tokens."""
        return {"messages": self.messages, "rendered": self.rendered, "unlisted": self.unlisted}


def inspect_raw(tokenizer: Tokenizer, ids: Sequence[int], added: Sequence[bool], total: int) -> Inspection:
    """Returns the inspection of a raw prompt: `added` says which of the `ids` are the tokenizer's own, and `total` is
    how many tokens there were before `truncate`."""
    why = "the whole prompt is sent" if total == len(ids) else f"`truncate` keeps the last {len(ids)} of {total} tokens"
    message = InspectedMessage(None, PROMPT_ROLE, len(ids) - sum(added), "kept", why)
    return Inspection((message,), _rendered(tokenizer, ids, (None if each else 0 for each in added)))


def inspect_chat(sent: Sent, receipt: Receipt) -> Inspection:
    """Returns the inspection of a chat whose receipt is counted."""
    return _Inspecting(sent, receipt).inspection()


@dataclass
class _Inspecting:
    """One chat's inspection on its way: the list grows in the order of the chat. `_of_source` and `_of_document` are
    the places in it of what was sent."""

    sent: Sent
    receipt: Receipt
    entries: list[InspectedMessage] = field(default_factory=list)
    _of_source: dict[int, int] = field(default_factory=dict)
    _of_document: dict[int, int] = field(default_factory=dict)

    def inspection(self) -> Inspection:
        systems, turns = self.sent.systems, self.sent.trimmed.turns
        last_turn = systems + (turns[-1].first if turns else 0)
        listed = self._listed()
        self._add_messages(at for at in listed if at < systems)
        self._add_documents()
        self._add_made(SUMMARY, SUMMARY_ROLE)
        self._add_messages(at for at in listed if systems <= at < last_turn)
        self._add_made(KNOWLEDGE, KNOWLEDGE_ROLE)
        self._add_messages(at for at in listed if at >= max(systems, last_turn))
        counts = self.receipt.counts
        unlisted = counts.kept + counts.dropped + counts.summarised - len(listed)
        return Inspection(self.entries, self._rendered(), unlisted)

    def _listed(self) -> list[int]:
        """Returns the messages that were sent, and those nearest to the cut, as the receipt's lists name them."""
        chat, partition = self.sent.chat, self.receipt.partition
        near = {position for position, _ in nearest(chat.all_named, partition.cut if partition else None)}
        return [at for at, position in enumerate(chat.placed) if position in near or at in self._tokens]

    def _add_messages(self, places: Iterable[int]) -> None:
        sent, names, reasons = self.sent, self.sent.chat.named, self._reasons
        for at in places:
            message, (state, why) = sent.messages[at], reasons.of(at)
            is_sent = at in self._tokens and at not in reasons.left_out
            tokens = self._tokens[at] if is_sent else sum(map(sent.tokenizer.text_tokens, message.texts))
            self._of_source[at] = len(self.entries)
            self.entries.append(InspectedMessage(names[at], message.role, tokens, state, why))

    def _add_documents(self) -> None:
        sent, names = self.sent, document_names(self.sent.documents)
        shares = zip(sent.placed, sent.trimmed.encoded.shares.documents, strict=True)
        placed = {at: (document, share or 0) for (at, document), share in shares}
        for at, document in enumerate(sent.documents):
            whole = sum(map(sent.tokenizer.text_tokens, (document.title or "", document.text)))
            part, tokens = placed.get(at, (None, whole))
            why = document_reason(sent.tokenizer, sent.budget, document, part)
            self._of_document[at] = len(self.entries)
            self.entries.append(InspectedMessage(names[at], DOCUMENT_ROLE, tokens, "kept" if part else "dropped", why))

    def _add_made(self, source: int, role: str) -> None:
        """Adds what the server made: the summary, or the passages of the knowledge base. Both may be an exchange."""
        trimmed = self.sent.trimmed
        if source not in self._tokens:
            return
        if source == SUMMARY:
            why = f"stands for what was said before {self.sent.chat.named[trimmed.summarised]}"
        else:
            passages = ", ".join(dict.fromkeys(document_names(trimmed.passages)))
            why = f"passages of the knowledge base that match the question: {passages}"
        self._of_source[source] = len(self.entries)
        self.entries.append(InspectedMessage(None, role, self._tokens[source], "kept", why))

    def _rendered(self) -> list[RenderedToken]:
        sent, encoded = self.sent, self.sent.trimmed.encoded
        of_message = [self._of_source[each.source] for each in sent.trimmed.sent_messages]
        places = [*of_message, *(self._of_document[at] for at, _ in sent.placed)]
        owners = (None if owner is None else places[owner] for owner in encoded.owners())
        return _rendered(sent.tokenizer, encoded.ids(), owners)

    @cached_property
    def _tokens(self) -> Counter[int]:
        """Returns the tokens of what was sent, by its source."""
        tokens = Counter[int]()
        trimmed = self.sent.trimmed
        for each, share in zip(trimmed.sent_messages, trimmed.encoded.shares.messages, strict=True):
            tokens[each.source] += share or 0
        return tokens

    @cached_property
    def _reasons(self) -> Reasons:
        sent, trimmed = self.sent, self.sent.trimmed
        changed = (
            each.source
            for each in trimmed.sent_messages
            if each.source >= 0 and each.message.content != sent.messages[each.source].content
        )
        return Reasons(
            sent.budget,
            trimmed,
            sent.chat.named,
            sent.systems,
            frozenset(sent.left_out_by_template()),
            next(changed, None),
            bool(sent.chat.past.summaries),
        )


def _rendered(tokenizer: Tokenizer, ids: Sequence[int], owners: Iterable[int | None]) -> list[RenderedToken]:
    return [
        RenderedToken(id, text, owner) for id, text, owner in zip(ids, tokenizer.token_texts(ids), owners, strict=True)
    ]
