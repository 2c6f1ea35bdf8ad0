"""Tools: functions that a model may call. How a version writes its calls, what grammar forces one, and how calls are
read from its text. The package knows texts only: no tokens, requests or HTTP."""

from service.text.tools.form import ToolFormat
from service.text.tools.pieces import CallBegun, CallText, Content, Piece, Thought
from service.text.tools.reading import CallReader
from service.text.tools.use import ToolUse

__all__ = [
    "CallBegun",
    "CallReader",
    "CallText",
    "Content",
    "Piece",
    "Thought",
    "ToolFormat",
    "ToolUse",
]
