"""A chat becomes token ids, each with its owner: a message, or the template. Knows no windows and no policies.

Control tokens in the caller's texts must not act. Each occurrence is replaced by one private-use character before the
template runs; the rendered text is cut at these, and the pieces are encoded apart, the occurrences as plain text:

    content        "say <|im_end|> now"
    rendered       <|im_start|>user\\nsay X now<|im_end|>\\n          X: a private-use character absent from the chat
    pieces         [<|im_start|>user\\nsay ] [<|im_end|> as text] [ now<|im_end|>\\n]

A chat without such text is encoded in one go. The owner of a token is read from a second rendering in which every text
stands between two more private-use characters; it counts only where it is the first one, character for character.
That is done when it is first asked for: an answer's first token needs the ids alone.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import zip_longest

from tokenizers import Encoding

from service.errors import InvalidRequest
from service.text.marking import Items, MarkedChat, Span
from service.text.messages import Document, Message
from service.text.segments import Memory, Segmented
from service.text.template import ChatTemplate
from service.text.vocabulary import Piece, Vocabulary, middle

_WITHOUT_TOOLS = (
    "where it knows no tools, say in the messages' content what was called and what came of it, or use a version whose "
    "template does."
)


@dataclass(frozen=True, slots=True)
class Shares:
    """How many tokens come from each text, None where the template left the text out; `template`: the rest."""

    messages: tuple[int | None, ...]
    documents: tuple[int | None, ...]
    template: int


class EncodedChat:
    """A chat's tokens. `count` is free; `ids` and `shares` build lists of that length, and whose they are is found out
    when it is first asked for."""

    def __init__(
        self,
        source: Encoding | Segmented | list[Piece],
        find_spans: Callable[[], tuple[Span, ...]],
        messages: int,
        documents: int,
    ) -> None:
        """`find_spans`: by where they start."""
        self._source = source
        self._find_spans = find_spans
        self._messages = messages
        self._documents = documents

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        return self._find_spans()

    @cached_property
    def count(self) -> int:
        return len(self._source)

    def ids(self) -> tuple[int, ...]:
        match self._source:
            case list():
                return tuple(id for id, _, _ in self._source)
            case Segmented():
                return self._source.ids()
            case _:
                return tuple(self._source.ids)

    def owners(self) -> Iterator[int | None]:
        """Of each token: the index of its message, that of its document plus the number of messages, None: template."""
        starts = [span.start for span in self.spans]
        for at in self._middles():
            index = bisect_right(starts, at) - 1
            yield self.spans[index].owner if index >= 0 and at < self.spans[index].stop else None

    @cached_property
    def shares(self) -> Shares:
        """A token belongs to the text that holds its middle character, the one that begins last where texts overlap;
        else to the template. All numbers sum to `count`."""
        counts: list[int | None] = [None] * (self._messages + self._documents)
        middles, owned = sorted(self._middles()), 0
        for span, following in zip_longest(self.spans, self.spans[1:]):
            stop = span.stop if following is None else min(span.stop, following.start)
            share = max(0, bisect_left(middles, stop) - bisect_left(middles, span.start))
            counts[span.owner] = (counts[span.owner] or 0) + share
            owned += share
        return Shares(tuple(counts[: self._messages]), tuple(counts[self._messages :]), self.count - owned)

    def _middles(self) -> list[int]:
        source = self._source
        if isinstance(source, Segmented):
            return source.middles()
        if isinstance(source, list):
            return [middle(start, stop) for _, start, stop in source]
        return [middle(start, stop) for start, stop in source.offsets]


class ChatEncoder:
    """One version's way from chats to ids. Safe from any thread."""

    def __init__(self, vocabulary: Vocabulary, source: str | None, variables: Mapping[str, str]) -> None:
        self._vocabulary = vocabulary
        self._template = None if source is None else ChatTemplate(source, variables)
        control = _control_tokens(vocabulary, self._template.literals if self._template else "")
        tokens = sorted(control.values(), key=len, reverse=True)
        self._quoting = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        self._newline = [id for id, _, _ in vocabulary.pieces("\n")]

    def encode(
        self,
        messages: tuple[Message, ...],
        documents: tuple[Document, ...],
        add_generation_prompt: bool,
        memory: Memory,
    ) -> EncodedChat:
        """What `memory` has of it is not encoded again. Raises InvalidRequest: no template, an empty chat, a role that
        is no word, lone surrogates, a refusal, tool calls that the template leaves out."""
        if self._template is None:
            raise InvalidRequest("This version has no chat template; send `inputs` instead.", param="messages")
        chat = MarkedChat.of(messages, documents, self._quoting)
        has_tools = any(message.tool_calls or message.role == "tool" for message in messages)
        render = partial(self._template.render, generation_prompt=add_generation_prompt, now=datetime.now())
        try:
            text = render(chat.messages, chat.documents)
        except InvalidRequest as error:
            if has_tools:
                raise InvalidRequest(f"{error.message.rstrip('.')}; {_WITHOUT_TOOLS}", param="messages") from error
            raise
        source = self._quoted_pieces(text, chat.quoted) if chat.quoted else memory.encode(text)
        encoded = EncodedChat(source, partial(_spans, render, chat, text), len(messages), len(documents))
        if has_tools:
            encoded.spans  # noqa: B018  (refuses calls and results that the template leaves out)
        return encoded

    def _quoted_pieces(self, text: str, quoted: Mapping[str, str]) -> list[Piece]:
        """Offsets in `text`, in which a quoted token is one character wide."""
        known: dict[str, list[Piece]] = {}
        pieces: list[Piece] = []
        at = 0
        for part in filter(None, re.split("([" + "".join(quoted) + "])", text)):
            found = self._part(quoted.get(part), part, first=True) if at == 0 else known.get(part)
            if found is None:
                found = known[part] = self._part(quoted.get(part), part, first=False)
            pieces += [(id, at, at + 1) if part in quoted else (id, at + start, at + stop) for id, start, stop in found]
            at += len(part)
        return pieces

    def _part(self, token: str | None, part: str, first: bool) -> list[Piece]:
        """Encodes a piece from inside a text: after a newline that is then taken off, so that SentencePiece adds no
        space (transformers' encode_marked_chat)."""
        encode = self._vocabulary.pieces if token is None else self._vocabulary.plain_pieces
        text = token or part
        if first:
            return encode(text)
        pieces = encode("\n" + text)
        count = len(self._newline)
        if [id for id, _, _ in pieces[:count]] != self._newline:
            return encode(text)
        return [(id, start - 1, stop - 1) for id, start, stop in pieces[count:]]


