"""These wire models are OpenAI's tools: functions that the model may call, and which of them it must call."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from service.api.http.errors import hidden
from service.api.shared.schemas import Absent, Wire
from service.text.messages import Tool

MAX_TOOLS: Final = 128
WORD: Final = hidden("word")
OBJECT: Final = hidden("object")
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]


class FunctionFields(Wire):
    """`parameters` is the JSON schema of the arguments; without it the function has none. A forced call keeps the
    schema whether `strict` is set or not; with `strict` every call keeps it."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolFields(Wire):
    type: Literal["function"]
    function: FunctionFields

    def tool(self) -> Tool:
        given = self.function
        parameters = None if given.parameters is None else json.dumps(given.parameters, ensure_ascii=False)
        return Tool(given.name, given.description, parameters, bool(given.strict))


class NamedFunction(Wire):
    name: FunctionName


class NamedTool(Wire):
    """The function that must be called."""

    later: ClassVar[dict[str, Absent]] = {"allowed_tools": (None,), "custom": (None,)}
    type: Literal["function"]
    function: NamedFunction


CHOICES: Final = ("none", "auto", "required")


def _named(value: Any) -> Any:
    """Reads a function's bare name, as clients of TGI send it."""
    if isinstance(value, str) and value not in CHOICES:
        return {"type": "function", "function": {"name": value}}
    return value


Tools = Annotated[list[ToolFields], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(WORD)] | Annotated[NamedTool, Tag(OBJECT)],
    Discriminator(lambda value: OBJECT if isinstance(value, dict | NamedTool) else WORD),
    BeforeValidator(_named, json_schema_input_type=str | NamedTool),
]
