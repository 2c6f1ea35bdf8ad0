"""A marked chat has private-use characters in its texts, which show where each part of a rendered text came from.

    quoted   a control token in the caller's text → one character, so that the template and the tokenizer see none
    marked   each text between an opening and a closing character of its own
    open     the last message with one more character behind it, at which the rendered text is cut

The characters are of planes 15 and 16, and the chat does not use them itself. A marked chat knows no template and no
tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice, takewhile
from typing import cast

from service.errors import InvalidRequest
from service.text.arguments import JsonObject, MarkedObject, Value, enclosed, mapped, parsed, strings
from service.text.messages import Document, Message, Tool, ToolCall
from service.text.vocabulary import require_text

_ROLE = re.compile(r"[A-Za-z][A-Za-z_-]{0,31}")
_PRIVATE_USE = re.compile("([\U000f0000-\U000ffffd\U00100000-\U0010fffd])")
_CODES = (*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))
_MARKED_KEYS = ("content", "text", "title")
MAX_TEXTS = 32_768
MAX_QUOTED = 8_192
"""Each quoted token is encoded by itself; more of them would cost seconds."""
Item = dict[str, Value]
Items = tuple[Item, ...]
"""Items for a template. A message's `tool_calls` are JSON values; all other values are texts."""


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [start, stop) of the rendered text come from text `owner`: messages first, then documents, then tool
    calls."""

    start: int
    stop: int
    owner: int


@dataclass(frozen=True)
class MarkedChat:
    """A chat for the template: its `messages` and `documents`. `quoted` maps a character to its control token. With
    `is_open` the answer goes on from the last message."""

    messages: Items
    documents: Items
    quoted: dict[str, str]
    tools: Items = ()
    is_open: bool = False

    @classmethod
    def of(
        cls,
        messages: tuple[Message, ...],
        documents: tuple[Document, ...],
        quoting: re.Pattern[str],
        tools: tuple[Tool, ...] = (),
        is_open: bool = False,
    ) -> MarkedChat:
        """Makes a marked chat. `quoting` matches the control tokens. Raises InvalidRequest for an empty or malformed
        chat."""
        items = (*map(_message_item, messages), *map(_document_item, documents), *map(_tool_item, tools))
        calls = sum(len(message.tool_calls) for message in messages)
        texts = list(_texts(items))
        _check(messages, items, texts, calls)
        quotes = [match for text in texts for match in quoting.findall(text)]
        if len(quotes) > MAX_QUOTED:
            raise InvalidRequest(
                f"The chat holds over {MAX_QUOTED} control tokens as text; send fewer.", param="messages"
            )
        character_of: dict[str, str] = {}
        if quotes:
            tokens = sorted(set(quotes))
            character_of = dict(zip(tokens, _unused(texts, len(tokens)), strict=True))

            def quote(text: str) -> str:
                return quoting.sub(lambda match: character_of[match[0]], text)

            items = tuple({key: mapped(value, quote) for key, value in item.items()} for item in items)
        quoted = {character: token for token, character in character_of.items()}
        texts_end = len(messages) + len(documents)
        return cls(items[: len(messages)], items[len(messages) : texts_end], quoted, items[texts_end:], is_open)

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """`marks[2i]` opens text i, `marks[2i + 1]` closes it; the last one ends an open message."""
        items = (*self.messages, *self.documents)
        return tuple(_unused(_texts((*items, *self.tools)), 2 * (len(items) + len(self.calls)) + 1))

    @property
    def calls(self) -> list[tuple[int, str]]:
        """The message and the function of each tool call."""
        return [(at, _name(call)) for at, message in enumerate(self.messages) for call in _calls(message)]

    def marked(self) -> tuple[Items, Items]:
        """Returns the same chat with marks around every content, text, title and tool call. Outer spaces stay outside
        the marks, for templates that strip."""
        items = [
            {key: self._enclose(str(text), owner) if key in _MARKED_KEYS else text for key, text in item.items()}
            for owner, item in enumerate((*self.messages, *self.documents))
        ]
        owners = count(len(items))
        for item, message in zip(items, self.messages, strict=False):
            if calls := _calls(message):
                item["tool_calls"] = [self._marked_call(call, next(owners)) for call in calls]
        return tuple(items[: len(self.messages)]), tuple(items[len(self.messages) :])

    def ending(self, messages: Items) -> Items:
        """Returns the messages with the mark of an open message behind the last one's content. A blank behind the mark
        shows whether the template trims, as transformers' `continue_final_message` does it."""
        *before, last = messages
        return (*before, {**last, "content": f"{last['content']}{self.marks[-1]} "})

    def opened(self, text: str) -> str:
        """Returns the rendered text up to the end of the open message. Raises InvalidRequest where the template does
        not write that message as it is."""
        before, mark, behind = text.rpartition(self.marks[-1])
        content = str(self.messages[-1]["content"])
        if not mark or content.strip() not in before:
            raise InvalidRequest(
                "This version's chat template does not write the last message as it is, so that no answer can go on "
                "from it: send the user's message last.",
                param="messages",
            )
        trimmed = 0 if behind.startswith(" ") else len(content) - len(content.rstrip())
        return before[: len(before) - trimmed]

    def _marked_call(self, call: Item, owner: int) -> Item:
        marks = self.marks[2 * owner], self.marks[2 * owner + 1]
        function = cast(Item, call["function"])
        marked = {key: enclosed(value, *marks) for key, value in function.items()}
        return MarkedObject({**call, "function": MarkedObject(marked, function, *marks)}, call, *marks)

    def _enclose(self, text: str, owner: int) -> str:
        core = text.strip()
        if not core:
            return text
        start = text.index(core)
        return f"{text[:start]}{self.marks[2 * owner]}{core}{self.marks[2 * owner + 1]}{text[start + len(core) :]}"

    def spans(self, marked: str, text: str) -> list[Span]:
        """Returns the places of the texts in the rendered `text`; a text that the template leaves out has none. A
        template that looks into texts may write marked ones differently; `marked` is "" if it refuses them. Then the
        texts are searched in their order instead."""
        if not marked:
            return self._search(text)
        number = {mark: index for index, mark in enumerate(self.marks)}
        spans: list[Span] = []
        plain: list[str] = []
        at, opened = 0, dict[int, int]()
        for part in _PRIVATE_USE.split(marked):
            mark = number.get(part)
            if mark is None:
                plain.append(part)
                at += len(part)
            elif mark % 2 == 0:
                opened[mark // 2] = at
            elif mark // 2 in opened:
                spans.append(Span(opened.pop(mark // 2), at, mark // 2))
            else:
                spans.append(self._ending(text, at, mark // 2))
        if "".join(plain) != text:
            return self._search(text)
        return [*spans, *(self._beginning(text, at, owner) for owner, at in opened.items())]

    def _main(self, owner: int) -> str:
        items = (*self.messages, *self.documents)
        if owner >= len(items):
            return self.calls[owner - len(items)][1]
        return str(items[owner].get("content", items[owner].get("text", ""))).strip()

    def _ending(self, text: str, at: int, owner: int) -> Span:
        """Returns the span of a text of which the template kept the end (`content.split('</think>')[-1]`). Spaces
        between belong to the template."""
        length = _common(reversed(text[:at]), reversed(self._main(owner)))
        return Span(at - len(text[at - length : at].lstrip()), at, owner)

    def _beginning(self, text: str, at: int, owner: int) -> Span:
        length = _common(text[at:], self._main(owner))
        return Span(at, at + len(text[at : at + length].rstrip()), owner)

    def _search(self, text: str) -> list[Span]:
        first, calls = len(self.messages), len(self.messages) + len(self.documents)
        spans, at = [], 0
        for owner in (*range(first, calls), *range(first), *range(calls, calls + len(self.calls))):
            main = self._main(owner)
            at = 0 if owner == calls else at
            start = text.find(main, at)
            if main and start >= 0:
                at = start + len(main)
                spans.append(Span(start, at, owner))
        return spans


def _common(first: Iterable[str], second: Iterable[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _unused(texts: Iterable[str], count: int) -> list[str]:
    used = {character for text in texts if not text.isascii() for character in _PRIVATE_USE.findall(text)}
    free = list(islice((character for character in map(chr, _CODES) if character not in used), count))
    if len(free) < count:
        raise InvalidRequest("The chat uses nearly all private-use characters of Unicode; send text.", param="messages")
    return free


def _message_item(message: Message) -> Item:
    item: Item = {"role": message.role, "content": message.content}
    if message.name is not None:
        item["name"] = message.name
    if message.tool_call_id is not None:
        item["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        item["tool_calls"] = [_call_item(call) for call in message.tool_calls]
    return item


def _call_item(call: ToolCall) -> Item:
    """Returns a call as transformers' templates take it: the arguments are an object; a template that wants their text
    gets that."""
    function = {"name": call.name, "arguments": JsonObject(parsed(call.arguments))}
    return {"id": call.id, "type": "function", "function": function}


def _tool_item(tool: Tool) -> Item:
    """Returns a tool as transformers' templates take it. Without parameters it has none at all."""
    nothing = {"type": "object", "properties": dict[str, Value]()}
    parameters = nothing if tool.parameters is None else parsed(tool.parameters)
    described = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": parameters}}


def _calls(message: Item) -> list[Item]:
    return cast("list[Item]", message.get("tool_calls", []))


def _name(call: Item) -> str:
    return str(cast(Item, call["function"])["name"])


def _document_item(document: Document) -> Item:
    texts = {"title": document.title, "text": document.text, "id": document.id}
    return {key: text for key, text in texts.items() if text is not None}


def _texts(items: Items) -> Iterator[str]:
    for item in items:
        for value in item.values():
            if isinstance(value, str):
                yield value
            else:
                yield from strings(value)


def _check(messages: Sequence[Message], items: Items, texts: Sequence[str], calls: int) -> None:
    if not messages:
        raise InvalidRequest("`messages` is empty; send at least one.", param="messages")
    if len(items) + calls > MAX_TEXTS:
        raise InvalidRequest(f"More than {MAX_TEXTS} messages, calls and documents; send fewer.", param="messages")
    wrong = {role for role in {message.role for message in messages} if not _ROLE.fullmatch(role)}
    if wrong:
        index = next(index for index, message in enumerate(messages) if message.role in wrong)
        raise InvalidRequest(f"messages[{index}].role must be a word such as `user`.", param="messages")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        _refuse_surrogates(messages, items)


def _place(item: Item, index: int) -> str:
    return "tools" if item.get("type") == "function" else f"documents[{index}]"


def _refuse_surrogates(messages: Sequence[Message], items: Items) -> None:
    for index, item in enumerate(items):
        where = f"messages[{index}]" if index < len(messages) else _place(item, index - len(messages))
        for key, value in item.items():
            for text in strings(value):
                require_text(text, f"{where}.{key}")
