"""A chat → token ids, and who owns each of them. Knows the template and the vocabulary; no windows, no policies.

Control tokens in the caller's texts must not act. Each occurrence is replaced by one private-use character before the
template runs; the rendered text is cut at these, and the pieces are encoded apart, the occurrences as plain text:

    content        "say <|im_end|> now"
    rendered       <|im_start|>user\\nsay X now<|im_end|>\\n          X: a private-use character absent from the chat
    pieces         [<|im_start|>user\\nsay ] [<|im_end|> as text] [ now<|im_end|>\\n]

A chat without such text is encoded in one go. Who owns a token is read from a second rendering in which every text
stands between two more private-use characters; it counts only where it is the first one, character for character.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.errors import InvalidRequest
from service.text.messages import Document, Message
from service.text.template import ChatTemplate
from service.text.vocabulary import Piece, Vocabulary, require_text

_ROLE = re.compile(r"[A-Za-z][A-Za-z_-]{0,31}")
_PRIVATE_USE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
Texts = tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [start, stop) of the rendered text that are one message's or one document's."""

    start: int
    stop: int
    owner: int


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """`messages[i]`, `documents[i]`: how many of `ids` come from that text, None where the template left it out;
    `template`: the rest. They sum to `len(ids)`."""

    ids: tuple[int, ...]
    messages: tuple[int | None, ...]
    documents: tuple[int | None, ...]
    template: int


class ChatEncoder:
    """One version's way from chats to ids. Immutable, safe from any thread."""

    def __init__(self, vocabulary: Vocabulary, source: str | None, variables: Mapping[str, str]) -> None:
        self._vocabulary = vocabulary
        self._template = None if source is None else ChatTemplate(source, variables)
        self._control = _control_tokens(vocabulary, self._template.literals if self._template else "")
        tokens = sorted(self._control.values(), key=len, reverse=True)
        self._quoting = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        self._newline = [id for id, _, _ in vocabulary.encode("\n")]

    def encode(
        self, messages: tuple[Message, ...], documents: tuple[Document, ...], add_generation_prompt: bool
    ) -> EncodedChat:
        """Raises InvalidRequest: no template, an empty chat, a role that is no word, lone surrogates, a refusal."""
        if self._template is None:
            raise InvalidRequest("This version has no chat template; send `inputs` instead.", param="messages")
        chat = _Chat.of(messages, documents, self._quoting)
        text = self._template.render(chat.messages, chat.documents, add_generation_prompt)
        marked = self._template.render(*chat.marked(), add_generation_prompt)
        spans = chat.spans(marked, text)
        pieces = self._encode(text, chat.quoted)
        return _attribute(pieces, spans, len(messages), len(documents), frozenset(self._control))

    def _encode(self, text: str, quoted: Mapping[str, str]) -> list[Piece]:
        if not quoted:
            return self._vocabulary.encode(text)
        pieces: list[Piece] = []
        at = 0
        for part in re.split("([" + "".join(quoted) + "])", text):
            if part:
                width = len(part)
                pieces += _stretched(self._part(quoted.get(part), part, first=at == 0), at, part in quoted)
                at += width
        return pieces

    def _part(self, token: str | None, part: str, first: bool) -> list[Piece]:
        """Encodes a piece from inside a text: after a newline that is then taken off, so that SentencePiece adds no
        space (transformers' encode_marked_chat)."""
        encode = self._vocabulary.encode if token is None else self._vocabulary.encode_plain
        text = token or part
        if first:
            return encode(text)
        pieces = encode("\n" + text)
        count = len(self._newline)
        if [id for id, _, _ in pieces[:count]] != self._newline:
            return encode(text)
        return [(id, start - 1, stop - 1) for id, start, stop in pieces[count:]]


def _control_tokens(vocabulary: Vocabulary, literals: str) -> dict[int, str]:
    """Special tokens, and added tokens that the template writes (`<think>`, `<tool_call>`), as transformers has it."""
    return {
        id: token
        for id, token in vocabulary.added.items()
        if token and (id in vocabulary.special or (token in literals and not token.isspace()))
    }


def _stretched(pieces: list[Piece], at: int, quoted: bool) -> Iterator[Piece]:
    """Offsets in the rendered text; in it, a quoted token is one character wide."""
    for id, start, stop in pieces:
        yield (id, at, at + 1) if quoted else (id, at + start, at + stop)


