"""Trimming decides which messages of a chat are sent, what replaces the others, and counts the tokens of all.
`policies` chooses the turns where not all fit, `retrieval` the turns that come back, and `placing` the order.

`turns` counts each turn once; these counts say whether a turn fits. The version's template then renders what is sent,
and the result is counted exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.context import policies, retrieval
from service.context.budget import Budget
from service.context.composition import (
    KNOWLEDGE,
    SentMessage,
    knowledge_messages,
    leading_systems,
    of_chat,
    summary_messages,
)
from service.context.excerpts import by_rank, without_middle
from service.context.policies import SYSTEM_ROLES, LowWater, Overrun, Turn
from service.context.retrieval import Recall
from service.context.sources import NO_PAST, Before, Past
from service.context.turns import tokens_beside, turns_of
from service.errors import InvalidRequest
from service.text.chat import EncodedChat
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer

_LEAST_LEFT = 16  # an overlong message keeps at least this many tokens
_LEAST_MARGIN = 16  # tokens
_OPEN_SHARE = 8  # turns counted at up to this part more than the room may fit once they are written


@dataclass(frozen=True, slots=True)
class Trimmed:
    """`sent_messages` are the messages in `encoded`. `cut` is the first message of the newest turns, None where all are
    sent. `turns` are the chat's turns: the chat was cut at turn `start` before, and `absent` messages ahead of it are
    not in the chat at all; `before` has their numbers. Messages `recalled` came back, messages before `summarised` are
    in a summary, `passages` are from the knowledge base, and `shortened` tokens of the last turn are left out. `cuts`
    are the moves of the cut in this call, as counted before the template wrote what is sent; `recall` is how the turns
    that match were chosen. The next turns keep the cut for `stable_for` tokens."""

    sent_messages: tuple[SentMessage, ...]
    encoded: EncodedChat
    cut: int | None = None
    recalled: tuple[int, ...] = ()
    summarised: int = 0
    passages: tuple[Document, ...] = ()
    shortened: int = 0
    turns: tuple[Turn, ...] = ()
    start: int = 0
    absent: int = 0
    cuts: tuple[Overrun, ...] = ()
    recall: Recall | None = None
    before: Before | None = None
    stable_for: int = 0

    @property
    def counted_cut(self) -> int:
        """Returns the first of the newest turns by the turns' own counts; the template may have moved it on."""
        return self.cuts[-1].cut if self.cuts else self.start

    @property
    def sent(self) -> frozenset[int]:
        """Returns the positions of the chat's messages that are sent."""
        return frozenset(each.source for each in self.sent_messages if each.source >= 0)

    @property
    def document_tokens(self) -> int:
        return sum(share or 0 for share in self.encoded.shares.documents)

    @property
    def knowledge_tokens(self) -> int:
        if not self.passages:
            return 0
        shares = zip(self.sent_messages, self.encoded.shares.messages, strict=True)
        return sum(share or 0 for each, share in shares if each.source == KNOWLEDGE)


def trim(
    tokenizer: Tokenizer,
    budget: Budget,
    messages: Sequence[Message],
    names: Sequence[str],
    documents: tuple[Document, ...] = (),
    past: Past = NO_PAST,
) -> Trimmed:
    """Trims the chat by the policy of the budget's options. Raises ContextOverflow where what must be sent does not fit
    (by `refuse` all of it; else system messages, pinned turns and the last turn), InvalidRequest for a pin that is no
    message."""
    pinned = _pinned(budget.options.pin, names)
    systems = leading_systems(messages)
    if systems == len(messages) or (budget.options.chosen == "refuse" and not past.passages):
        sent = of_chat(messages, range(len(messages)))
        encoded = tokenizer.encode_chat(messages, documents=documents)
        budget.require(encoded.count, "messages")
        return Trimmed(tuple(sent), encoded)
    chat = _Chat(tokenizer, budget, messages, systems, documents, past)
    chat.divide(pinned)
    if budget.options.chosen == "middle":
        chat.shorten(pinned)
    chat.begin(names)
    return chat.fit(chat.cut())


