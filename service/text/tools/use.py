"""The use of tools that a request asks for, and the grammar that forces calls.

auto       the model decides
           with a strict tool a call that it begins keeps the form and the tool's schema
required   at least one call        a name: one call of that function
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from service.errors import InvalidRequest, UnsupportedField
from service.text.grammars import Grammar
from service.text.grammars.grammar import ANY, json_rule, literal, text_rule
from service.text.grammars.json_values import Extent
from service.text.messages import Tool
from service.text.tools.formats import FINAL, ToolFormat


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
        texts. Raises UnsupportedField for a form that is read only, and for parameters that no grammar can keep."""
        _require_written(form, "tool_choice" if self.is_forced else "tools")
        more = self.is_parallel and not self.is_named
        return self._with_calls(f"start: {_section(form, marks, more)}", form, marks)

    def free_grammar(self, form: ToolFormat, marks: dict[str, int]) -> Grammar:
        """Returns the grammar of all answers whose calls keep their form, and those of strict tools their schemas.
        Where a call has no mark, an answer that begins with a brace is a call. Raises as `grammar`."""
        _require_written(form, "tools")
        section, first = _section(form, marks, self.is_parallel), form.first_mark
        if form.has_channels:
            start = f"start: {section} | {text_rule(FINAL, marks)} TEXT?\nTEXT: /{ANY}+/"
        elif not form.opening:
            tag = "|".join(map(re.escape, filter(None, ("{", form.around[0]))))
            start = rf"start: {section} | TEXT?" + "\n" + rf"TEXT: /{ANY}+/ & ~/\s*({tag}){ANY}*/"
        elif first in marks:
            start = f"start: (TEXT? {section}){'*' if self._repeats(form) else '?'} TEXT?\nTEXT: /{ANY}+/"
        else:
            rest = section.removeprefix(text_rule(first, marks))
            start = f"start: (begun {rest}){'*' if self._repeats(form) else '?'} TEXT?\n"
            start += f"TEXT: /{ANY}+/ & ~/{ANY}*{re.escape(first)}{ANY}*/\n"
            start += f"begun[suffix={literal(first)}]: /{ANY}*/"
        return self._with_calls(start, form, marks)

    def _repeats(self, form: ToolFormat) -> bool:
        return self.is_parallel and not form.is_list and not form.writes_around

    def _with_calls(self, start: str, form: ToolFormat, marks: dict[str, int]) -> Grammar:
        chosen = [(at, tool) for at, tool in enumerate(self.tools) if not self.is_named or tool.name == self.choice]
        extent = Extent()
        calls = "\n".join(_call(form, marks, at, tool, self.is_forced or tool.strict, extent) for at, tool in chosen)
        call = f"call: {' | '.join(f'call_{at}' for at, _ in chosen)}\n{calls}"
        return Grammar(f"{start}\n{call}", "tools", tuple(marks.values()))


def _require_written(form: ToolFormat, field: str) -> None:
    if not form.head:
        raise UnsupportedField(
            f"`{field}` cannot force or bind calls here: this version writes them in the form {form.name}, which no "
            "grammar keeps yet; use tool_choice auto, without strict and without another grammar",
            param=field,
        )


def _section(form: ToolFormat, marks: dict[str, int], more: bool) -> str:
    """Returns the rule of the calls of an answer, with their marks."""
    opening, closing = text_rule(form.opening, marks), text_rule(form.closing, marks)
    separator = f"{text_rule(form.separator, marks)} " if form.separator else ""
    if form.is_list:
        calls = f'{opening} "[" call {f"({separator}call)*" if more else ""} "]" {closing}'
    else:
        blank = text_rule(form.blank, marks)
        whole = f"{opening} {blank} call {blank} {closing}"
        calls = f"{whole} ({separator}{whole})*" if more else whole
    first, last = form.around if form.writes_around else ("", "")
    return f"{text_rule(first, marks)} {calls} {text_rule(last, marks)}".strip()


def _call(form: ToolFormat, marks: dict[str, int], at: int, tool: Tool, keeps_schema: bool, extent: Extent) -> str:
    head, tail = text_rule(form.written(tool.name), marks), text_rule(form.tail, marks)
    schema: dict[str, Any] = {"type": "object"}
    if keeps_schema and tool.parameters is None:
        schema |= {"properties": {}, "additionalProperties": False}
    elif keeps_schema and tool.parameters is not None:
        schema = json.loads(tool.parameters)
    try:
        arguments = json_rule(schema, f"tools[{at}].function.parameters", extent)
    except InvalidRequest as error:
        error.fields = (".function.parameters",)
        raise
    return f"call_{at}: {head} arguments_{at} {tail}\narguments_{at}: {arguments}"