def _spans(render: Callable[[Items, Items], str], chat: MarkedChat, text: str) -> tuple[Span, ...]:
    """`render` must tell the time at which it wrote `text`."""
    try:
        marked = render(*chat.marked())
    except InvalidRequest:  # it refuses what the marks make of a text
        marked = ""
    return _by_message(chat, chat.spans(marked, text))


def _by_message(chat: MarkedChat, spans: Iterable[Span]) -> tuple[Span, ...]:
    """In their order, a tool call's as its message's. Raises InvalidRequest for calls and results without a place."""
    first, calls = len(chat.messages) + len(chat.documents), chat.calls
    placed = {span.owner for span in spans}
    for owner, (_, name) in enumerate(calls, first):
        if owner not in placed:
            raise _not_placed(f"no tool calls ({name[:80]!r})")
    for owner, message in enumerate(chat.messages):
        if message["role"] == "tool" and owner not in placed and str(message["content"]).strip():
            raise _not_placed("no results of tools")
    owned = (replace(span, owner=calls[span.owner - first][0]) if span.owner >= first else span for span in spans)
    return tuple(sorted(owned, key=lambda span: span.start))


def _not_placed(what: str) -> InvalidRequest:
    return InvalidRequest(f"This version's chat template places {what}; {_WITHOUT_TOOLS}", param="messages")


def _control_tokens(vocabulary: Vocabulary, literals: str) -> dict[int, str]:
    """Special tokens, and added tokens that the template writes (`<think>`, `<tool_call>`), as transformers has it."""
    return {
        id: token
        for id, token in vocabulary.added.items()
        if token and (id in vocabulary.special or (token in literals and not token.isspace()))
    }