@dataclass(slots=True)
class _Chat:
    """One call's chat on its way into the budget. `turns` begin behind the `systems`; the chat was cut at `start`
    before. `room` is for turns; `margin` tokens of it stay free where the template writes more than was counted."""

    tokenizer: Tokenizer
    budget: Budget
    messages: Sequence[Message]
    systems: int
    documents: tuple[Document, ...]
    past: Past
    turns: tuple[Turn, ...] = ()
    start: int = 0
    shortened: int = 0
    room: int = 0
    margin: int = 0
    cuts: tuple[Overrun, ...] = ()

    def divide(self, pinned: Sequence[bool]) -> None:
        self.turns = turns_of(self.tokenizer, self.messages[self.systems :], pinned[self.systems :])

    def begin(self, names: Sequence[str]) -> None:
        """Finds the turn at which the chat was cut before. A cut that was made for a smaller budget, or that is at no
        turn, is forgotten with its numbers."""
        is_kept = not self.past.is_outgrown(self.budget.limit)
        starts = (at for at, turn in enumerate(self.turns) if is_kept and names[self._place(turn)] == self.past.cut)
        start = next(starts, None)
        self.start = start or 0
        if start is None:
            self.past = replace(self.past, before=None)

    def shorten(self, pinned: Sequence[bool]) -> None:
        """Leaves out the middle of the last turn's longest message where the turn does not fit beside what must stay. A
        system message, the one that the answer goes on from and one that would keep next to nothing stay whole, and are
        refused."""
        must = policies.kept(self.budget.options.chosen, self.turns, len(self.turns) - 1)
        messages, left_out = self.messages, 0
        last = messages[self._place(self.turns[-1]) :]
        tokens = [0 if each.role in SYSTEM_ROLES else self.tokenizer.text_tokens(each.content) for each in last]
        if self.tokenizer.continues(messages):
            tokens[-1] = 0  # the answer goes on from that one
        at = self._place(self.turns[-1]) + tokens.index(max(tokens))
        while (over := self._encode(self._sent(must)).count - self.budget.limit) > 0:
            left_out += over + (0 if self.shortened else _LEAST_LEFT)
            if left_out > max(tokens) - _LEAST_LEFT:
                self.messages, self.shortened = messages, 0
                return
            text, self.shortened = without_middle(self.tokenizer, messages[at].content, left_out)
            self.messages = [*messages[:at], replace(messages[at], content=text), *messages[at + 1 :]]
        if self.shortened:
            self.divide(pinned)

    def cut(self) -> int:
        """Returns the first of the newest turns. A whole chat that fits is sent, whatever was cut in earlier calls."""
        if self.budget.options.chosen == "refuse":
            return 0
        last = self.messages[self._place(self.turns[-1]) :]
        beside = tokens_beside(self.tokenizer, self.messages[: self.systems], self.documents, last)
        self.room = self.budget.limit - self._for_passages - beside
        cut = self._counted_cut()
        if cut and not self.start and self._fits_whole():
            self.cuts = ()
            return 0
        return cut

    def _counted_cut(self) -> int:
        low_water = LowWater(self.budget.options.low_water, self.past.decode_ratio)
        before = None if self.past.before is None else (self.past.before.asked, self.past.before.answered)
        policy, aside, room = self.budget.options.chosen, self.budget.aside, self.room - self.margin
        self.cuts = policies.cuts_of(policy, self.turns, room, low_water, self.start, aside, before)
        return self.cuts[-1].cut if self.cuts else self.start

    def fit(self, cut: int) -> Trimmed:
        """Returns what is sent with this cut. Where the template writes more tokens than were counted, leaves out first
        passages, then turns that match, then the oldest of the newest turns, down to the low-water mark."""
        found = self.past.passages or ()
        fitting = by_rank(self.tokenizer, found, self._documents_left)
        passages = [passage for at, passage in fitting if passage == found[at]]  # whole ones
        aside, last = self.budget.aside, len(self.turns) - 1
        while True:
            trimmed = self._arranged(cut, aside, passages)
            over = trimmed.encoded.count - self.budget.limit
            is_short = over <= 0 and trimmed.knowledge_tokens <= self._documents_left
            is_cut_last = cut == last or self.budget.options.chosen == "refuse"
            if is_short and (trimmed.cut is None or is_cut_last or self._excess(trimmed) <= self.margin):
                return trimmed
            if passages and not is_short:
                passages.pop()
            elif over > 0 and (trimmed.recalled or trimmed.summarised):
                aside -= max(over, aside // 4)
            elif not is_cut_last:
                cut = self._cut_with_margin(self._excess(trimmed))
            else:
                self.budget.require(trimmed.encoded.count, "messages", self._change(trimmed.encoded.count))
                return trimmed

    def _excess(self, trimmed: Trimmed) -> int:
        """Returns how many tokens more the template wrote than were counted; 0 where something stands beside turns."""
        if trimmed.passages or trimmed.summarised:
            return 0
        sent, first = trimmed.sent, self.systems
        counted = sum(turn.tokens for turn in self.turns if first + turn.first in sent)
        return trimmed.encoded.count - counted - (self.budget.limit - self._for_passages - self.room)

    def _cut_with_margin(self, excess: int) -> int:
        """Returns the cut where at least `excess` tokens of the room stay free. The margin is a power of two, so that
        the next calls have the same one, and the same cut."""
        if excess <= self.margin:
            return len(self.turns) - 1
        self.margin = max(_LEAST_MARGIN, 1 << (excess - 1).bit_length())
        return self._counted_cut()

    def _change(self, used: int) -> str:
        """Returns what to change where the turns that stay beside the last one leave no room for any question; else
        nothing."""
        *others, last = self.turns
        if self.budget.options.chosen == "refuse" or used - last.tokens < self.budget.most:
            return ""
        changes = {
            "unpin messages": any(turn.pinned for turn in others),
            "choose another context.policy": bool(others) and policies.is_opening(self.budget.options.chosen, 0),
            f"shorten the system prompt by {used - self.budget.most} tokens": self.systems > 0,
        }
        return ", or ".join(change for change, can_help in changes.items() if can_help)

    def _arranged(self, cut: int, aside: int, passages: list[Document]) -> Trimmed:
        policy = self.budget.options.chosen
        stable_for = self.room - self.margin - self.budget.aside - policies.used(policy, self.turns, cut)
        summarised, summary = self._summary(cut, aside) if policy == "summarise" else (0, "")
        if summarised:
            cut = next(at for at, turn in enumerate(self.turns) if self._place(turn) == summarised)
        kept = policies.kept(policy, self.turns, cut)
        recall = self._recall(kept, aside) if policy == "retrieve" else None
        recalled = recall.chosen if recall else ()
        is_whole = bool(recalled) and len(kept) + len(recalled) == len(self.turns)
        if is_whole and self._is_within(self.budget.limit):  # the counts were longer than the rendered chat
            kept, recalled = tuple(range(len(self.turns))), ()
        sent = [
            *of_chat(self.messages, range(self.systems)),
            *(summary_messages(self.tokenizer, summary) if summarised else ()),
            *self._of_turns(kept[:-2]),
            *self._of_turns(recalled),
            *self._of_turns(kept[-2:-1]),
            *knowledge_messages(self.tokenizer, passages),
            *self._of_turns(kept[-1:]),
        ]
        is_cut, encoded = len(kept) < len(self.turns) or self.absent > 0, self._encode(sent)
        return Trimmed(
            tuple(sent),
            encoded,
            self._place(self.turns[cut]) if is_cut else None,
            tuple(each.source for each in self._of_turns(recalled)),
            summarised,
            tuple(passages),
            self.shortened,
            self.turns,
            self.start,
            self.absent,
            self.cuts,
            recall,
            self.past.before,
            max(0, min(stable_for, self.budget.limit - encoded.count)),
        )

    def _fits_whole(self) -> bool:
        """Returns whether the whole chat fits. Renders it where its turns' counts leave that open."""
        counted = sum(turn.tokens for turn in self.turns)
        may_fit = counted <= self.room + max(0, self.room) // _OPEN_SHARE
        return may_fit and self._is_within(self.budget.limit - self._for_passages)

    def _is_within(self, limit: int) -> bool:
        """Returns whether the whole chat is there, and has at most `limit` tokens as the template writes it."""
        return not self.absent and self._encode(self._sent(range(len(self.turns)))).count <= limit

    def _summary(self, cut: int, aside: int) -> tuple[int, str]:
        """Returns the position and the text of the summary that stands for the fewest messages and for all that is left
        out; (0, "") where there is none. Where the message behind a summary is gone, no turn begins there."""
        starts = {self._place(turn) for turn in self.turns[cut:]} if cut else set()
        fitting = [
            (place, text)
            for place, text in self.past.summaries
            if place in starts and self.tokenizer.text_tokens(text) <= aside
        ]
        return min(fitting, default=(0, ""))

    def _recall(self, kept: Sequence[int], aside: int) -> Recall:
        """Returns the turns that are left out, scored by how well they match the last one."""
        staying = frozenset(kept)
        others = [at for at in range(len(self.turns)) if at not in staying]
        if not others:
            return Recall()
        texts = [self._texts(at) for at in range(len(self.turns))]
        scores = retrieval.scores(
            "\n".join(texts[-1]),
            ["\n".join(texts[at]) for at in others],
            [retrieval.asks(texts[at][0]) for at in others],
            ["\n".join(texts[at]) for at in kept[:-1]],
        )
        return Recall(others, scores, [self.turns[at].tokens for at in others], aside)

    @property
    def absent(self) -> int:
        """Returns how many messages ahead of the earlier cut are not in this chat."""
        return 0 if self.past.before is None else self.past.before.messages - self.turns[self.start].first

    @property
    def _documents_left(self) -> int:
        """Returns how much of the documents' budget is left for passages of the knowledge base."""
        texts = (text for document in self.documents for text in (document.title or "", document.text))
        return max(0, self.budget.documents - sum(map(self.tokenizer.text_tokens, texts)))

    @property
    def _for_passages(self) -> int:
        return 0 if self.past.passages is None else self._documents_left

    def _place(self, turn: Turn) -> int:
        return self.systems + turn.first

    def _texts(self, turn: int) -> list[str]:
        messages = [each.message for each in self._of_turns((turn,))]
        return [text for each in messages if each.role not in SYSTEM_ROLES for text in each.texts]

    def _of_turns(self, turns: Sequence[int]) -> list[SentMessage]:
        places = (range(self._place(self.turns[at]), self.systems + self.turns[at].last) for at in turns)
        return of_chat(self.messages, [place for those in places for place in those])

    def _sent(self, turns: Sequence[int]) -> list[SentMessage]:
        return [*of_chat(self.messages, range(self.systems)), *self._of_turns(turns)]

    def _encode(self, sent: Sequence[SentMessage]) -> EncodedChat:
        return self.tokenizer.encode_chat([each.message for each in sent], documents=self.documents)


def _pinned(pins: Sequence[str], names: Sequence[str]) -> list[bool]:
    pinned = set(pins)
    unknown = pinned - set(names)
    if unknown:
        raise InvalidRequest(
            f"context.pin: {min(unknown)[:80]!r} is no message of this chat; they are {names[0]} to {names[-1]}.",
            param="context.pin",
        )
    return [name in pinned for name in names]
