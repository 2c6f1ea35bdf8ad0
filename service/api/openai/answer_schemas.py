"""These models describe answers of OpenAI's dialect: completions, chunks, stored completions and models."""

from __future__ import annotations

from typing import Literal

from service.api.openai.lists import IdPage
from service.api.shared.answer_schemas import (
    CalledTool,
    FinishDetail,
    GuardFinding,
    Receipt,
    Shown,
    Timings,
    Usage,
)

OpenAIReason = Literal["stop", "length", "content_filter", "tool_calls"]


class CachedTokens(Shown):
    cached_tokens: int


class ReasoningTokens(Shown):
    reasoning_tokens: int


class OpenAIUsage(Usage):
    """Sums over all prompts."""

    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class ExtraFields(Shown):
    """Our own fields: beside the choices; on the choices where there are several prompts; in a stream, in the last
    chunk."""

    digest: str | None = None
    context: Receipt | None = None
    timings: Timings | None = None
    guard: list[GuardFinding] | None = None


class ChatToken(Shown):
    """`bytes` are the token's own, also where it is a part of a character, which `token` shows as U+FFFD; null where
    they are not known."""

    token: str
    logprob: float | None
    bytes: list[int] | None


class ChatTokenLogprob(ChatToken):
    top_logprobs: list[ChatToken]


class ChatLogprobs(Shown):
    content: list[ChatTokenLogprob]
    refusal: None


class AssistantMessage(Shown):
    """`content` is null where the answer is calls only. `reasoning_content` is what the model wrote for itself."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[CalledTool] | None = None


class ChatChoice(ExtraFields):
    """`finish_detail` is our own word where OpenAI has none: `deadline` or `error`."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: OpenAIReason
    finish_detail: FinishDetail | None = None


class ChatCompletion(ExtraFields):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: OpenAIUsage


class FunctionDelta(Shown):
    name: str | None = None
    arguments: str


class CallDelta(Shown):
    """`id`, `type` and the name come with the first delta of a call, then its arguments, piece by piece."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class MessageDelta(Shown):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChatChunkChoice(Shown):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: OpenAIReason | None
    finish_detail: FinishDetail | None = None


class ChatChunk(ExtraFields):
    """The data of one event; the stream ends with `data: [DONE]`. A failure is `{"error": …}` before it."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: OpenAIUsage | None = None


class TextLogprobs(Shown):
    """Four lists of one length. `text_offset`: characters of the choice's text before the token. A token is what it
    adds to that text: of a character's tokens the last one adds it. A control token is told by its name."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(ExtraFields):
    """`finish_reason` is null in all chunks of a choice but the last."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: OpenAIReason | None
    finish_detail: FinishDetail | None = None


class TextCompletion(ExtraFields):
    """A whole answer, and the data of one event: the stream ends with `data: [DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: OpenAIUsage | None = None


class StoredCompletion(ChatCompletion):
    metadata: dict[str, str]


class StoredCompletions(IdPage[StoredCompletion]):
    """Oldest first, unless `order` is `desc`."""


class StoredMessage(Shown):
    """`content` is null where the message is calls only; text parts are one text."""

    id: str
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None


class StoredMessages(IdPage[StoredMessage]):
    """Oldest first, unless `order` is `desc`."""


class DeletedCompletion(Shown):
    id: str
    object: Literal["chat.completion.deleted"]
    deleted: Literal[True]
