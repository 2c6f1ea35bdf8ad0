"""These wire models are what bodies of several dialects say of a chat: functions that the model may or must call,
template variables, and a session's turn."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from service.api.shared.schemas import Absent, ChatMessage, Wire, unsupported, wrong
from service.api.shared.unions import BY_TYPE
from service.errors import InvalidRequest, UnsupportedField
from service.generation.request import SessionTurn
from service.text.messages import Message, Tool
from service.text.reasoning import REASONING_FORMS
from service.text.tools import ToolUse
from service.text.tools.formats import TOOL_FORMATS

MAX_TOOLS: Final = 128
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
        function = self.function
        parameters = None if function.parameters is None else json.dumps(function.parameters, ensure_ascii=False)
        return Tool(function.name, function.description, parameters, bool(function.strict))


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
    Literal["none", "auto", "required"] | NamedTool,
    BY_TYPE,
    BeforeValidator(_named, json_schema_input_type=str | NamedTool),
]


def _one_of(names: Collection[str]) -> Any:
    def check(value: str) -> str:
        if value not in names:
            raise PydanticCustomError("wrong_field", "{text}", {"text": f"must be one of {', '.join(names)}, or null"})
        return value

    return Annotated[str, AfterValidator(check), Field(description=f"One of {', '.join(names)}.")]


ReasoningParser = _one_of((*REASONING_FORMS, "none"))
ToolParser = _one_of((*TOOL_FORMATS, "none"))


class ToolBody(Protocol):
    """A body with tools."""

    @property
    def tools(self) -> Tools | None: ...
    @property
    def tool_choice(self) -> ToolChoice | None: ...
    @property
    def parallel_tool_calls(self) -> bool | None: ...


def tool_use_of(body: ToolBody, bounds: Mapping[str, object]) -> ToolUse | None:
    """Returns None where no tool can be called. Raises InvalidRequest for a choice without its tool, and for two tools
    of one name; UnsupportedField for one of `bounds`, fields about where an answer ends, beside a forced call."""
    tools = tuple(each.tool() for each in body.tools or ())
    choice = body.tool_choice
    name = choice.function.name if isinstance(choice, NamedTool) else None
    kind = "required" if isinstance(choice, NamedTool) else choice or "auto"
    use = use_of(tools, kind, name, is_parallel=body.parallel_tool_calls is not False)
    for field, value in bounds.items():
        if use is not None and (use.is_forced or use.is_strict) and value:
            what = "a forced `tool_choice`" if use.is_forced else "a strict tool"
            raise UnsupportedField(
                f"`{field}` cannot act beside {what}, which says where the answer may end: remove it",
                param=field,
            )
    return use


def called(id: str, name: str, arguments: str) -> dict[str, Any]:
    """Returns a call in OpenAI's form."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def use_of(tools: tuple[Tool, ...], choice: str, name: str | None, *, is_parallel: bool) -> ToolUse | None:
    """Returns None where no tool can be called. `choice` is "none", "auto" or "required", with `name` for one of them.
    Raises InvalidRequest for a choice without its tool, and for two tools of one name."""
    twice = [each for each, count in Counter(tool.name for tool in tools).items() if count > 1]
    if twice:
        raise InvalidRequest(f"`tools` has two functions {twice[0]!r}: give each its own name", param="tools")
    if name is not None and name not in {tool.name for tool in tools}:
        raise InvalidRequest(
            f"`tool_choice` names {name!r}, which is not in `tools`: send it there", param="tool_choice"
        )
    if choice == "required" and not tools:
        raise InvalidRequest("`tool_choice` is required, but there is no tool: send `tools`", param="tool_choice")
    if not tools or choice == "none":
        return None
    return ToolUse(tools, name or choice, is_named=name is not None, is_parallel=is_parallel)


TemplateVariable = Annotated[bool | int | float | str, BY_TYPE] | None
TemplateVariables = Annotated[
    dict[Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_]{0,63}$")], TemplateVariable],
    Field(max_length=32, description="Variables of the version's chat template, such as enable_thinking."),
]


Continues = Annotated[
    bool, Field(description="The answer goes on from the last message, an assistant's; it holds what is new.")
]


def fit_continuing(messages: list[ChatMessage] | None) -> None:
    """Raises for messages that end with nothing to go on from."""
    if messages is None or messages[-1].role != "assistant":
        raise wrong("continue_final_message", "needs messages that end with an assistant's: send its beginning last")
    if messages[-1].tool_calls:
        raise unsupported("continue_final_message", "cannot go on behind tool_calls: send their results")


def fit_generation_prompt(continues: bool, added: bool | None) -> None:
    """Raises for vLLM's two fields about a prompt's end where they do not agree; `added` None is not sent."""
    if continues and added:
        raise wrong("continue_final_message", "and add_generation_prompt exclude each other: send the latter as false")
    if added is False and not continues:
        raise unsupported("add_generation_prompt", "false acts beside continue_final_message true: send both, or none")


def turn_of(session: str, messages: tuple[Message, ...], continues: bool) -> SessionTurn:
    """Returns a turn of a session; with `continues` its answer goes on from the last message."""
    new, begun = (messages[:-1], messages[-1]) if continues else (messages, None)
    return SessionTurn(session=session, messages=new, begun=begun)


def one_answer(sequences: int, field: str) -> None:
    """Raises for several answers to one turn of a stored session."""
    if sequences > 1:
        raise unsupported(field, "cannot act in a session: one answer is stored")


def fit_a_session(messages: list[ChatMessage] | None, continues: bool = False) -> None:
    """Raises for messages that a turn of a stored session cannot have."""
    new = messages[:-1] if messages and continues else messages
    if not new:
        raise unsupported("session_id", "needs messages: what the user says now")
    roles = [message.role for message in new]
    if any(role not in ("user", "tool") for role in roles):
        raise wrong("messages", "of a session's turn are the user's or a tool's: the session has all others")
    if roles != sorted(roles):
        raise wrong("messages", "of a session's turn have results of tools first: a user's message begins a new turn")
