"""A call reader takes the text of one answer as it grows, and tells its calls from its content.

    text      It rains. <tool_call>\\n{"name": "umbrella", "arguments": {"size": 2}}\\n</tool_call>
    pieces    Content("It rains.")   CallBegun("umbrella")   CallText('{"size": '), CallText("2}")

The name goes out when it is whole, JSON arguments as they come, others when they are whole. What only looks like a call
is content in the end: nothing that the model wrote is lost, but the marks and blanks around calls. Arguments that an
answer's end cuts are told as far as they came.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

from service.errors import InvalidRequest
from service.text.arguments import parsed
from service.text.tools.bodies import gemma_calls, python_calls, written
from service.text.tools.form import ToolFormat
from service.text.tools.kinds import Kinds
from service.text.tools.pieces import CallBegun, CallText, Content, Piece
from service.text.tools.scanning import ObjectScan
from service.text.tools.source import BLANKS, Source, Waiting
from service.text.tools.tagged import tagged_call
from service.text.tools.writing import Style, Writing

_NAMES: Final = ("name", "tool_name", "function")
_ARGUMENTS: Final = ("arguments", "parameters")
_LONGEST_HEAD: Final = 512
"""Characters between a mark and named arguments."""
_FENCE: Final = "```"
_FENCED: Final = "```json"


class CallReader:
    """Reads one answer. The pieces of all `push` calls and of `finish` are the answer."""

    def __init__(self, form: ToolFormat, schemas: Mapping[str, Any]) -> None:
        """`schemas` has the parameters of the functions that can be called: a call of any other is content."""
        self.form = form
        self.source = Source()
        self._schemas = schemas
        self._kinds = {name: Kinds(schema) for name, schema in schemas.items()}
        self._calls = 0
        self._blanks = ""  # behind the last call
        self._pieces: list[Piece] = []
        self._steps = self._read()
        self._is_done = False
        self._advance()

    def push(self, text: str) -> list[Piece]:
        """Returns what is certain now."""
        self.source.add(text)
        return self._advance()

    def finish(self, is_cut: bool = False) -> list[Piece]:
        """Returns the rest. A call whose arguments have not begun is content. `is_cut`: a limit has cut the answer, and
        what only begins a mark is nothing."""
        self.source.is_ended, self.source.is_cut = True, is_cut
        return self._advance()

    def _advance(self) -> list[Piece]:
        if not self._is_done:
            self._is_done = next(self._steps, True) is True
        pieces, self._pieces = self._pieces, []
        return pieces

    def _read(self) -> Generator[None, None, None]:
        if not self.form.opening:
            yield from self._calls_alone()
        while (yield from self._content()):
            yield from self._calls_marked()

    def give(self, text: str) -> None:
        """Content goes out."""
        if text:
            self._pieces.append(Content(text))

    def begin(self, name: str, arguments: str = "") -> None:
        """A call begins, with the first of its arguments."""
        self._pieces.append(CallBegun(self._calls, name))
        self._calls += 1
        self.add(arguments)

    def add(self, arguments: str) -> None:
        """More of the last call's arguments."""
        if arguments:
            self._pieces.append(CallText(self._calls - 1, arguments))

    def _content(self) -> Waiting:
        """Content up to a mark of calls, which is left. Blanks before it are its own. Returns False at the end."""
        source, form, blanks = self.source, self.form, [self._blanks]
        self._blanks = ""
        marks = tuple(filter(None, (form.opening, form.around[0]))) if form.opening else ()
        while True:
            at, mark = source.first_of(marks)
            is_left = source.is_cut and len(source.held) - at > 1  # content may well end with "<"
            text = source.take(at if mark or is_left or not source.is_ended else None)
            inner = text.rstrip(BLANKS)
            if inner:
                self.give("".join(blanks) + inner)
                blanks = []
            blanks.append(text[len(inner) :])
            if mark:
                source.record("".join(blanks))
                return True
            if source.is_ended:
                self.give("" if self._calls else "".join(blanks))
                return False
            yield

    def _calls_alone(self) -> Generator[None, None, None]:
        """Calls that are an answer from its beginning; else it is content as a whole."""
        source = self.source
        source.record()
        yield from source.blanks()
        yield from source.skip(self.form.around[0])
        yield from source.blanks()
        yield from self._calls_here()

    def _calls_marked(self) -> Generator[None, None, None]:
        source, form = self.source, self.form
        if (yield from source.skip(form.around[0])):
            yield from source.blanks()
        if (yield from source.skip(form.opening)) or form.writing is None:
            yield from self._calls_here()
        else:
            self.give(source.recorded)

    def _calls_here(self) -> Generator[None, None, None]:
        """Calls behind their mark, and what ends them. What is none goes out as content."""
        source, form, before, fence = self.source, self.form, self._calls, _FENCE if "`" in self.form.tail else ""
        if form.writing is not None and (form.opening or (yield from source.peek()) == "["):
            yield from self._written(form.writing)
        else:
            yield from source.blanks()
            if (yield from source.skip(_FENCED)):
                fence = _FENCE
                yield from source.blanks()
            has_list = yield from source.skip("[")
            yield from source.blanks()
            if (yield from source.peek()) == "{":
                yield from self._objects()
            elif form.name_of is not None and not has_list:
                yield from self._named()
        if self._calls == before:
            self.give(source.recorded)
        else:
            yield from self._behind(fence)

    def _behind(self, fence: str) -> Generator[None, None, None]:
        """Marks and blanks behind a call, and braces too many."""
        source, form = self.source, self.form
        yield from source.blanks("" if form.writing else "]};,")
        for mark in (fence, "" if form.writing else form.closing):
            yield from source.skip(mark)
            source.record()
            yield from source.blanks()
        self._blanks = "" if (yield from source.skip(form.around[1])) else source.recorded

    def _objects(self) -> Generator[None, None, None]:
        """Objects with a name and arguments, one behind the other."""
        first = self._calls
        while (yield from self.source.peek()) == "{":
            before = self._calls
            yield from self._object()
            if self._calls == before:
                if before > first:
                    self.give(self.source.recorded)
                return
            self.source.record()
            yield from self.source.blanks("};,")

    def _object(self) -> Generator[None, None, None]:
        """One object. Its arguments go out as they come where its name stands before them."""
        source, texts, has_begun = self.source, dict[str, str](), False
        source.take(1)
        while True:
            yield from source.blanks(",")
            if (yield from source.peek()) != '"':
                break
            key = _text((yield from source.string()))
            yield from source.blanks(":")
            is_next = key in _ARGUMENTS and not has_begun and _first(texts, _NAMES) in self._schemas
            if is_next and (yield from source.peek()) == "{":
                has_begun = True
                self.begin(_first(texts, _NAMES))
                yield from self.arguments()
            else:
                texts[key] = yield from source.value()
        if (yield from source.skip("}")) and not has_begun:
            self._unordered(texts)

    def _unordered(self, texts: Mapping[str, str]) -> None:
        """A whole object whose arguments could not go out as they came."""
        if texts.get("function", "").startswith("{"):  # {"type": "function", "function": {"name": …
            texts = {key: written(value) or "" for key, value in _object(texts["function"]).items()}
        name, arguments = _first(texts, _NAMES), _first(texts, _ARGUMENTS)
        if name in self._schemas and arguments.startswith("{"):
            self.begin(name, arguments)

    def _named(self) -> Generator[None, None, None]:
        """A name, a mark, and arguments."""
        source, form, head = self.source, self.form, ""
        while "{" not in source.held and len(source.held) < _LONGEST_HEAD and not source.is_ended:
            yield
        head = source.held.partition("{")[0]
        found = form.name_of.fullmatch(head) if form.name_of and "{" in source.held else None
        if found is None or found[1] not in self._schemas:
            return
        source.take(len(head))
        self.begin(found[1])
        yield from self.arguments()

    def _written(self, writing: Writing) -> Generator[None, None, None]:
        """Calls whose arguments are no JSON object, read as a whole."""
        closing = self.form.closing
        if writing.style is Style.TAGS:
            read = yield from tagged_call(self.source, self.form, self._schemas, self._kinds)
        elif writing.style is Style.PYTHON and (yield from self.source.peek()) == "[":
            read = python_calls((yield from self.source.value("\"'")))
            yield from self.source.blanks()
            read = read if not closing or (yield from self.source.skip(closing)) else []
        else:
            body = yield from self.source.until(closing)
            read = (gemma_calls if writing.style is Style.GEMMA else python_calls)(body or "")
        calls = [(name, written(arguments)) for name, arguments in read]
        if all(name in self._schemas and arguments for name, arguments in calls):
            for name, arguments in calls:
                self.begin(name, arguments or "")

    def arguments(self) -> Generator[None, None, None]:
        """A JSON object's text as it comes, up to its end."""
        yield from self.source.scanned(ObjectScan(), self.add)


def _text(value: str) -> str:
    """Returns the text of a JSON string; another value, or a text that UTF-8 does not have, as it stands."""
    if not value.startswith('"'):
        return value
    try:
        text = str(json.loads(value, strict=False))
        text.encode()
    except ValueError:
        return value
    return text


def _first(texts: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((_text(texts[key]) for key in keys if key in texts), "")


def _object(text: str) -> dict[str, Any]:
    try:
        return parsed(text)
    except InvalidRequest:
        return {}
