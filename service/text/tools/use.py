"""The use of tools that a request asks for, and the grammar that forces calls.

auto       the model decides
           with a strict tool a call that it begins keeps the form and the tool's schema
required   at least one call        a name: one call of that function
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from service.text.grammars import Grammar
from service.text.grammars.grammar import ANY, json_rule, token
from service.text.grammars.json_values import Extent
from service.text.messages import Tool
from service.text.tools.formats import PYTHON_TAG, ToolFormat

_PYTHON_TAG: Final = re.escape(PYTHON_TAG)


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
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)

    @property
    def is_strict(self) -> bool:
        """Whether a call that the model begins by itself must keep its tool's schema."""
        return not self.is_forced and any(tool.strict for tool in self.tools)

    def grammar(self, form: ToolFormat, marks: dict[str, int]) -> Grammar:
        """Returns the grammar of answers that are calls. `marks` has the ids of control tokens among the format's
        texts. Raises UnsupportedField for parameters that no grammar can keep."""
        opening, closing = (_text(each, marks) for each in (form.opening, form.closing))
        blank, separator = (_literal(each) if each else "" for each in (form.blank, form.separator))
        more = self.is_parallel and not self.is_named
        if form.is_list:
            start = f"start: {opening} {_list(form, more)}"
        else:
            whole = f"{opening} {blank} call {blank} {closing}"
            start = f"start: whole ({separator} whole)*\nwhole: {whole}" if more else f"start: {whole}"
        return self._with_calls(start, form, marks)

    def free_grammar(self, form: ToolFormat, marks: dict[str, int]) -> Grammar:
        """Returns the grammar of all answers whose calls keep their form, and those of strict tools their schemas.
        Where a call has no mark, an answer that begins with a brace is a call. Raises as `grammar`."""
        more = self.is_parallel
        if not form.opening:
            calls = f"call ({_literal(form.separator)} call)*" if more else "call"
            start = rf"start: {calls} | TEXT?" + "\n" + rf"TEXT: /{ANY}+/ & ~/\s*(\{{|{_PYTHON_TAG}){ANY}*/"
            return self._with_calls(start, form, marks)
        blank = _literal(form.blank) if form.blank else ""
        rest = _list(form, more) if form.is_list else f"{blank} call {blank} {_text(form.closing, marks)}"
        if form.opening in marks:
            begun, text = f"TEXT? {token(marks[form.opening])}", f"TEXT: /{ANY}+/"
        else:
            begun = "begun"
            text = f"TEXT: /{ANY}+/ & ~/{ANY}*{re.escape(form.opening)}{ANY}*/\n"
            text += f"begun[suffix={_literal(form.opening)}]: /{ANY}*/"
        some = "*" if more and not form.is_list else "?"
        return self._with_calls(f"start: ({begun} {rest}){some} TEXT?\n{text}", form, marks)

    def _with_calls(self, start: str, form: ToolFormat, marks: dict[str, int]) -> Grammar:
        chosen = [(at, tool) for at, tool in enumerate(self.tools) if not self.is_named or tool.name == self.choice]
        extent = Extent()
        calls = "\n".join(_call(form, at, tool, self.is_forced or tool.strict, extent) for at, tool in chosen)
        call = f"call: {' | '.join(f'call_{at}' for at, _ in chosen)}\n{calls}"
        return Grammar(f"{start}\n{call}", "tools", tuple(marks.values()))


def _list(form: ToolFormat, more: bool) -> str:
    rest = f"({_literal(form.separator)} call)*" if more else ""
    return f'"[" call {rest} "]"'


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _text(text: str, marks: dict[str, int]) -> str:
    """Returns a literal, or the control token that the text is."""
    return token(marks[text]) if text in marks else _literal(text) if text else ""


def _call(form: ToolFormat, at: int, tool: Tool, keeps_schema: bool, extent: Extent) -> str:
    head = _literal(form.written(_literal(tool.name)))
    schema: dict[str, Any] = {"type": "object"}
    if keeps_schema and tool.parameters is None:
        schema |= {"properties": {}, "additionalProperties": False}
    elif keeps_schema and tool.parameters is not None:
        schema = json.loads(tool.parameters)
    arguments = json_rule(schema, f"tools[{at}].function.parameters", extent)
    return f'call_{at}: {head} arguments_{at} "}}"\narguments_{at}: {arguments}'
