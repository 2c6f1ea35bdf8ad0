"""These wire models are OpenAI's chat and text completions, with vLLM's extras. Null means absent, as OpenAI's clients
send it."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from service.api.shared.chat_schemas import (
    Continues,
    TemplateVariables,
    ToolChoice,
    Tools,
    fit_a_session,
    fit_continuing,
    fit_generation_prompt,
    one_answer,
)
from service.api.shared.grammar_schemas import Options, Pattern, ResponseFormat, SchemaJson, StructuredOutputs
from service.api.shared.schemas import (
    MAX_LOGPROBS,
    MAX_TOKENS,
    NOTHING,
    Absent,
    CacheSalt,
    ContextFields,
    DeadlineMs,
    Documents,
    Greedy,
    LeastProbability,
    Messages,
    ModelReference,
    Priority,
    RequestIdText,
    SamplingFields,
    Sequences,
    SessionId,
    StopOrStops,
    TokenId,
    Tokens,
    UserText,
    Wire,
    unsupported,
    wrong,
)
from service.context.prompt import Ids, Text

MAX_PROMPTS: Final = 64
MAX_STOP_TOKENS: Final = 64
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16, description="Its beginnings are in the server's log, and it is stored with an answer."),
]
LATER_EVERYWHERE: Final[dict[str, Absent]] = {
    "session_id": (None,),
    "store": (None, False),
    "service_tier": (None, "auto", "default"),
    "spaces_between_special_tokens": (None, True, False),
    **dict.fromkeys(
        (
            "lora_path",
            "guided_decoding_backend",
            "guided_whitespace_pattern",
        ),
        NOTHING,
    ),
}


class MetadataBody(Wire):
    """Metadata in place of what a stored completion or a conversation has; null removes it."""

    metadata: Metadata | None


class StreamOptions(Wire):
    later: ClassVar[dict[str, Absent]] = {"include_obfuscation": (None, False)}
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAISampling(SamplingFields):
    """Fields of both routes. `temperature` is OpenAI's 1 where unset; 0 is greedy."""

    model: ModelReference | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2, description="Below 1e-5: greedy."), Greedy] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, description="0: the likeliest token alone."), LeastProbability] | None = (
        None
    )
    n: Sequences | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopOrStops | None = None
    user: UserText | None = None
    safety_identifier: Annotated[UserText | None, Field(description="OpenAI's newer name of `user`.")] = None
    prompt_cache_key: Annotated[
        str | None, Field(max_length=256, description="Appears in the log: prefixes are found by their tokens.")
    ] = None
    cache_salt: CacheSalt | None = None
    metadata: Metadata | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS, description="0 or -1: off.")] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: Annotated[bool | None, Field(description="false: control tokens have their text.")] = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaJson | None = None
    guided_regex: Pattern | None = None
    guided_choice: Options | None = None
    guided_grammar: Annotated[Pattern | None, Field(description="In llguidance's variant of Lark.")] = None
    context: ContextFields | None = None
    priority: Priority | None = None
    deadline_ms: DeadlineMs | None = None
    request_id: RequestIdText | None = None

    @property
    @abstractmethod
    def new_tokens(self) -> int | None: ...

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options", "is for streams: send stream true, or remove it")
        if (self.min_tokens or 0) > (self.new_tokens or MAX_TOKENS):
            raise wrong("min_tokens", "must not be larger than the most tokens asked for")
        return self


