"""These wire models are the bodies of Anthropic's routes, with our own fields beside its own. Null means absent."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from service.api.anthropic.block_schemas import CacheControl, TextBlocks, TurnMessage
from service.api.shared.chat_schemas import FunctionName, TemplateVariables
from service.api.shared.schemas import (
    MAX_MESSAGES,
    MAX_TOKENS,
    NOTHING,
    Absent,
    ContextFields,
    DeadlineMs,
    Documents,
    Greedy,
    LeastProbability,
    ModelReference,
    Priority,
    RequestIdText,
    SessionId,
    Stops,
    Tokens,
    UserText,
    Wire,
    unsupported,
    wrong,
)
from service.api.shared.unions import BY_TYPE
from service.text.messages import Tool

MAX_TOOLS: Final = 1024
"""Coding agents with servers of their own send hundreds."""
MAX_EDITS: Final = 16
OPERATORS: Final = "is no choice of a request on this server: remove it"


class AnthropicTool(Wire):
    """A function that the model may call. A call of a `strict` one keeps its schema, and so does every forced call.
    `eager_input_streaming` asks for what happens anyway: input is streamed as it is written."""

    later: ClassVar[dict[str, Absent]] = {
        "defer_loading": (None, False),
        "allowed_callers": (None, ["direct"]),
        "input_examples": NOTHING,
    }
    name: FunctionName
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_servers_tools(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type") not in (None, "custom"):
            raise unsupported("type", "names a tool of Anthropic's own, which this server has not: send type custom")
        return data

    def tool(self) -> Tool:
        schema = json.dumps(self.input_schema, ensure_ascii=False)
        return Tool(self.name, self.description, schema, strict=bool(self.strict))


class AnthropicToolChoice(Wire):
    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.name is not None) != (self.type == "tool"):
            raise wrong("name", f"{'is missing' if self.name is None else 'is'} for type tool")
        return self


class Thinking(Wire):
    """Whether the model thinks before its answer; `adaptive` lets the version's template decide. `display` omitted: its
    blocks come without text. No version knows its budget: `max_tokens` bounds thinking and answer together."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Tokens | None = None
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_between_tools(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type") == "between_tools":
            raise unsupported("type", "between_tools cannot act: send enabled, disabled or adaptive")
        return data

    @model_validator(mode="after")
    def _has_its_fields(self) -> Self:
        if (self.budget_tokens is not None) != (self.type == "enabled"):
            raise wrong("budget_tokens", f"{'is missing' if self.budget_tokens is None else 'is'} for type enabled")
        if self.display is not None and self.type == "disabled":
            raise wrong("display", "is for the types enabled and adaptive")
        return self


class AnthropicMetadata(Wire):
    user_id: UserText | None = None


class AnthropicJsonFormat(Wire):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema", description="A JSON schema.")]


class OutputConfig(Wire):
    """`effort` high is Anthropic's default: a version that knows no efforts takes it."""

    later: ClassVar[dict[str, Absent]] = {"task_budget": (None,)}
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: AnthropicJsonFormat | None = None


class ContextEdit(Wire):
    """Accepted without an effect: thinking of earlier answers is never sent again."""

    type: Literal["clear_thinking_20251015"]
    keep: Annotated[Literal["all"] | dict[str, Any], BY_TYPE] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_others(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type") != "clear_thinking_20251015":
            raise unsupported("type", "cannot act: context.policy decides what of a chat is sent; remove the edit")
        return data


class ContextManagement(Wire):
    edits: Annotated[list[ContextEdit], Field(max_length=MAX_EDITS)] | None = None


class CountTokensBody(Wire):
    """What decides the tokens of a prompt; the other fields of a request do not."""

    later: ClassVar[dict[str, Absent]] = {
        "speed": (None, "standard"),
        **dict.fromkeys(("mcp_servers", "compaction", "billing_policy"), NOTHING),
    }
    reasons: ClassVar[dict[str, str]] = {"speed": OPERATORS, "billing_policy": OPERATORS}
    model: ModelReference | None = None
    messages: Annotated[list[TurnMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: TextBlocks | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Annotated[AnthropicJsonFormat | None, Field(description="Older name of `output_config.format`.")] = (
        None
    )
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None
    documents: Documents | None = None
    chat_template_kwargs: TemplateVariables | None = None

    @model_validator(mode="after")
    def _one_format(self) -> Self:
        if self.output_format is not None and self.output_config is not None and self.output_config.format is not None:
            raise wrong("output_format", "is the older name of output_config.format: send one of them")
        return self


class MessagesBody(CountTokensBody):
    """`max_tokens` is the most that the answer may have; a smaller window ends it earlier. 0 computes the prompt alone,
    so that its blocks are kept."""

    later: ClassVar[dict[str, Absent]] = {
        **CountTokensBody.later,
        "diagnostics": (None, {}, {"previous_message_id": None}),
        **dict.fromkeys(("container", "inference_geo", "fallbacks", "fallback_credit_token", "thread"), NOTHING),
    }
    reasons: ClassVar[dict[str, str]] = {**CountTokensBody.reasons, "inference_geo": OPERATORS}
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    stream: bool | None = None
    stop_sequences: Stops | None = None
    temperature: Annotated[float, Field(ge=0, le=1, description="Below 1e-5: greedy."), Greedy] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, description="0: the likeliest token alone."), LeastProbability] | None = (
        None
    )
    top_k: Annotated[int, Field(ge=0, le=MAX_TOKENS, description="0: off.")] | None = None
    metadata: AnthropicMetadata | None = None
    service_tier: Annotated[Literal["auto", "standard_only"] | None, Field(description="There is one tier.")] = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    session_id: SessionId | None = None
    context: ContextFields | None = None
    priority: Priority | None = None
    deadline_ms: DeadlineMs | None = None
    request_id: RequestIdText | None = None

    @property
    def user(self) -> str | None:
        return self.metadata.user_id if self.metadata else None

    @model_validator(mode="after")
    def _budget_leaves_an_answer(self) -> Self:
        if self.thinking is not None and (self.thinking.budget_tokens or 0) >= max(self.max_tokens, 1):
            raise wrong("thinking.budget_tokens", "must be below max_tokens, which bounds thinking and answer together")
        return self

    @model_validator(mode="after")
    def _fits_its_session(self) -> Self:
        if self.session_id is None:
            return self
        if not self.max_tokens:
            raise wrong("max_tokens", "must be at least 1 in a session, which keeps the answer of each turn")
        *new, last = self.messages
        if any(each.role != "user" for each in new) or last.role == "system" or not (new or last.role == "user"):
            raise wrong(
                "messages", "of a session's turn are the user's, and what its answer begins with: it has all others"
            )
        kinds = [block.type for each in self.messages for block in each.content]
        if kinds != sorted(kinds, key=lambda kind: kind != "tool_result"):
            raise wrong("messages", "of a session's turn have results of tools first: a user's text begins a new turn")
        return self
