"""These models describe OpenAI's responses and the events of their streams, with our own fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from service.api.openai.answer_schemas import ChatTokenLogprob, ExtraFields
from service.api.openai.lists import IdPage
from service.api.shared.answer_schemas import FinishDetail, Object, Shown

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputText(Shown):
    type: Literal["input_text"]
    text: str


class OutputText(Shown):
    """`logprobs` is empty unless `include` asks for them."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatTokenLogprob] | None = None


class ReasoningText(Shown):
    type: Literal["reasoning_text"]
    text: str


class OutputMessage(Shown):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]


class FunctionCall(Shown):
    """`call_id` names the call in its result; `arguments` is a JSON object as text."""

    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class Reasoning(Shown):
    """What the model thought before its answer. It is not sent again."""

    id: str
    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ReasoningText] | None = None
    status: ItemStatus | None = None


OutputItem = Annotated[OutputMessage | FunctionCall | Reasoning, Field(discriminator="type")]


class Incomplete(Shown):
    reason: Literal["max_output_tokens", "content_filter"]


class ResponseError(Shown):
    code: str
    message: str


class InputDetails(Shown):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Shown):
    reasoning_tokens: int


class ResponseUsage(Shown):
    """`cache_write_tokens` are those of the input that the prefix cache did not have."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ConversationOf(Shown):
    id: str


class ResponseShown(ExtraFields):
    """A response; our own fields are there once it has ended. `finish_detail` is our own word where OpenAI has none.
    `text`, `tools`, `tool_choice` and others are those of the request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None
    incomplete_details: Incomplete | None
    finish_detail: FinishDetail | None = None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    conversation: ConversationOf | None
    previous_response_id: str | None
    reasoning: Object
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: Object
    tool_choice: str | Object
    tools: list[Object]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


class Numbered(Shown):
    """`sequence_number` counts the events of one response, from 0."""

    sequence_number: int


class OfResponse(Numbered):
    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: ResponseShown


class OfItem(Numbered):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class InItem(Numbered):
    item_id: str
    output_index: int


class OfPart(InItem):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: Annotated[OutputText | ReasoningText, Field(discriminator="type")]


class TextDelta(InItem):
    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[ChatTokenLogprob]


class TextDone(InItem):
    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[ChatTokenLogprob]


class ReasoningDelta(InItem):
    type: Literal["response.reasoning_text.delta"]
    content_index: int
    delta: str


class ReasoningDone(InItem):
    type: Literal["response.reasoning_text.done"]
    content_index: int
    text: str


class ArgumentsDelta(InItem):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(InItem):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class Failure(Numbered):
    """A failure in a stream; `response.failed` comes after it."""

    type: Literal["error"]
    code: str | None
    message: str
    param: str | None


class ResponseEvent(
    RootModel[
        Annotated[
            OfResponse
            | OfItem
            | OfPart
            | TextDelta
            | TextDone
            | ReasoningDelta
            | ReasoningDone
            | ArgumentsDelta
            | ArgumentsDone
            | Failure,
            Field(discriminator="type"),
        ]
    ]
):
    """The data of one event, whose name is its `type`."""


class InputTokens(Shown):
    object: Literal["response.input_tokens"]
    input_tokens: int


class ListedItem(Shown):
    """An item that a request brought, with the fields of its type."""

    id: str
    type: Literal["message", "function_call", "function_call_output", "reasoning"]
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: list[dict[str, Any]] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None
    summary: list[dict[str, Any]] | None = None


class ListedItems(IdPage[ListedItem]):
    """Newest first, unless `order` is `asc`."""


class DeletedResponse(Shown):
    id: str
    object: Literal["response"]
    deleted: Literal[True]