class ChatBody(OpenAISampling):
    later: ClassVar[dict[str, Absent]] = {
        **{field: neutral for field, neutral in LATER_EVERYWHERE.items() if field not in ("session_id", "store")},
        "modalities": (None, ["text"]),
        "add_special_tokens": (None, False),
        **dict.fromkeys(
            (
                "functions",
                "function_call",
                "verbosity",
                "audio",
                "prediction",
                "web_search_options",
                "chat_template",
                "tool_prompt",
            ),
            NOTHING,
        ),
    }
    reasons: ClassVar[dict[str, str]] = {
        "add_special_tokens": "cannot act: a chat's template writes its special tokens; remove it"
    }
    messages: Messages
    store: Annotated[bool | None, Field(description="Keeps the completion, so that it can be read again.")] = None
    session_id: SessionId | None = None
    max_completion_tokens: Tokens | None = None
    max_tokens: Annotated[Tokens | None, Field(description="Older name of `max_completion_tokens`.")] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    documents: Documents | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: TemplateVariables | None = None
    continue_final_message: Continues | None = None
    add_generation_prompt: Annotated[bool | None, Field(description="False beside `continue_final_message`.")] = None

    @property
    def new_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @model_validator(mode="after")
    def _fits_its_session(self) -> Self:
        if self.session_id is not None:
            fit_a_session(self.messages, bool(self.continue_final_message))
            one_answer(self.n or 1, "n")
            if self.store:
                raise unsupported("store", "cannot act with session_id: the session keeps the answer")
        return self

    @model_validator(mode="after")
    def _ends_agree(self) -> Self:
        fit_generation_prompt(bool(self.continue_final_message), self.add_generation_prompt)
        if self.continue_final_message:
            fit_continuing(self.messages)
        return self

    @model_validator(mode="after")
    def _logprobs_agree(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", "needs logprobs true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise wrong("max_tokens", "is the older name of max_completion_tokens: send one of them")
        return self


def sources_of(value: Any, most: int, name: str) -> list[Text | Ids]:
    """Reads OpenAI's four forms of a prompt, text, texts, token ids, lists of token ids; at most so many of them, in
    the field `name`."""
    match value:
        case str():
            return [Text(value, name=name)]
        case [int(), *_] if all(_is_token(each) for each in value):
            return [Ids(tuple(value), name)]
        case [str(), *_] if all(isinstance(each, str) for each in value):
            prompts: list[Text | Ids] = [Text(each, name=name) for each in value]
        case [[*_], *_] if all(isinstance(ids, list) and ids and all(map(_is_token, ids)) for ids in value):
            prompts = [Ids(tuple(each), name) for each in value]
        case _:
            text = (
                "must be a string, a list of strings, a list of token ids, or a list of lists of token ids; none empty"
            )
            raise PydanticCustomError("wrong_field", "{text}", {"text": text})
    if len(prompts) > most:
        raise PydanticCustomError("wrong_field", "{text}", {"text": f"must hold at most {most} prompts"})
    return prompts


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_TOKENS


_IDS_SCHEMA: Final[dict[str, Any]] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
SOURCES_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        _IDS_SCHEMA,
        {"type": "array", "items": _IDS_SCHEMA, "minItems": 1},
    ]
}
Prompts = Annotated[
    list[Any],
    BeforeValidator(partial(sources_of, most=MAX_PROMPTS, name="prompt")),
    WithJsonSchema(SOURCES_SCHEMA),
]


class CompletionBody(OpenAISampling):
    later: ClassVar[dict[str, Absent]] = {**LATER_EVERYWHERE, "suffix": (None, "")}
    prompt: Prompts
    add_special_tokens: Annotated[
        bool | None, Field(description="false: a text gets no BOS or EOS of the tokenizer's. Ids never do.")
    ] = None
    max_tokens: Annotated[int | None, Field(ge=0, le=MAX_TOKENS, description="0 only with `echo`.")] = None
    best_of: Sequences | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def new_tokens(self) -> int | None:
        """Returns the most new tokens; OpenAI's default here is 16."""
        return 16 if self.max_tokens is None else self.max_tokens

    @model_validator(mode="after")
    def _nothing_but_an_echo(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise wrong("max_tokens", "must be at least 1, or 0 with echo, which scores the prompt alone")
        return self

    @model_validator(mode="after")
    def _best_of_agrees(self) -> Self:
        if self.best_of is not None and self.best_of < (self.n or 1):
            raise wrong("best_of", "must be at least n")
        if self.stream and self.best_of is not None and self.best_of > (self.n or 1):
            raise unsupported("best_of", "above n cannot be streamed: the best is known only at the end")
        return self
