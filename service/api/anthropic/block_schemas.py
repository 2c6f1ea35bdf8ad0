"""These wire models are Anthropic's messages and their content: blocks of text, calls, results and thinking."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from service.api.shared.chat_schemas import FunctionName
from service.api.shared.schemas import (
    MAX_TOOL_CALLS,
    NOTHING,
    Absent,
    CallId,
    Wire,
    text_or_list,
    unsupported,
    wrong,
)
from service.errors import InvalidRequest
from service.text.arguments import MOST_LEVELS, parsed
from service.text.messages import ToolCall

MAX_BLOCKS: Final = 4096
FIELDS: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {
    "text": (frozenset({"text"}), frozenset()),
    "tool_use": (frozenset({"id", "name", "input"}), frozenset()),
    "tool_result": (frozenset({"tool_use_id"}), frozenset({"content", "is_error"})),
    "thinking": (frozenset({"thinking"}), frozenset({"signature"})),
    "redacted_thinking": (frozenset({"data"}), frozenset()),
}
"""The fields that each kind of block must have and may have."""
BLOCKS: Final = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
    "system": ("text",),
}
"""The kinds of blocks that each role may send."""


def _text_only(kind: object) -> PydanticCustomError:
    return unsupported("type", f"is {str(kind)[:40]!r}, and this model reads text: send a block of type text")


def _as_blocks(value: Any) -> Any:
    return text_or_list(value, "blocks", lambda text: {"type": "text", "text": text})


class CacheControl(Wire):
    """Accepted without an effect: this server keeps the blocks of every prompt while there is room."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextOnlyBlock(Wire):
    """A block of text."""

    later: ClassVar[dict[str, Absent]] = {"citations": NOTHING}
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_others(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type", "text") != "text":
            raise _text_only(data.get("type"))
        return data


TextBlocks = Annotated[
    list[TextOnlyBlock],
    Field(max_length=MAX_BLOCKS, fail_fast=True),
    BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextOnlyBlock]),
]


class ContentBlock(Wire):
    """One block; `type` decides which of the other fields it has. Thinking is accepted and not sent to the model again.
    `is_error` puts `Error: ` before a tool's result."""

    later: ClassVar[dict[str, Absent]] = {
        "citations": NOTHING,
        "caller": (None, {"type": "direct"}),
        "toolset_name": (None,),
    }
    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: str | None = None
    id: CallId | None = None
    name: FunctionName | None = None
    input: dict[str, Any] | None = None
    tool_use_id: CallId | None = None
    content: TextBlocks | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unreadable(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("type"), str) and data["type"] not in FIELDS:
            raise _text_only(data["type"])
        return data

    @field_validator("input")
    @classmethod
    def _flat_enough(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        try:
            parsed(json.dumps(value or {}))
        except InvalidRequest:
            raise ValueError(f"must be nested {MOST_LEVELS} levels deep at most") from None
        return value

    @model_validator(mode="after")
    def _has_its_fields(self) -> Self:
        needed, allowed = FIELDS[self.type]
        present = {name for name in self.model_fields_set if getattr(self, name) is not None}
        for name in sorted(needed - present):
            raise wrong(name, f"is missing: a block of type {self.type} has it")
        for name in sorted(present - needed - allowed - {"type", "cache_control"}):
            raise wrong(name, f"is no field of a block of type {self.type}: remove it")
        return self

    @property
    def call(self) -> ToolCall:
        """The call of a `tool_use` block."""
        return ToolCall(self.id or "", self.name or "", json.dumps(self.input, ensure_ascii=False))

    @property
    def result(self) -> str:
        """The text of a `tool_result` block."""
        text = joined(self.content or [])
        return f"Error: {text}" if self.is_error else text


def joined(blocks: list[TextOnlyBlock]) -> str:
    """Returns the text of blocks; each is a line, as parts of OpenAI's messages are."""
    return "\n".join(each.text for each in blocks)


class TurnMessage(Wire):
    """One message. Results of tools come in the user's, first."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[ContentBlock],
        Field(max_length=MAX_BLOCKS, fail_fast=True),
        BeforeValidator(_as_blocks, json_schema_input_type=str | list[ContentBlock]),
    ]

    @model_validator(mode="after")
    def _has_its_blocks(self) -> Self:
        for index, block in enumerate(self.content):
            if block.type not in BLOCKS[self.role]:
                raise wrong(f"content[{index}].type", f"must be one of {', '.join(BLOCKS[self.role])} for {self.role}")
        if sum(block.type == "tool_use" for block in self.content) > MAX_TOOL_CALLS:
            raise wrong("content", f"must have at most {MAX_TOOL_CALLS} blocks of type tool_use")
        return self
