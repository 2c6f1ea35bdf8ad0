"""These wire models are the bodies of OpenAI's responses. Null means absent, as OpenAI's clients send it."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from service.api.openai.responses.item_schemas import Input
from service.api.openai.schemas import Metadata
from service.api.shared.chat_schemas import MAX_TOOLS, FunctionName, TemplateVariables
from service.api.shared.schemas import (
    MAX_LOGPROBS,
    NOTHING,
    Absent,
    CacheSalt,
    ContextFields,
    DeadlineMs,
    Documents,
    Greedy,
    LeastProbability,
    ModelReference,
    Priority,
    RequestIdText,
    Tokens,
    UserText,
    Wire,
    unsupported,
    wrong,
)
from service.api.shared.unions import BY_TYPE
from service.text.messages import Tool

LOGPROBS: Final = "message.output_text.logprobs"
BUILT_IN: Final = "cannot act: this server runs no built-in tools; send tools of the type function"


class JsonFormat(Wire):
    """OpenAI's `text.format`. The answer keeps the schema whether `strict` is set or not."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema_: Annotated[
        Annotated[dict[str, Any] | bool, BY_TYPE] | None, Field(alias="schema", description="A JSON schema.")
    ] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.type == "json_schema":
            for field, value in (("name", self.name), ("schema", self.schema_)):
                if value is None:
                    raise wrong(field, "is missing for the type json_schema: add it")
        elif self.schema_ is not None:
            raise wrong("schema", f"is for the type json_schema, not {self.type}: remove it")
        return self


class TextFields(Wire):
    later: ClassVar[dict[str, Absent]] = {"verbosity": (None, "medium")}
    reasons: ClassVar[dict[str, str]] = {"verbosity": "cannot act: say in `instructions` how long the answer is to be"}
    format: JsonFormat | None = None


class FunctionTool(Wire):
    """`parameters` is the JSON schema of the arguments; without it the function has none. A forced call keeps the
    schema whether `strict` is set or not."""

    later: ClassVar[dict[str, Absent]] = dict.fromkeys(
        ("defer_loading", "allowed_callers", "output_schema", "async", "async_"), NOTHING
    )
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_built_in(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("type"), str) and data["type"] != "function":
            raise unsupported("type", f"{data['type'][:40]!r} {BUILT_IN}")
        return data

    def tool(self) -> Tool:
        parameters = None if self.parameters is None else json.dumps(self.parameters, ensure_ascii=False)
        return Tool(self.name, self.description, parameters, bool(self.strict))


class FunctionChoice(Wire):
    """The function that must be called."""

    type: Literal["function"]
    name: FunctionName


def _function_choice(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("type"), str) and value["type"] != "function":
        raise unsupported("type", f"{value['type'][:40]!r} cannot act: send none, auto, required, or a function")
    return value


Choice = Annotated[Literal["none", "auto", "required"] | FunctionChoice, BY_TYPE, BeforeValidator(_function_choice)]


def _included(value: Any) -> Any:
    if isinstance(value, list):
        for at, each in enumerate(value):
            if isinstance(each, str) and each != LOGPROBS:
                why = f"{each[:60]!r} cannot act here; {LOGPROBS} can"
                raise PydanticCustomError("unsupported_field", "unsupported", {"at": (at,), "why": why})
    return value


Include = Annotated[
    list[Literal["message.output_text.logprobs"]],
    BeforeValidator(_included),
    Field(max_length=16),
    WithJsonSchema({"type": "array", "items": {"const": LOGPROBS}, "maxItems": 16}),
]


class ResponseStreamOptions(Wire):
    later: ClassVar[dict[str, Absent]] = {"include_obfuscation": (None, False)}


class ReasoningFields(Wire):
    later: ClassVar[dict[str, Absent]] = dict.fromkeys(("summary", "generate_summary", "context", "mode"), NOTHING)
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


CONVERSATION_NAME: Final = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}


class ConversationName(Wire):
    """The conversation that a response goes on, and is added to; as its id alone, too."""

    id: Annotated[str, Field(min_length=1, max_length=128)]


class InputFields(Wire):
    """What the model reads: the fields of a response that have tokens."""

    model: ModelReference | None = None
    input: Input | None = None
    conversation: (
        Annotated[
            ConversationName,
            BeforeValidator(lambda value: {"id": value} if isinstance(value, str) else value),
            WithJsonSchema({"anyOf": [{"type": "string"}, CONVERSATION_NAME]}),
        ]
        | None
    ) = None
    previous_response_id: Annotated[
        str | None, Field(min_length=1, max_length=128, description="The stored response that this one goes on from.")
    ] = None
    instructions: Annotated[str | None, Field(description="A system message of this response alone.")] = None
    reasoning: ReasoningFields | None = None
    text: TextFields | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    truncation: (
        Annotated[
            Literal["auto", "disabled"],
            Field(description="auto leaves out the oldest turns that do not fit; disabled refuses."),
        ]
        | None
    ) = None
    context: ContextFields | None = None
    documents: Documents | None = None
    chat_template_kwargs: TemplateVariables | None = None

    @model_validator(mode="after")
    def _inputs_agree(self) -> Self:
        if self.truncation is not None and self.context is not None and self.context.policy is not None:
            raise wrong("truncation", "and context.policy say the same: send one of them")
        if self.conversation is not None and self.previous_response_id is not None:
            raise wrong("previous_response_id", "and conversation both say what was before: send one of them")
        if not self.input and self.previous_response_id is None:
            raise wrong("input", "is missing: send a text, or items")
        return self


class InputTokensBody(InputFields):
    """The body that has the tokens of a response's input counted."""

    later: ClassVar[dict[str, Absent]] = {"personality": (None,)}


class ResponseBody(InputFields):
    later: ClassVar[dict[str, Absent]] = {
        "service_tier": (None, "auto", "default"),
        "background": (None, False),
        "prompt_cache_retention": (None, "in_memory"),
        **dict.fromkeys(
            (
                "access_programs",
                "context_management",
                "image",
                "max_tool_calls",
                "moderation",
                "prompt",
                "prompt_cache_options",
            ),
            NOTHING,
        ),
    }
    reasons: ClassVar[dict[str, str]] = {
        "max_tool_calls": "is about built-in tools, of which this server runs none: remove it",
        "prompt": "is a template kept by OpenAI: send its text as input and instructions",
    }
    stream: bool | None = None
    store: Annotated[bool | None, Field(description="false keeps nothing of the response; it is kept where unset.")] = (
        None
    )
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2, description="Below 1e-5: greedy."), Greedy] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, description="0: the likeliest token alone."), LeastProbability] | None = (
        None
    )
    include: Include | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    metadata: Metadata | None = None
    user: UserText | None = None
    safety_identifier: Annotated[UserText | None, Field(description="OpenAI's newer name of `user`.")] = None
    prompt_cache_key: Annotated[
        str | None, Field(max_length=256, description="Appears in the log: prefixes are found by their tokens.")
    ] = None
    cache_salt: CacheSalt | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    priority: Priority | None = None
    deadline_ms: DeadlineMs | None = None
    request_id: RequestIdText | None = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options", "is for streams: send stream true, or remove it")
        if self.top_logprobs and not self.include:
            raise wrong("top_logprobs", f"needs include with {LOGPROBS}")
        return self
