"""The counts of a chat's prompt, once it is built: its receipt, its length with nothing left out, and the numbers of
what stands before its cut.

It knows what was given and what was sent; it decides nothing about what is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from service.context.budget import Budget
from service.context.composition import KNOWLEDGE, SUMMARY, SentMessage, knowledge_messages, leading_systems
from service.context.excerpts import Placed
from service.context.partition import Counts, Partition, ranges_of
from service.context.policies import SYSTEM_ROLES
from service.context.receipt import Cut, Parts, Receipt
from service.context.sources import Before, Chat, added, tokens_of
from service.context.trimming import Trimmed
from service.errors import InvalidRequest
from service.text.chat import Shares
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer

MOST_NAMED = 8  # messages in one note
NO_SUMMARY_NOTE = "no summary was ready: older messages are left out"


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of one prompt. `whole`: how many tokens the prompt would have with nothing left out; where the
    template refuses the whole chat, as many as its texts have. `before`: the numbers of what stands before the cut, of
    a stored chat that was cut. `limit`: the input budget that the cut was made for."""

    receipt: Receipt
    whole: int
    before: Before | None = None
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """One chat's prompt. `messages` and `documents` are the given ones, composed; `placed` are the documents that were
    sent."""

    tokenizer: Tokenizer
    budget: Budget
    chat: Chat
    messages: tuple[Message, ...]
    documents: tuple[Document, ...]
    placed: tuple[Placed, ...]
    trimmed: Trimmed
    notes: tuple[str, ...]

    def counted(self) -> Counted:
        receipt = self._receipt()
        whole = self._whole(receipt)
        if whole is None:
            return Counted(receipt, receipt.used + receipt.dropped_tokens, limit=self._limit)
        return Counted(receipt, whole, self._before(whole) if self.chat.positions else None, self._limit)

    @property
    def _limit(self) -> int:
        """Returns the input budget of this call, or of the earlier call whose cut is kept."""
        trimmed, limit = self.trimmed, self.budget.limit
        is_kept = trimmed.start and trimmed.cut == self.systems + trimmed.turns[trimmed.start].first
        return max(limit, self.chat.past.limit) if is_kept else limit

    def _receipt(self) -> Receipt:
        shares, trimmed = self.trimmed.encoded.shares, self.trimmed
        parts = self._with_tools(_parts(trimmed.sent_messages, shares))
        left_out = self.left_out_by_template()
        notes = (*self.notes, *_notes(self.budget.options.chosen, trimmed, bool(left_out)))
        notes = (*notes, *self._document_notes(), *self._reasoning_notes(), *self._name_notes(), *self._open_notes())
        notes = (*notes, *self._unread_notes())
        missing = sorted(left_out | (set(range(len(self.messages))) - trimmed.sent))
        partition = self._partition(missing)
        lists = partition.lists(self.chat.all_named)
        cut = None if trimmed.cut is None else Cut(self.chat.named[trimmed.cut], trimmed.stable_for)
        names, kept = document_names(self.documents), [at for at, _ in self.placed]
        return replace(
            Receipt.of(self.budget, parts, notes),
            kept=lists.kept,
            dropped=lists.dropped,
            summarised=lists.summarised,
            recalled=lists.recalled,
            partition=partition,
            dropped_tokens=self._dropped_tokens(missing),
            cut=cut,
            documents_kept=(*(names[at] for at in kept), *document_names(trimmed.passages)),
            documents_dropped=tuple(name for at, name in enumerate(names) if at not in kept),
            documents_cut=tuple(names[at] for at, _ in self._cut_documents()),
        )

    def _with_tools(self, parts: Parts) -> Parts:
        """Returns the parts with the tools apart from the rest of the template."""
        sent = [each.message for each in self.trimmed.sent_messages]
        placed = [document for _, document in self.placed]
        tools = max(0, min(self.tokenizer.tool_tokens(sent, placed), parts.template))
        return replace(parts, template=parts.template - tools, tools=tools) if tools else parts

    def left_out_by_template(self) -> set[int]:
        """Returns the positions of messages that were to be sent and that the template left out; never the current
        one."""
        last, shares = len(self.messages) - 1, self.trimmed.encoded.shares
        return {
            each.source
            for each, share in zip(self.trimmed.sent_messages, shares.messages, strict=True)
            if share is None and 0 <= each.source != last and each.message.content.strip()
        }

    def _partition(self, missing: Sequence[int]) -> Partition:
        positions, trimmed, gone = self.chat.placed, self.trimmed, set(missing)
        kept = [at for at in range(len(self.messages)) if at not in gone]
        summarised = sum(at < trimmed.summarised for at in missing)
        counts = Counts(len(kept), len(missing) - summarised + trimmed.absent, summarised)
        return Partition(
            ranges_of(positions[at] for at in kept),
            counts,
            ranges_of(positions[at] for at in trimmed.recalled),
            positions[trimmed.summarised] if trimmed.summarised else 0,
            None if trimmed.cut is None else positions[trimmed.cut],
            min(positions[0], 0),
        )

    def _dropped_tokens(self, missing: Sequence[int]) -> int:
        before, systems = self.trimmed.before, self.systems
        tokens = tokens_of(self.tokenizer, [self.messages[at] for at in missing]) + self.trimmed.shortened
        if before is None or not self.trimmed.absent:
            return tokens
        ahead = self.messages[systems : systems + self.trimmed.turns[self.trimmed.start].first]
        return tokens + before.tokens - tokens_of(self.tokenizer, ahead)

    def _whole(self, receipt: Receipt) -> int | None:
        """Returns the length with what the server added beside the chat, but without a summary: a summary stands for
        what is left out. Returns None where the template refuses the whole chat."""
        if not receipt.truncated:
            return receipt.used
        before, systems = self.trimmed.before or Before(), self.systems
        rest = self.messages[self._start :]
        knowledge = [each.message for each in knowledge_messages(self.tokenizer, self.trimmed.passages)]
        try:
            messages = (*self.messages[:systems], *rest[:-1], *knowledge, *rest[-1:])
            return before.written + self.tokenizer.chat_tokens(messages, documents=self.documents)
        except InvalidRequest:
            return None

    def _before(self, whole: int) -> Before | None:
        """Returns the numbers of what stands before this prompt's cut; `whole` is the whole prompt's length."""
        trimmed, known = self.trimmed, self.trimmed.before
        if trimmed.cut is None:
            return None
        start = trimmed.start if known else 0
        last = trimmed.cut - self.systems
        turns = [turn for turn in trimmed.turns[start:] if turn.first < last]
        if known and not turns:
            return known
        known = known or Before()
        systems, messages = self.messages[: self.systems], self.messages[self._start :]
        is_all = not self.documents and not self.trimmed.passages and not self.tokenizer.has_tools
        try:
            return added(
                known, self.tokenizer, systems, messages, turns, whole=whole - known.written if is_all else None
            )
        except InvalidRequest:
            return None

    @property
    def systems(self) -> int:
        return leading_systems(self.messages)

    @property
    def _start(self) -> int:
        """Returns the position from which on all messages are here: behind those that `Trimmed.before` counts."""
        known = self.trimmed.before is not None and self.trimmed.turns
        return self.systems + (self.trimmed.turns[self.trimmed.start].first if known else 0)

    def _cut_documents(self) -> list[Placed]:
        return [(at, document) for at, document in self.placed if document.text != self.documents[at].text]

    def _reasoning_notes(self) -> Iterator[str]:
        parts = [each.reasoning for each in self.messages if each.reasoning]
        if parts:
            tokens = sum(map(self.tokenizer.text_tokens, parts))
            of = "an earlier answer" if len(parts) == 1 else f"{len(parts)} earlier answers"
            yield f"the reasoning of {of} is not sent again: {tokens} tokens"

    def _name_notes(self) -> Iterator[str]:
        written = self.tokenizer.probes.named_roles if any(each.name for each in self.messages) else frozenset()
        unwritten = [
            name
            for name, message in zip(self.chat.named, self.messages, strict=True)
            if message.name and message.role not in written
        ]
        if unwritten:
            more = f" and {len(unwritten) - MOST_NAMED} more" if len(unwritten) > MOST_NAMED else ""
            listed = ", ".join(unwritten[:MOST_NAMED])
            yield f"the chat template does not write the `name` of messages: {listed}{more}"

    def _unread_notes(self) -> Iterator[str]:
        """A pin needs no note: a policy that reads none leaves no message out."""
        options = self.budget.options
        for name in options.unread:
            if name != "pin":
                yield f"policy {options.chosen} does not read context.{name}"

    def _open_notes(self) -> Iterator[str]:
        if self.tokenizer.continues(self.messages):
            content, probes = self.messages[-1].content, self.tokenizer.probes
            cut = "" if content == content.strip() or not probes.trims_open else ", without the blanks around its text"
            yield f"the answer goes on from {self.chat.named[-1]}{cut}"

    def _document_notes(self) -> Iterator[str]:
        names, tokens = document_names(self.documents), self.tokenizer.text_tokens
        for at, document in self._cut_documents():
            whole = tokens(self.documents[at].text)
            yield f"document {names[at]} is cut: {tokens(document.text)} of its {whole} tokens are sent"


def _parts(sent: Sequence[SentMessage], shares: Shares) -> Parts:
    """Returns the token counts by part. The last one is the current message."""
    *before, current = ((each, share or 0) for each, share in zip(sent, shares.messages, strict=True))

    def of(source: int) -> int:
        return sum(share for each, share in before if each.source == source)

    own = [(each.message.role in SYSTEM_ROLES, share) for each, share in before if each.source >= 0]
    return Parts(
        template=shares.template,
        system=sum(share for is_system, share in own if is_system),
        documents=sum(share or 0 for share in shares.documents) + of(KNOWLEDGE),
        summary=of(SUMMARY),
        history=sum(share for is_system, share in own if not is_system),
        current=current[1],
    )


def _notes(policy: str, trimmed: Trimmed, left_out: bool) -> Iterator[str]:
    if left_out:
        yield "the chat template leaves messages out"
    if trimmed.shortened:
        yield f"the middle of the last turn is left out: {trimmed.shortened} tokens"
    if policy == "summarise" and trimmed.cut is not None and not trimmed.summarised:
        yield NO_SUMMARY_NOTE


def document_names(documents: Sequence[Document]) -> tuple[str, ...]:
    return tuple(f"d_{index}" if document.id is None else document.id for index, document in enumerate(documents))
