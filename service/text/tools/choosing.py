"""The tool format of a version: the one that it names; the generic one where its template places no tools; else the one
that its template tells, if that one reads what the template itself writes for a call.

    tells            <tool_call>                              the form `hermes`
    writes           <tool_call>{"name": "f", …}</tool_call>  read: the version's form
                     <tool_call><invoke name="f">…            not read: refused by name
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Final, NoReturn

from service.errors import InvalidRequest, UnsupportedField
from service.text.template import ChatTemplate, Value
from service.text.tools.form import ToolFormat
from service.text.tools.formats import GENERIC, TOOL_FORMATS, UNREADABLE, known_format
from service.text.tools.harmony import ChannelReader
from service.text.tools.pieces import CallBegun, CallText
from service.text.tools.reading import CallReader

_NAME: Final = "name_of_a_call"
_GIVEN: Final = {"city": "text_of_an_argument"}
_SCHEMA: Final[dict[str, Value]] = {"type": "object", "properties": {"city": {"type": "string", "description": "a"}}}
_TOOL: Final[dict[str, Value]] = {
    "type": "function",
    "function": {"name": _NAME, "description": "a", "parameters": _SCHEMA},
}
_QUESTION: Final = "text_of_a_question"
_USER: Final[dict[str, Value]] = {"role": "user", "content": _QUESTION}
_CALL: Final[dict[str, Value]] = {
    "id": "a00000000",  # a form that every template takes
    "type": "function",
    "function": {"name": _NAME, "arguments": _GIVEN},
}
_ANSWER: Final[dict[str, Value]] = {"role": "assistant", "content": "", "tool_calls": [_CALL]}


def tool_format_of(template: ChatTemplate | None, literals: str, name: str | None) -> ToolFormat | None:
    """Returns how a version writes calls; None where that is not known. `template` is that of chats with tools,
    `literals` the texts of all its templates, `name` the form that the version names."""
    if name is not None:
        return TOOL_FORMATS.get(name)
    if template is not None and template.describes_tools:
        return GENERIC
    form = known_format(literals)
    return form if form is None or template is None or _is_read_back(template, form) else None


def _is_read_back(template: ChatTemplate, form: ToolFormat) -> bool:
    """Whether a call that the template writes is read in this form. A template that leaves calls out, or refuses them
    with a sentence of its own, is believed."""
    now = datetime.now()
    try:
        prompt = template.render([_USER], (), True, now, [_TOOL])
        chat = template.render([_USER, _ANSWER], (), False, now, [_TOOL])
    except InvalidRequest:
        return True
    if _NAME not in chat.rpartition(_QUESTION)[2]:
        return True
    behind = chat.removeprefix(prompt) if chat.startswith(prompt) else chat.rpartition(_QUESTION)[2]
    reader = (ChannelReader if form.has_channels else CallReader)(form, {_NAME: _SCHEMA})
    pieces = reader.push(behind) + reader.finish()
    arguments = "".join(piece.text for piece in pieces if isinstance(piece, CallText))
    return any(isinstance(piece, CallBegun) for piece in pieces) and json.loads(arguments) == _GIVEN


def refuse_format(literals: str) -> NoReturn:
    """Raises UnsupportedField for a version whose calls are not read, with what its template writes."""
    mark, form = next((each for each in UNREADABLE if each in literals), None), known_format(literals)
    what = f"writes calls with {mark!r}, which is not read yet" if mark else "writes calls in a form that is not known"
    if form is not None:
        what = f"writes calls much as the form {form.name} has them, yet what it writes is not read back"
    raise UnsupportedField(
        f"`tools` cannot act: this version's template {what}; use a version that writes them as JSON, "
        f"or set the version's tool_parser to one of {', '.join(TOOL_FORMATS)}",
        param="tools",
    )
