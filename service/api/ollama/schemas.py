"""These wire models are the bodies of Ollama's routes. Null means absent, as some of its clients send it."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from service.api.ollama.durations import seconds_of
from service.api.shared.chat_schemas import Tools
from service.api.shared.schemas import (
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_TOKENS,
    MAX_TOOL_CALLS,
    NOTHING,
    Absent,
    CallId,
    LeastProbability,
    MinP,
    ModelReference,
    Penalty,
    Repetition,
    StopOrStops,
    Temperature,
    Tokens,
    TypicalP,
    Wire,
    unsupported,
    wrong,
)
from service.api.shared.unions import BY_TYPE
from service.text.arguments import MOST_LEVELS, is_object

LATEST: Final = ":latest"
"""The tag that Ollama's clients put behind a name without one. No version can be called so."""
IMAGES: Final = "cannot be read: this model reads text, so remove them"
ON_SHIFT: Final = "acts where a window shifts, and nothing is shifted out of one here: remove it"
OPERATORS: Final = "is the operator's choice on this server: remove it"
OPERATORS_OPTIONS: Final[dict[str, Absent]] = {
    "numa": (None, False),
    "num_batch": (None, 512),
    "num_gpu": (None, -1),
    "main_gpu": (None, 0),
    "num_thread": (None, 0),
    "low_vram": (None, False),
    "f16_kv": (None, True),
    "logits_all": (None, False),
    "vocab_only": (None, False),
    "embedding_only": (None, False),
    "use_mmap": (None, True),
    "use_mlock": (None, False),
    "draft_num_predict": (None,),
}
"""Options of Ollama's runner, with its defaults."""


def _number_of_tokens(value: int) -> int:
    if value == -2:
        raise PydanticCustomError(
            "unsupported_field", "unsupported", {"why": "-2 (fill the window) cannot act: send -1, or a number"}
        )
    if value < 1 and value != -1:
        raise PydanticCustomError("wrong_field", "{text}", {"text": "must be at least 1, or -1 for no limit"})
    return value


def _format(value: Any) -> Any:
    if isinstance(value, dict) or value in (None, "", "json"):
        return value
    raise PydanticCustomError("wrong_field", "{text}", {"text": 'must be "json" or a JSON schema: an object'})


Name = Annotated[ModelReference, AfterValidator(lambda value: value.removesuffix(LATEST))]
Format = Annotated[Annotated[dict[str, Any] | str, BY_TYPE] | None, BeforeValidator(_format)]
KeepAlive = Annotated[
    float,
    PlainValidator(seconds_of),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}], "description": "Seconds, or as in 5m."}),
]


class OllamaOptions(Wire):
    """Ollama's `options`, with its names and defaults. `num_predict` -1: no limit. A negative `seed`: one that the
    server draws."""

    later: ClassVar[dict[str, Absent]] = {
        **OPERATORS_OPTIONS,
        "num_keep": (None, -1, 0, 4),
        "mirostat": (None, 0),
        "mirostat_tau": (None, 5, 5.0),
        "mirostat_eta": (None, 0.1),
        "tfs_z": (None, 1, 1.0),
        "penalize_newline": (None, True),
    }
    reasons: ClassVar[dict[str, str]] = {**dict.fromkeys(OPERATORS_OPTIONS, OPERATORS), "num_keep": ON_SHIFT}
    num_ctx: Annotated[Tokens | None, Field(description="Window of prompt and answer, if less than the model's.")] = (
        None
    )
    num_predict: Annotated[int, Field(le=MAX_TOKENS), AfterValidator(_number_of_tokens)] | None = None
    temperature: Temperature | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS, description="0 or -1: off.")] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, description="0: the likeliest token alone."), LeastProbability] | None = (
        None
    )
    min_p: MinP | None = None
    typical_p: TypicalP | None = None
    repeat_penalty: Repetition | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopOrStops | None = None

    @property
    def penalizes(self) -> bool:
        return self.repeat_penalty not in (None, 1) or bool(self.presence_penalty) or bool(self.frequency_penalty)

    @model_validator(mode="after")
    def _look_back_on_all(self) -> Self:
        if (self.repeat_last_n or 0) > 0 and self.penalizes:
            why = "cannot act beside a penalty, which looks back on everything here: send -1, or 0 for no penalty"
            raise unsupported("repeat_last_n", why)
        return self


