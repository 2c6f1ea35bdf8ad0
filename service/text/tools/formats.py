"""A tool format is how a version's template writes calls, and so how the model was taught to write them.

hermes    <tool_call>\\n{"name": "f", "arguments": {…}}\\n</tool_call>       Hermes, Qwen
llama     {"name": "f", "parameters": {…}}                                  Llama 3, also behind <|python_tag|>
mistral   [TOOL_CALLS][{"name": "f", "arguments": {…}}, …]                  Mistral
json      {"name": "f", "arguments": {…}}                                   any other template with tools
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from service.errors import UnsupportedField


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`opening` begins a call; "" where a call is the whole answer. `closing` ends it. With `is_list` one opening holds
    a list of calls. `before` and `after` are the blanks that the template writes inside of them. `separator` stands
    between two calls. `key` is the name of the arguments."""

    name: str
    opening: str = ""
    closing: str = ""
    blank: str = ""
    separator: str = "\n"
    key: str = "arguments"
    is_list: bool = False

    def written(self, name: str) -> str:
        """Returns the text of a call up to its arguments, without the opening."""
        return f'{{"name": {name}, "{self.key}": '


HERMES: Final = ToolFormat("hermes", "<tool_call>", "</tool_call>", blank="\n")
LLAMA: Final = ToolFormat("llama", separator="; ", key="parameters")
MISTRAL: Final = ToolFormat("mistral", "[TOOL_CALLS]", separator=", ", is_list=True)
JSON: Final = ToolFormat("json")
PYTHON_TAG: Final = "<|python_tag|>"
_UNREADABLE: Final = ("<function=", "<｜tool▁calls▁begin｜>", "[ARGS]", "<|channel|>", "<minimax:tool_call>")


def format_of(template: str) -> ToolFormat:
    """Returns the format by the texts that a template itself writes. Raises UnsupportedField for a format that cannot
    be read."""
    for mark in _UNREADABLE:
        if mark in template:
            raise UnsupportedField(
                f"`tools` cannot act: this version's template writes calls with {mark!r}, which is not read yet; use a "
                "version that writes them as JSON",
                param="tools",
            )
    if HERMES.opening in template:
        return HERMES
    if MISTRAL.opening in template:
        return MISTRAL
    return LLAMA if PYTHON_TAG in template or '"parameters": dictionary' in template else JSON
