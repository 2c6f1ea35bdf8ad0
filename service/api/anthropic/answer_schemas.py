"""These models describe answers of Anthropic's dialect: messages, the events of a stream, and models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from service.api.shared.answer_schemas import FinishDetail, GuardFinding, Receipt, Shown, Timings

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"]


class InputTokens(Shown):
    """`cache_read_input_tokens` of the prompt's tokens were found in the prefix cache, `input_tokens` were not: both
    together are the prompt."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int


class ThinkingTokens(Shown):
    thinking_tokens: int


class AnthropicUsage(InputTokens):
    """`output_tokens`: every sampled token, with end tokens and stop sequences. `output_tokens_details` is there where
    the answer may have thinking."""

    output_tokens: int
    output_tokens_details: ThinkingTokens | None = None
    service_tier: Literal["standard"]


class TextContent(Shown):
    type: Literal["text"]
    text: str


class ThinkingContent(Shown):
    """`signature` is the version's digest."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseContent(Shown):
    """Of an input that a limit cut, `input` has what is whole; of one that is no JSON, its text as `INVALID_JSON`."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Content = Annotated[ThinkingContent | TextContent | ToolUseContent, Field(discriminator="type")]


class OwnFields(Shown):
    """Our own fields. `finish_detail` is our word where Anthropic has none: `deadline` or `error`."""

    finish_detail: FinishDetail | None = None
    digest: str | None = None
    context: Receipt | None = None
    timings: Timings | None = None
    guard: list[GuardFinding] | None = None
    session_id: str | None = None


class AnthropicMessage(OwnFields):
    """A whole answer; in a stream's first event without content and stop reason. `model` is the version that
    answers."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: AnthropicUsage


class MessageStart(Shown):
    type: Literal["message_start"]
    message: AnthropicMessage


class BlockStart(Shown):
    type: Literal["content_block_start"]
    index: int
    content_block: Content


class AnthropicTextDelta(Shown):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(Shown):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(Shown):
    type: Literal["signature_delta"]
    signature: str


class InputJsonDelta(Shown):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(Shown):
    type: Literal["content_block_delta"]
    index: int
    delta: Annotated[ThinkingDelta | SignatureDelta | AnthropicTextDelta | InputJsonDelta, Field(discriminator="type")]


class BlockStop(Shown):
    type: Literal["content_block_stop"]
    index: int


class StopDelta(Shown):
    stop_reason: StopReason
    stop_sequence: str | None


class AnthropicMessageDelta(OwnFields):
    type: Literal["message_delta"]
    delta: StopDelta
    usage: AnthropicUsage


class MessageStop(Shown):
    type: Literal["message_stop"]


class Ping(Shown):
    """Comes while a stream waits for its first token."""

    type: Literal["ping"]


class ErrorBody(Shown):
    """`param` and `code` are ours, as in OpenAI's errors."""

    type: str
    message: str
    param: str | None
    code: str


class AnthropicError(Shown):
    type: Literal["error"]
    error: ErrorBody
    request_id: str


class AnthropicEvent(
    RootModel[
        Annotated[
            MessageStart
            | BlockStart
            | BlockDelta
            | BlockStop
            | AnthropicMessageDelta
            | MessageStop
            | Ping
            | AnthropicError,
            Field(discriminator="type"),
        ]
    ]
):
    """The data of one event, whose name is its `type`. A stream that fails ends with `error`."""


class TokenCount(Shown):
    """The tokens of the whole prompt: `input_tokens` and `cache_read_input_tokens` of the same request together."""

    input_tokens: int