class OllamaBody(Wire):
    """The fields of both routes that generate."""

    later: ClassVar[dict[str, Absent]] = {
        "shift": (None, False),
        "_debug_render_only": (None, False),
    }
    reasons: ClassVar[dict[str, str]] = {
        "shift": "cannot act: an answer ends where the window is full; send false",
    }
    model: Name
    stream: bool | None = None
    think: Annotated[bool | Literal["low", "medium", "high"], BY_TYPE] | None = None
    format: Annotated[Format, Field(description='"json" or a JSON schema.')] = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive | None = None
    truncate: Annotated[bool | None, Field(description="Whether old turns that do not fit are left out.")] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _logprobs_agree(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", "needs logprobs true")
        return self


def _flat(value: dict[str, Any]) -> dict[str, Any]:
    if not is_object(json.dumps(value)):
        raise PydanticCustomError(
            "wrong_field", "{text}", {"text": f"must be numbers of JSON, nested {MOST_LEVELS} levels deep at most"}
        )
    return value


class OllamaFunction(Wire):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    arguments: Annotated[dict[str, Any], AfterValidator(_flat)] | None = None
    index: Annotated[int | None, Field(ge=0, description="The call's place in the answer that it is from.")] = None


class OllamaCall(Wire):
    """A call of an earlier answer, as Ollama's clients send it back."""

    id: CallId | None = None
    type: Literal["function"] | None = None
    function: OllamaFunction


class OllamaMessage(Wire):
    """A tool's message is the result of a call: `tool_call_id` or `tool_name` names it; without either it is the next
    one."""

    later: ClassVar[dict[str, Absent]] = {"images": NOTHING}
    reasons: ClassVar[dict[str, str]] = {"images": IMAGES}
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: Annotated[str | None, Field(description="Of an earlier answer; it is not sent again.")] = None
    tool_calls: Annotated[list[OllamaCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = None
    tool_name: Annotated[str, Field(max_length=128)] | None = None
    tool_call_id: CallId | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.thinking and self.role != "assistant":
            raise wrong("thinking", "is an assistant's: remove it from this message")
        if self.tool_calls and self.role != "assistant":
            raise wrong("tool_calls", "are an assistant's: remove them from this message")
        for field in ("tool_name", "tool_call_id"):
            if getattr(self, field) and self.role != "tool":
                raise wrong(field, "is a tool's: remove it from this message")
        return self


class OllamaChatBody(OllamaBody):
    """Without messages nothing is generated: the model is loaded, or with `keep_alive` 0 unloaded."""

    tools: Tools | None = None
    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = None


class OllamaGenerateBody(OllamaBody):
    """Without a prompt nothing is generated: the model is loaded, or with `keep_alive` 0 unloaded."""

    later: ClassVar[dict[str, Absent]] = {
        **OllamaBody.later,
        **dict.fromkeys(("suffix", "template", "context", "images"), NOTHING),
        **dict.fromkeys(("width", "height", "steps"), (None, 0)),
    }
    reasons: ClassVar[dict[str, str]] = {
        **OllamaBody.reasons,
        "images": IMAGES,
        "suffix": "cannot act: no model fills in the middle here; remove it",
        "template": "cannot act: a version's own chat template writes its prompts; send the prompt with raw true",
        "context": "cannot act: token ids keep no history here; send the messages to /api/chat, or use a session "
        "(session_id of /generate)",
    }
    prompt: str | None = None
    system: str | None = None
    raw: Annotated[bool | None, Field(description="The prompt goes to the model without the chat template.")] = None

    @model_validator(mode="after")
    def _raw_is_alone(self) -> Self:
        if self.raw and self.system:
            raise unsupported("system", "needs the chat template: send raw false, or put it into the prompt")
        if self.raw and self.think:
            raise unsupported("think", "needs the chat template: send raw false, or remove it")
        if self.raw and self.truncate:
            raise unsupported("truncate", "leaves old turns out, and a raw prompt has none: remove it")
        return self


class OllamaShowBody(Wire):
    later: ClassVar[dict[str, Absent]] = dict.fromkeys(("verbose", "system", "template", "options"), NOTHING)
    model: Name | None = None
    name: Annotated[Name | None, Field(description="Older name of `model`.")] = None

    @property
    def reference(self) -> str:
        return self.model or self.name or ""

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        if not self.reference:
            raise wrong("model", "is missing: add it")
        if None not in (self.model, self.name) and self.model != self.name:
            raise wrong("name", "is the older name of model: send one of them")
        return self
