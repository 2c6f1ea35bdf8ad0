"""A call reader takes the text of one answer as it grows, and tells its calls from its content.

    text      It rains. <tool_call>\\n{"name": "umbrella", "arguments": {"size": 2}}\\n</tool_call>
    pieces    Content("It rains.")   CallBegun("umbrella")   CallText('{"size": '), CallText("2}")

The name goes out when it is whole, the arguments as they come. What only looks like a call is content in the end:
nothing that the model wrote is lost, but the marks and blanks around calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from service.text.reasoning import possible
from service.text.tools.formats import PYTHON_TAG, ToolFormat

_HEAD: Final = re.compile(
    r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_BETWEEN: Final = re.compile(r"\s*[,;]?\s*")


@dataclass(frozen=True, slots=True)
class Content:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """Call number `index` of the answer."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallText:
    """More of the arguments of call number `index`, as the model writes them."""

    index: int
    text: str


Piece = Content | CallBegun | CallText


class ObjectEnd:
    """Finds where a JSON object ends in a text that grows, from its first brace. It checks braces and strings only."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def find(self, text: str) -> int | None:
        """Takes in more text. Returns the index behind the object's last brace; None if the object goes on."""
        for index, character in enumerate(text):
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif character == "\\":
                    self._is_escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return index + 1
        return None


class CallReader:
    """Reads one answer. The pieces of all `push` calls and of `finish` are the answer."""

    def __init__(self, form: ToolFormat, names: Collection[str]) -> None:
        """`names` are those of the functions that can be called: a call of any other is content."""
        self._form = form
        self._names = names
        self._held = ""
        self._read = self._content if form.opening else self._beginning
        self._mark = ""
        self._calls = 0
        self._end = ObjectEnd()
        self._seen = 0  # characters of `held` that `end` has taken in

    @property
    def calls(self) -> int:
        """The number of calls that have begun."""
        return self._calls

    def push(self, text: str) -> list[Piece]:
        """Returns what is certain now."""
        self._held += text
        return list(self._certain())

    def finish(self) -> list[Piece]:
        """Returns the rest. A call whose arguments have not begun is content."""
        pieces = list(self._certain())
        rest, self._held = self._held, ""
        if self._read == self._arguments or (self._read == self._behind and self._calls):
            return pieces
        rest = self._mark + rest if self._read == self._head else rest
        return [*pieces, Content(rest)] if rest and (rest.strip() or not self._calls) else pieces

    def _certain(self) -> Iterator[Piece]:
        while True:
            before, read = self._held, self._read
            yield from self._read()
            if self._held == before and self._read == read:
                return

    def _beginning(self) -> Iterator[Piece]:
        """An answer that is a call from its beginning, or content as a whole."""
        text = self._held.lstrip()
        if PYTHON_TAG.startswith(text[: len(PYTHON_TAG)]):
            if len(text) < len(PYTHON_TAG):
                return
            self._mark, self._held = PYTHON_TAG, text[len(PYTHON_TAG) :]
            self._begin_head()
        elif text[0] == "{":
            self._begin_head()
        else:
            self._read = self._rest
        yield from ()

    def _rest(self) -> Iterator[Piece]:
        text, self._held = self._held, ""
        if text:
            yield Content(text)

    def _content(self) -> Iterator[Piece]:
        """Content up to an opening. Blanks before a call are its own."""
        content, opening, behind = self._held.partition(self._form.opening)
        if opening:
            self._mark, self._held = content[len(content.rstrip()) :] + opening, behind
            if self._form.is_list:
                self._read = self._list
            else:
                self._begin_head()
            content = content.rstrip() if self._calls == 0 else content.strip()
        else:
            content = content[: len(content) - possible(content, self._form.opening)]
            self._held = self._held[len(content) :]
        if content:
            yield Content(content)

    def _list(self) -> Iterator[Piece]:
        text = self._held.lstrip()
        if text[:1] == "[":
            self._mark, self._held = self._mark + "[", text[1:]
            self._begin_head()
        elif text:
            yield from self._no_call()

    def _begin_head(self) -> None:
        self._read, self._end, self._seen = self._head, ObjectEnd(), 0

    def _head(self) -> Iterator[Piece]:
        """A call up to its arguments."""
        found = _HEAD.match(self._held)
        if found:
            name = json.loads(found[1], strict=False)
            if name in self._names:
                self._held, self._read, self._end = self._held[found.end() :], self._arguments, ObjectEnd()
                yield CallBegun(self._calls, name)
                self._calls += 1
                return
            yield from self._no_call()
        elif self._held.strip() and not self._held.lstrip().startswith("{"):
            yield from self._no_call()
        else:
            start, self._seen = self._seen, len(self._held)
            end = self._end.find(self._held[start:])
            if end is not None:
                yield from self._whole(start + end)

    def _whole(self, end: int) -> Iterator[Piece]:
        """A call whose parts stand in another order."""
        call = _call(self._held[:end])
        if call is None or call[0] not in self._names:
            yield from self._no_call()
            return
        yield CallBegun(self._calls, call[0])
        yield CallText(self._calls, call[1])
        self._calls += 1
        self._held, self._read = self._held[end:], self._behind

    def _arguments(self) -> Iterator[Piece]:
        end = self._end.find(self._held)
        text = self._held if end is None else self._held[:end]
        self._held = self._held[len(text) :]
        if end is not None:
            self._read = self._closing
        if text:
            yield CallText(self._calls - 1, text)

    def _closing(self) -> Iterator[Piece]:
        """The brace behind the arguments."""
        text = self._held.lstrip()
        if text[:1] == "}":
            self._held, self._read = text[1:], self._behind
        elif text:
            self._held, self._read = text, self._behind
        yield from ()

    def _behind(self) -> Iterator[Piece]:
        """What stands behind a call: its closing, another call, or content."""
        form, text = self._form, self._held[_BETWEEN.match(self._held).end() :]  # type: ignore[union-attr]
        if not text:
            return
        if form.is_list:
            self._mark, self._held, self._read = "", text.removeprefix("]"), self._content
            if text[0] == "{":
                self._begin_head()
        elif form.closing and form.closing.startswith(text[: len(form.closing)]):
            if len(text) >= len(form.closing):
                self._held, self._read = text[len(form.closing) :], self._content
        elif form.opening:
            self._read = self._content
        else:
            self._mark, self._held, self._read = "", text, self._rest
            if text[0] == "{":
                self._begin_head()
        yield from ()

    def _no_call(self) -> Iterator[Piece]:
        """Gives the mark back as content."""
        yield Content(self._mark)
        self._mark, self._read = "", self._content if self._form.opening else self._rest


def _call(text: str) -> tuple[str, str] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(value.get("name"), str) or not isinstance(arguments, dict):
        return None
    return value["name"], json.dumps(arguments, ensure_ascii=False)
