"""The use of tools that a request asks for, and the grammar that forces calls.

auto       the model decides
           with a strict tool a call that it begins keeps the form and the tool's schema
required   at least one call        a name: one call of that function
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from service.errors import InvalidRequest
from service.text.grammars import Grammar
from service.text.grammars.grammar import ANY, exactly, json_rule, literal, text_rule
from service.text.grammars.json_values import Extent
from service.text.messages import Tool
from service.text.tools.form import ToolFormat
from service.text.tools.formats import FINAL
from service.text.tools.rules import ArgumentRules


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`choice` is "auto", "required" or, with `is_named`, the name of a function."""

    tools: tuple[Tool, ...]
    choice: str = "auto"
    is_named: bool = False
    is_parallel: bool = True

    @property
    def is_forced(self) -> bool:
        return self.is_named or self.choice == "required"

    @property
    def schemas(self) -> dict[str, Any]:
        """The parameters of each function, by its name."""
        return {tool.name: json.loads(tool.parameters or "{}") for tool in self.tools}

    @property
    def is_strict(self) -> bool:
        """Whether a call that the model begins by itself must keep its tool's schema."""
        return not self.is_forced and any(tool.strict for tool in self.tools)

    def grammar(self, form: ToolFormat, marks: dict[str, int]) -> Grammar:
        """Returns the grammar of answers that are calls. `marks` has the ids of control tokens among the format's
        texts. Raises UnsupportedField for parameters that no grammar of this form can keep."""
        more = self.is_parallel and not self.is_named
        return self._with_calls(f"start: {_section(form, marks, more)}", form, marks)

    def free_grammar(self, form: ToolFormat, marks: dict[str, int]) -> Grammar:
        """Returns the grammar of all answers whose calls keep their form, and those of strict tools their schemas.
        Where a call has no mark, an answer that begins with a brace is a call. Raises as `grammar`."""
        section, first = _section(form, marks, self.is_parallel), form.first_mark
        if form.has_channels:
            return self._with_calls(f"start: {section} | {text_rule(FINAL, marks)} TEXT?\nTEXT: /{ANY}+/", form, marks)
        if not form.opening:
            start = rf"start: {section} | TEXT?" + "\n" + rf"TEXT: /{ANY}+/ & ~/{_beginning(form)}{ANY}*/"
            return self._with_calls(start, form, marks)
        times = "*" if self.is_parallel and not form.is_list and not form.writes_around else "?"
        stops = sorted({first, form.opening, form.around[0]} - {""})
        free = f"TEXT: /{ANY}+/ & ~/{ANY}*({'|'.join(map(exactly, stops))}){ANY}*/"
        if first in marks:
            return self._with_calls(f"start: (TEXT? {section}){times} TEXT?\n{free}", form, marks)
        rest = _section(form, marks, self.is_parallel, is_begun=True)
        others = "".join(f" & ~/{ANY}*{exactly(stop)}{ANY}*/" for stop in stops if stop != first)
        begun = f"begun[suffix={literal(first)}]: BEGUN\nBEGUN: /{ANY}*/{others}"
        return self._with_calls(f"start: (begun {rest}){times} TEXT?\n{free}\n{begun}", form, marks)

    def _with_calls(self, start: str, form: ToolFormat, marks: dict[str, int]) -> Grammar:
        chosen = [(at, tool) for at, tool in enumerate(self.tools) if not self.is_named or tool.name == self.choice]
        writes = _JsonArguments() if form.writing is None else ArgumentRules(form, marks)
        calls = [
            f"call_{at}: {text_rule(form.written(tool.name), marks)} arguments_{at} {text_rule(form.tail, marks)}\n"
            f"arguments_{at}: {self._arguments(writes, at, tool)}"
            for at, tool in chosen
        ]
        call = f"call: {' | '.join(f'call_{at}' for at, _ in chosen)}"
        return Grammar("\n".join((start, call, *calls, *writes.lines)), "tools", tuple(marks.values()))

    def _arguments(self, writes: _JsonArguments | ArgumentRules, at: int, tool: Tool) -> str:
        try:
            return writes.of(tool.name, self._schema(tool), f"tools[{at}].function")
        except InvalidRequest as error:
            error.fields = (".function.parameters",)
            raise

    def _schema(self, tool: Tool) -> Any:
        """Returns the schema that a call of the tool keeps."""
        if not (self.is_forced or tool.strict):
            return {"type": "object"}
        if tool.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return json.loads(tool.parameters)


class _JsonArguments:
    """The rules of arguments that are a JSON object."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._extent = Extent()

    def of(self, _function: str, schema: Any, place: str) -> str:
        return json_rule(schema, f"{place}.parameters", self._extent)


def _section(form: ToolFormat, marks: dict[str, int], more: bool, is_begun: bool = False) -> str:
    """Returns the rule of the calls of an answer, with their marks. `is_begun`: the first of them has been written."""
    (first, last), (before, behind) = form.enclosing
    begun = form.first_mark if is_begun else ""
    calls = [f"{before if first else before.removeprefix(begun)}", f"{form.separator}{before}"]
    one, another = (f"{text_rule(each, marks)} call {text_rule(behind, marks)}" for each in calls)
    calls_ = f"{one} ({another})*" if more else one
    return f"{text_rule(first.removeprefix(begun), marks)} {calls_} {text_rule(last, marks)}".strip()


def _beginning(form: ToolFormat) -> str:
    """Returns the pattern of what begins an answer that is read as calls alone."""
    mark = f"({exactly(form.around[0])})?" if form.around[0] else ""
    opening = r"[{\[]" if form.writing else r"(\[\s*)?\{"
    return rf"\s*{mark}\s*(```json)?\s*{opening}"
