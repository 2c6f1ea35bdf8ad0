"""The use of tools that a request asks for, and the grammar that forces calls.

auto       the model decides
required   at least one call        a name: one call of that function
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from service.grammars import Grammar
from service.grammars.grammar import json_rule
from service.text.messages import Tool
from service.tools.formats import ToolFormat


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

    def grammar(self, form: ToolFormat, marks: dict[str, int]) -> Grammar:
        """Returns the grammar of answers that are calls. `marks` has the ids of control tokens among the format's
        texts. Raises UnsupportedField for parameters that no grammar can keep."""
        chosen = [(at, tool) for at, tool in enumerate(self.tools) if not self.is_named or tool.name == self.choice]
        calls = "\n".join(_call(form, at, tool) for at, tool in chosen)
        call = f"call: {' | '.join(f'call_{at}' for at, _ in chosen)}\n{calls}"
        return Grammar.of_lark(f"{self._start(form, marks)}\n{call}", "tools")

    def _start(self, form: ToolFormat, marks: dict[str, int]) -> str:
        opening, closing = (_text(each, marks) for each in (form.opening, form.closing))
        blank, separator = (json.dumps(each) if each else "" for each in (form.blank, form.separator))
        more = self.is_parallel and not self.is_named
        if form.is_list:
            rest = f"({separator} call)*" if more else ""
            return f'start: {opening} "[" call {rest} "]"'
        whole = f"{opening} {blank} call {blank} {closing}"
        return f"start: whole ({separator} whole)*\nwhole: {whole}" if more else f"start: {whole}"


def _text(text: str, marks: dict[str, int]) -> str:
    """Returns a literal, or the control token that the text is."""
    return f"<[{marks[text]}]>" if text in marks else json.dumps(text, ensure_ascii=False) if text else ""


def _call(form: ToolFormat, at: int, tool: Tool) -> str:
    head = json.dumps(form.written(json.dumps(tool.name, ensure_ascii=False)), ensure_ascii=False)
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    if tool.parameters is not None:
        schema = json.loads(tool.parameters)
    arguments = json_rule(schema, f"tools[{at}].function.parameters")
    return f'call_{at}: {head} arguments_{at} "}}"\narguments_{at}: {arguments}'