@dataclass(frozen=True, slots=True)
class _Chat:
    """What the template sees. `quoted`: private-use character → the control token it stands for; `marks`: characters
    that appear nowhere in the chat, one per text and a last one that closes each."""

    messages: Texts
    documents: Texts
    quoted: dict[str, str]
    marks: list[str]

    @classmethod
    def of(cls, messages: tuple[Message, ...], documents: tuple[Document, ...], quoting: re.Pattern[str]) -> _Chat:
        texts = (*map(_message_texts, messages), *map(_document_texts, documents))
        _check(messages, texts)
        used = {
            character for item in texts for text in item.values() for character in text if character >= "\U000f0000"
        }
        free = (chr(code) for codes in _PRIVATE_USE for code in codes if chr(code) not in used)
        tokens = {match for item in texts for text in item.values() for match in quoting.findall(text)}
        character_of = {token: next(free) for token in sorted(tokens)}
        if tokens:
            texts = tuple(
                {key: quoting.sub(lambda match: character_of[match[0]], text) for key, text in item.items()}
                for item in texts
            )
        marks = [mark for mark, _ in zip(free, range(len(texts) + 1), strict=False)]
        quoted = {character: token for token, character in character_of.items()}
        return cls(texts[: len(messages)], texts[len(messages) :], quoted, marks)

    def marked(self) -> tuple[Texts, Texts]:
        """The same chat with every text between its mark and the closing one, surrounding spaces left outside."""
        close = self.marks[-1]
        texts = tuple(
            {
                key: _enclose(text, mark, close) if key in ("content", "text", "title") else text
                for key, text in item.items()
            }
            for item, mark in zip((*self.messages, *self.documents), self.marks, strict=False)
        )
        return texts[: len(self.messages)], texts[len(self.messages) :]

    def spans(self, marked: str, text: str) -> list[Span]:
        """Where each text stands in the rendered `text`. A template that looks into texts (`startswith`, `split`) may
        render marked ones differently: then the texts are looked for in their order instead."""
        close, owner_of = self.marks[-1], {mark: owner for owner, mark in enumerate(self.marks[:-1])}
        spans, plain, at, opened = [], [], 0, None
        for part in re.split("([" + "".join(self.marks) + "])", marked):
            if part == close:
                if opened is not None:
                    spans.append(Span(opened[0], at, opened[1]))
                opened = None
            elif part in owner_of:
                opened = (at, owner_of[part])
            else:
                plain.append(part)
                at += len(part)
        return spans if "".join(plain) == text else self._search(text)

    def _search(self, text: str) -> list[Span]:
        spans, at = [], 0
        for owner, item in enumerate((*self.documents, *self.messages)):
            content = item.get("content", item.get("text", "")).strip()
            start = text.find(content, at)
            if content and start >= 0:
                at = start + len(content)
                index = owner - len(self.documents) if owner >= len(self.documents) else owner + len(self.messages)
                spans.append(Span(start, at, index))
        return spans


def _message_texts(message: Message) -> dict[str, str]:
    texts = {"role": message.role, "content": message.content, "name": message.name}
    return {key: text for key, text in texts.items() if text is not None}


def _document_texts(document: Document) -> dict[str, str]:
    texts = {"title": document.title, "text": document.text, "id": document.id}
    return {key: text for key, text in texts.items() if text is not None}


def _check(messages: Sequence[Message], texts: Sequence[Mapping[str, str]]) -> None:
    if not messages:
        raise InvalidRequest("`messages` is empty; send at least one.", param="messages")
    for index, message in enumerate(messages):
        if not _ROLE.fullmatch(message.role):
            raise InvalidRequest(f"messages[{index}].role must be a word such as `user`.", param="messages")
    for index, item in enumerate(texts):
        where = f"messages[{index}]" if index < len(messages) else f"documents[{index - len(messages)}]"
        for key, text in item.items():
            require_text(text, f"{where}.{key}")


def _enclose(text: str, mark: str, close: str) -> str:
    core = text.strip()
    if not core:
        return text
    start = text.index(core)
    return f"{text[:start]}{mark}{core}{close}{text[start + len(core) :]}"


def _attribute(
    pieces: list[Piece], spans: list[Span], messages: int, documents: int, control: frozenset[int]
) -> EncodedChat:
    """A token belongs to the text that holds its middle character; control tokens to the template."""
    counts: list[int | None] = [None] * (messages + documents)
    spans = sorted(spans, key=lambda span: span.start)
    starts = [span.start for span in spans]
    for span in spans:
        counts[span.owner] = 0
    template = 0
    for id, start, stop in pieces:
        middle = max(start, (start + stop - 1) // 2)
        index = bisect_right(starts, middle) - 1
        if id not in control and stop > start and index >= 0 and middle < spans[index].stop:
            counts[spans[index].owner] = (counts[spans[index].owner] or 0) + 1
        else:
            template += 1
    ids = tuple(id for id, _, _ in pieces)
    return EncodedChat(ids, tuple(counts[:messages]), tuple(counts[messages:]), template)
