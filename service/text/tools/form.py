"""A form is how a model writes calls: what is read, and what a grammar makes a model write."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from service.text.arguments import parsed, whole
from service.text.messages import Message, ToolCall
from service.text.tools.ids import NUMBERED, numbered
from service.text.tools.writing import NAME, Writing

_OBJECT: Final = '{"name": "$", "arguments": '


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`told_by`: texts of a template, each of which tells the form; ` & ` joins texts that tell it together. `opening`
    begins a call, or a list of calls with `is_list`; "" where a call is the whole answer. `closing` ends it. `around`
    are marks around all calls of an answer; with `writes_around` they are always written. `blank` is what the template
    writes inside of the marks, of those around where they are written; `separator` is what stands between two calls.
    `head` and `tail` are written around the arguments, with NAME for the function. `name_of` finds the name before
    named arguments. `inner` are the marks inside of a call. `ids`: the form of the ids that the template takes."""

    name: str
    told_by: tuple[str, ...] = ()
    opening: str = ""
    closing: str = ""
    around: tuple[str, str] = ("", "")
    blank: str = ""
    separator: str = "\n"
    is_list: bool = False
    head: str = _OBJECT
    tail: str = "}"
    name_of: re.Pattern[str] | None = None
    inner: tuple[str, ...] = ()
    writing: Writing | None = None
    has_channels: bool = False
    writes_around: bool = False
    ids: str = ""

    @property
    def first_mark(self) -> str:
        return self.around[0] if self.writes_around else self.opening

    @property
    def marks(self) -> tuple[str, ...]:
        """Every text that may be a control token."""
        return tuple(filter(None, (*self.around, self.opening, self.closing, *self.inner)))

    def is_told(self, template: str) -> bool:
        return any(all(part in template for part in each.split(" & ")) for each in self.told_by)

    def written(self, name: str) -> str:
        """Returns the text of a call up to its arguments, without the opening."""
        return self.head.replace(NAME, name)

    @property
    def enclosing(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """What is written around all calls, and around each."""
        if self.is_list:
            return (f"{self.opening}[", f"]{self.closing}"), ("", "")
        if self.writes_around:
            return (f"{self.around[0]}{self.blank}", f"{self.blank}{self.around[1]}"), (self.opening, self.closing)
        return ("", ""), (f"{self.opening}{self.blank}", f"{self.blank}{self.closing}")

    def as_text(self, message: Message) -> Message:
        """Returns the message with its calls as the model writes them, for a template that leaves calls out."""
        if not message.tool_calls:
            return message
        (first, last), (before, behind) = self.enclosing
        calls = self.separator.join(f"{before}{self._call(call)}{behind}" for call in message.tool_calls)
        between = "\n" if message.content and not self.first_mark else ""
        return Message(message.role, f"{message.content}{between}{first}{calls}{last}", message.name)

    def _call(self, call: ToolCall) -> str:
        arguments = call.arguments or "{}"
        if self.writing is not None:
            arguments = self.writing.arguments(parsed(whole(arguments)))
        head = self.written(call.name)
        if self.ids == NUMBERED and call.id:
            head = head.replace(numbered(call.name, 0), call.id)
        return f"{head}{arguments}{self.tail}"
