"""The chat encoder turns a chat into token ids, each with its owner: a message, a document or the template.

It knows no windows and no policies. Control tokens in the caller's texts must not act. Before the template runs, one
private-use character replaces each occurrence. The rendered text is cut at these characters. Each piece is encoded
apart, and the occurrences are encoded as plain text:

    content        "say <|im_end|> now"
    rendered       <|im_start|>user\\nsay X now<|im_end|>\\n          X: a private-use character absent from the chat
    pieces         [<|im_start|>user\\nsay ] [<|im_end|> as text] [ now<|im_end|>\\n]

An assistant's message from which the answer goes on ends with one more such character, and the prompt ends there.

A chat without such text is encoded at once. The owner of a token is read from a second rendering, in which every text
stands between two more private-use characters. The second rendering counts only if it equals the first one without the
marks. It is made at the first need, because an answer's first token needs the ids only.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import zip_longest

from tokenizers import Encoding

from service.errors import InvalidRequest, UnsupportedField
from service.text.alternation import longest_of
from service.text.marking import Items, MarkedChat, Span
from service.text.messages import ChatOptions, Document, Message
from service.text.segments import Memory, Segmented
from service.text.template import RESERVED, ChatTemplate
from service.text.tools import ToolFormat
from service.text.tools.choosing import tool_format_of
from service.text.tools.described import as_texts, described
from service.text.tools.ids import with_ids
from service.text.vocabulary import Piece, Vocabulary, middle

_WITHOUT_TOOLS = (
    "where it knows no tools, say in the messages' content what was called and what came of it, or use a version whose "
    "template does."
)


@dataclass(frozen=True, slots=True)
class Shares:
    """The number of tokens from each text; None if the template left the text out. `template` is the rest."""

    messages: tuple[int | None, ...]
    documents: tuple[int | None, ...]
    template: int


class EncodedChat:
    """A chat's tokens. `count` costs nothing. `ids` and `shares` build lists of that length. Owners are found at their
    first use."""

    def __init__(
        self,
        source: Encoding | Segmented | list[Piece],
        find_spans: Callable[[], tuple[Span, ...]],
        messages: int,
        documents: int,
    ) -> None:
        """`find_spans` returns spans in order of their starts."""
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
        """Yields the owner of each token: the index of its message, the index of its document plus the number of
        messages, or None for the template."""
        starts = [span.start for span in self.spans]
        for at in self._middles():
            index = bisect_right(starts, at) - 1
            yield self.spans[index].owner if index >= 0 and at < self.spans[index].stop else None

    @cached_property
    def shares(self) -> Shares:
        """The tokens of each text. A token belongs to the text that holds its middle character; of overlapping texts,
        to the one that begins last; else to the template. All numbers sum to `count`."""
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
    """Encodes chats for one version. Safe from any thread."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        source: str | None,
        variables: Mapping[str, str],
        tool_source: str | None = None,
    ) -> None:
        """`tool_source` is the template of chats with tools, where there is one of its own."""
        self._vocabulary = vocabulary
        self._plain, self._with_tools = (
            None if each is None else ChatTemplate(each, variables) for each in (source, tool_source or source)
        )
        self._template = self._plain
        self._options = ChatOptions()
        self._quoting = re.compile(longest_of(_control_tokens(vocabulary, self.literals).values()))
        self.tool_format = tool_format_of(self._with_tools, self.literals, None)
        """How calls are written; None where it is not known."""
        self._newline = [id for id, _, _ in vocabulary.pieces("\n")]

    @property
    def literals(self) -> str:
        """Returns every text that the templates themselves can write, joined by NUL."""
        return "\0".join(each.literals for each in self._templates)

    @property
    def variables(self) -> frozenset[str]:
        """Returns the template's variables that a request can set."""
        return frozenset[str]().union(*(each.variables for each in self._templates))

    @property
    def describes_tools(self) -> bool:
        """Whether a chat's tools are described in its messages."""
        return self._with_tools is not None and self._with_tools.describes_tools

    @property
    def describes_calls(self) -> bool:
        """Whether earlier calls and their results are a chat's texts: its tools are described, or were."""
        if self._template is None or self.tool_format is None or not self.describes_tools:
            return False
        return bool(self._options.tools) or not self._template.places_calls

    @property
    def _described_as(self) -> ToolFormat | None:
        """Returns the form in which this chat's tools are described; None where there are none, or the template places
        them."""
        return self.tool_format if self._options.tools and self.describes_tools else None

    @property
    def _templates(self) -> list[ChatTemplate]:
        return [each for each in dict.fromkeys((self._plain, self._with_tools)) if each is not None]

    def read_as(self, name: str | None) -> ChatEncoder:
        """Returns the same encoder for a version that writes calls in the form of this name; None leaves it to the
        template."""
        encoder = copy(self)
        encoder.tool_format = tool_format_of(self._with_tools, self.literals, name)
        return encoder

    def with_options(self, options: ChatOptions) -> ChatEncoder:
        """Returns an encoder of the same version whose chats have these tools and variables. Raises UnsupportedField
        for a variable that would stand for something else, or that holds a control token."""
        encoder = copy(self)
        encoder._options = options
        encoder._template = self._with_tools if options.tools else self._plain
        for name, value in options.variables:
            if name in RESERVED or (isinstance(value, str) and self._quoting.search(value)):
                why = "has a name of its own use" if name in RESERVED else "holds a control token"
                raise UnsupportedField(
                    f"`chat_template_kwargs.{name}` {why}: remove it", param=f"chat_template_kwargs.{name}"
                )
        return encoder

    def encode(
        self,
        messages: tuple[Message, ...],
        documents: tuple[Document, ...],
        add_generation_prompt: bool,
        memory: Memory,
    ) -> EncodedChat:
        """Encodes a chat. Pieces in `memory` are not encoded again. Raises InvalidRequest for a version without a
        template, an empty chat, a role that is no word, lone surrogates, a template's refusal, and tool calls that the
        template leaves out."""
        if self._template is None:
            raise InvalidRequest(
                "This version has no chat template; send `inputs` instead.", param="messages", fields=("inputs",)
            )
        chat = self._marked(messages, documents)
        has_tools = any(message.tool_calls or message.role == "tool" for message in messages)
        render = partial(self._rendered, chat, generation_prompt=add_generation_prompt, now=datetime.now())
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

    def count(self, messages: tuple[Message, ...], documents: tuple[Document, ...], memory: Memory) -> int:
        """Returns the number of tokens of `encode` with the generation prompt. It does not check tool calls."""
        if self._template is None:
            raise InvalidRequest(
                "This version has no chat template; send `inputs` instead.", param="messages", fields=("inputs",)
            )
        chat = self._marked(messages, documents)
        text = self._rendered(chat, chat.messages, chat.documents, generation_prompt=True)
        return len(self._quoted_pieces(text, chat.quoted)) if chat.quoted else memory.count(text)

    def _marked(self, messages: tuple[Message, ...], documents: tuple[Document, ...]) -> MarkedChat:
        """Returns the chat as the template takes it: with its ids of calls, and with calls as text where it would leave
        them out."""
        assert self._template is not None
        form, is_open = self.tool_format, self._options.is_open(messages)
        messages = with_ids(form.ids if form else "", messages)
        if form is not None and self.describes_calls:
            messages = as_texts(form, messages)
        elif form is not None and form.opening and not self._template.places_calls:
            messages = tuple(map(form.as_text, messages))
        return MarkedChat.of(messages, documents, self._quoting, self._options.tools, is_open)

    def _rendered(
        self,
        chat: MarkedChat,
        messages: Items,
        documents: Items,
        *,
        generation_prompt: bool,
        now: datetime | None = None,
    ) -> str:
        assert self._template is not None
        template, tools, variables = self._template, chat.tools, dict(self._options.variables)
        items = chat.ending(messages) if chat.is_open else messages
        if self._described_as is not None:
            items, tools = described(self._described_as, items, tools, has_system=template.has_system), ()
        if not chat.is_open:
            return template.render(items, documents, generation_prompt, now, tools, variables)
        return chat.opened(template.render(items, documents, False, now, tools, variables))

    def _quoted_pieces(self, text: str, quoted: Mapping[str, str]) -> list[Piece]:
        """Returns pieces with offsets in `text`, in which a quoted token is one character wide."""
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
        """Encodes a piece from inside a text. The piece is encoded behind a newline, which is then taken off, so that
        SentencePiece adds no space (transformers' encode_marked_chat)."""
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
    """Returns the spans of texts in `text`. `render` must use the same time as for `text`."""
    try:
        marked = render(*chat.marked())
    except InvalidRequest:  # the template refuses a marked text
        marked = ""
    return _by_message(chat, chat.spans(marked, text))


def _by_message(chat: MarkedChat, spans: Iterable[Span]) -> tuple[Span, ...]:
    """Returns the spans in order; a tool call's span belongs to its message. Raises InvalidRequest for calls and
    results that the template leaves out."""
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
    """Returns special tokens, and added tokens that the template writes (`<think>`, `<tool_call>`), as transformers
    does."""
    return {
        id: token
        for id, token in vocabulary.added.items()
        if token and (id in vocabulary.special or (token in literals and not token.isspace()))
    }
