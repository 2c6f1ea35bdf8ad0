"""These wire models are OpenAI's items: messages, calls of functions and their results, as clients send them and as
conversations hold them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from service.api.http.documented import reference
from service.api.http.errors import hidden
from service.api.shared.schemas import (
    MAX_MESSAGES,
    NOTHING,
    Absent,
    CallId,
    JsonObjectText,
    Wire,
    text_or_list,
    unsupported,
    wrong,
)

ItemId = Annotated[str, Field(max_length=128, description="As an answer had it; it changes nothing.")]
Status = Literal["in_progress", "completed", "incomplete"]
TEXTS: Final = ("input_text", "output_text", "text")


class TextPart(Wire):
    """A part of a message or of a result. `annotations` and `logprobs` come back with an answer's own parts and say
    nothing to the model."""

    later: ClassVar[dict[str, Absent]] = {"prompt_cache_breakpoint": NOTHING, "annotations": NOTHING}
    type: Literal["input_text", "output_text", "text"]
    text: str
    logprobs: list[Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_others(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else "text"
        if kind not in TEXTS:
            raise unsupported("type", "must be input_text or output_text: this model reads text")
        return data


def _as_parts(value: Any) -> Any:
    return text_or_list(value, "parts", lambda text: {"type": "text", "text": text})


Parts = Annotated[
    list[TextPart],
    BeforeValidator(_as_parts),
    Field(max_length=MAX_MESSAGES),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": reference(TextPart)}]}),
]
"""Text, or a list of texts, which become lines."""


def joined(parts: list[TextPart]) -> str:
    return "\n".join(part.text for part in parts)


class MessageItem(Wire):
    later: ClassVar[dict[str, Absent]] = {"phase": NOTHING}
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    id: ItemId | None = None
    status: Status | None = None


class FunctionCallItem(Wire):
    """A call that the model made; `call_id` names it in its result."""

    later: ClassVar[dict[str, Absent]] = dict.fromkeys(("async", "async_", "caller", "namespace"), NOTHING)
    type: Literal["function_call"]
    call_id: CallId
    name: Annotated[str, Field(min_length=1, max_length=128)]
    arguments: JsonObjectText
    id: ItemId | None = None
    status: Status | None = None


class FunctionCallOutputItem(Wire):
    """What a function gave back."""

    later: ClassVar[dict[str, Absent]] = dict.fromkeys(("caller", "namespace", "name"), NOTHING)
    type: Literal["function_call_output"]
    call_id: CallId
    output: Parts
    id: ItemId | None = None
    status: Status | None = None


class ReasoningItem(Wire):
    """What a model thought before an answer, as the answer had it. It is not sent again."""

    later: ClassVar[dict[str, Absent]] = {"encrypted_content": NOTHING}
    reasons: ClassVar[dict[str, str]] = {"encrypted_content": "cannot be read: this server encrypts no reasoning"}
    type: Literal["reasoning"]
    summary: list[Any] | None = None
    content: list[Any] | None = None
    id: ItemId | None = None
    status: Status | None = None

    @property
    def text(self) -> str:
        """Its content as lines; without one its summary."""
        parts = (part.get("text") for part in self.content or self.summary or () if isinstance(part, dict))
        return "\n".join(text for text in parts if isinstance(text, str))


class ReferenceItem(Wire):
    """An item of a stored response, by its id: of its output, or of what its request brought."""

    type: Literal["item_reference"] | None = None
    id: Annotated[str, Field(min_length=1, max_length=128)]


class OtherItem(Wire):
    """Any other item, which is refused."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise wrong("", "must be an item, such as a message with role and content")
        known = "message, function_call, function_call_output and reasoning"
        if data.get("type") is None:
            raise wrong("type", f"is missing: say one of {known}")
        raise unsupported("type", f"is {str(data['type'])[:40]!r}, which cannot act: send items of {known}")


ITEMS: Final[dict[str, type[Wire]]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ReferenceItem,
}


def _kind(value: Any) -> str:
    if isinstance(value, Wire):
        return hidden(next(kind for kind, model in ITEMS.items() if isinstance(value, model)))
    kind = value.get("type") if isinstance(value, dict) else ""
    if kind is None and value.keys() & {"role", "id"}:
        kind = "message" if "role" in value else "item_reference"
    return hidden(kind if isinstance(kind, str) and kind in ITEMS else "other")


Item = Annotated[
    Annotated[MessageItem, Tag(hidden("message"))]
    | Annotated[FunctionCallItem, Tag(hidden("function_call"))]
    | Annotated[FunctionCallOutputItem, Tag(hidden("function_call_output"))]
    | Annotated[ReasoningItem, Tag(hidden("reasoning"))]
    | Annotated[ReferenceItem, Tag(hidden("item_reference"))]
    | Annotated[OtherItem, Tag(hidden("other"))],
    Discriminator(_kind),
]
ItemList = Annotated[list[Item], Field(max_length=MAX_MESSAGES)]


def _no_references(items: list[Item]) -> list[Item]:
    for at, item in enumerate(items):
        if isinstance(item, ReferenceItem):
            why = "is an item_reference, which a conversation cannot hold: send the item itself"
            raise PydanticCustomError("unsupported_field", "unsupported", {"at": (at, "type"), "why": why})
    return items


OwnItems = Annotated[ItemList, AfterValidator(_no_references)]


def _as_items(value: Any) -> Any:
    return text_or_list(value, "items", lambda text: {"type": "message", "role": "user", "content": text})


Input = Annotated[
    ItemList,
    BeforeValidator(_as_items),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {"anyOf": [reference(each) for each in ITEMS.values()]},
                },
            ]
        }
    ),
]
"""A text is a user's message."""
