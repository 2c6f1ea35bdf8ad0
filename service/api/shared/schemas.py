"""The base of every wire model has strict types and no unknown fields, and refuses known fields that cannot act by
name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from service.context.budget import MOST_PINS, READERS, ContextOptions
from service.errors import InvalidRequest
from service.text.arguments import MOST_LEVELS, whole
from service.text.messages import Document, Message, ToolCall

MAX_TOKENS: Final = 2**31 - 1
MAX_SEQUENCES: Final = 8
MAX_LOGPROBS: Final = 20
MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 64
MAX_BIASES: Final = 1024
MAX_MESSAGES: Final = 4096
MAX_DOCUMENTS: Final = 256
MAX_TOOL_CALLS: Final = 128
DAY_MS: Final = 86_400_000
LEAST_TEMPERATURE: Final = 1e-5
"""A smaller temperature is greedy: logits divided by it would pass the range of fp32."""
LEAST_PROBABILITY: Final = 1e-9
"""A smaller value acts as this one, or for `min_p` as 0: beside 1, fp32 cannot hold it."""

Absent = tuple[Any, ...]
NOTHING: Final[Absent] = (None, False, "", [], {})


def unsupported(field: str, why: str) -> PydanticCustomError:
    """Returns an error that becomes UnsupportedField: `field` (dots and all) `why`. A field's own validator names no
    field: the error is about its field as it is."""
    return PydanticCustomError("unsupported_field", "unsupported", {"at": (field,) if field else (), "why": why})


def wrong(field: str, text: str) -> PydanticCustomError:
    """Returns an error that becomes InvalidRequest about `field`, for rules over several fields. A field's own
    validator names no field, as of `unsupported`."""
    return PydanticCustomError("wrong_field", "{text}", {"at": (field,) if field else (), "text": text})


class Wire(BaseModel):
    """`later` names fields that clients send and this server cannot act on yet, with the values that have no effect;
    `reasons` says of some of them what to do instead."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
    later: ClassVar[dict[str, Absent]] = {}
    reasons: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_later(cls, data: Any) -> Any:
        if not isinstance(data, dict) or cls.later.keys().isdisjoint(data):
            return data
        for field in cls.later.keys() & data.keys():
            if not any(type(data[field]) is type(neutral) and data[field] == neutral for neutral in cls.later[field]):
                raise unsupported(field, cls.reasons.get(field, "cannot act on this server yet: remove it"))
        return {key: value for key, value in data.items() if key not in cls.later}


def text_or_list(value: Any, members: str, of_text: Callable[[str], Any] = str) -> list[Any]:
    """Returns the value of a field that has a list of `members`, or one text, of which `of_text` makes the only
    member."""
    if not isinstance(value, str | list):
        raise wrong("", f"must be a string or a list of {members}")
    return [of_text(value)] if isinstance(value, str) else value


def _joined_parts(value: Any) -> Any:
    """Returns the text of `[{"type": "text", "text": …}]`; parts become lines, as vLLM joins them."""
    if isinstance(value, str):
        return value
    texts = []
    unknown = list[InitErrorDetails]()
    for index, part in enumerate(text_or_list(value, "parts of type text")):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text"):
            raise PydanticCustomError(
                "unsupported_field",
                "unsupported",
                {"at": (index, "type"), "why": "must be text: this model reads text"},
            )
        if not isinstance(part.get("text"), str):
            raise wrong_part(index)
        texts.append(part["text"])
        extra = [name for name in part if name not in ("type", "text")]
        unknown += (InitErrorDetails(type="extra_forbidden", loc=(index, each), input=part[each]) for each in extra)
    if unknown:
        raise ValidationError.from_exception_data("TextParts", unknown)
    return "\n".join(texts)


def wrong_part(index: int) -> PydanticCustomError:
    text = 'must be {"type": "text", "text": "…"}'
    return PydanticCustomError("wrong_field", "{text}", {"at": (index,), "text": text})


def _bias(value: Any) -> Any:
    """Converts token ids: as JSON object keys they arrive as decimal strings."""
    if not isinstance(value, dict):
        return value
    for key in value:
        if not (isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 11):
            text = f"has the key {key[:40]!r}: keys are token ids, written as decimal numbers"
            raise PydanticCustomError("wrong_field", "{text}", {"text": text})
    biases = {int(key): bias for key, bias in value.items()}
    if len(biases) < len(value):
        twice = next(id for id, count in Counter(map(int, value)).items() if count > 1)
        raise PydanticCustomError("wrong_field", "{text}", {"text": f"has two keys for the token {twice}: send one"})
    return biases


TextParts = Annotated[
    str,
    BeforeValidator(_joined_parts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        "required": ["type", "text"],
                    },
                },
            ]
        }
    ),
]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stops = Annotated[list[StopString], Field(max_length=MAX_STOPS)]
StopOrStops = Annotated[
    Stops,
    BeforeValidator(partial(text_or_list, members="strings")),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": MAX_STOPS}]}
    ),
]
LogitBias = Annotated[
    dict[int, Annotated[float, Field(ge=-100, le=100)]],
    BeforeValidator(_bias),
    Field(max_length=MAX_BIASES),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}),
]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
LeastProbability = AfterValidator(lambda value: max(value, LEAST_PROBABILITY))
Greedy = AfterValidator(lambda value: 0.0 if value < LEAST_TEMPERATURE else value)
Temperature = Annotated[float, Field(ge=0, le=100, description="Below 1e-5: greedy."), Greedy]
TopP = Annotated[float, Field(gt=0, le=1), LeastProbability]
TypicalP = Annotated[float, Field(gt=0, le=1), LeastProbability]
MinP = Annotated[float, Field(ge=0, le=1), AfterValidator(lambda value: 0.0 if value < LEAST_PROBABILITY else value)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Repetition = Annotated[float, Field(ge=0.01, le=100)]
Sequences = Annotated[int, Field(ge=1, le=MAX_SEQUENCES)]
ModelReference = Annotated[
    str, Field(min_length=1, max_length=256, description="name, name:version or name@alias; default: the server's.")
]
DeadlineMs = Annotated[int, Field(ge=1, le=DAY_MS, description="Answer within so many milliseconds, or what there is.")]
Priority = Annotated[int, Field(ge=0, le=9, description="9 goes before 0.")]
RequestIdText = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
SessionId = Annotated[
    str, Field(min_length=1, max_length=64, description="A stored session: its history comes before the messages.")
]
CallId = Annotated[str, Field(min_length=1, max_length=128)]
CacheSalt = Annotated[
    str, Field(min_length=1, max_length=1024, description="Prefixes are shared with prompts of the same salt alone.")
]
UserText = Annotated[str, Field(max_length=256, description="Who asks; appears in the server's log.")]

Read = Field(description="What openai-python read from the text beside it, and sends back with it; the text is used.")


def _an_object(value: str) -> str:
    try:
        return whole(value)
    except InvalidRequest:
        text = f"must be a JSON object as text, nested {MOST_LEVELS} levels deep at most"
        raise PydanticCustomError("wrong_field", "{text}", {"text": text}) from None


def _as_text(value: Any) -> Any:
    """Returns the text of arguments that a client sends as an object, or as null for none."""
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else value


JsonObjectText = Annotated[
    str,
    BeforeValidator(_as_text, json_schema_input_type=str | dict[str, Any] | None),
    AfterValidator(_an_object),
    Field(description='Empty text: no members. An object that was cut, or is no JSON: sent as {"INVALID_JSON": text}.'),
]


class SamplingFields(Wire):
    """The parameters of sampling whose values are the same in the native dialect and in OpenAI's."""

    min_p: MinP | None = None
    typical_p: TypicalP | None = None
    top_n_sigma: Annotated[
        float | None, Field(ge=0, le=100, description="Standard deviations of the logits below the largest; 0: off.")
    ] = None
    repetition_penalty: Repetition | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None


class FunctionCallFields(Wire):
    """`arguments` is a JSON object as text; empty text is an object without members."""

    later: ClassVar[dict[str, Absent]] = {"description": NOTHING}
    name: Annotated[str, Field(min_length=1, max_length=128)]
    arguments: JsonObjectText
    parsed_arguments: Annotated[Any, Read] = None


class ToolCallFields(Wire):
    """A tool call of the model, as OpenAI's clients send it back."""

    id: CallId
    type: Literal["function"] = "function"
    function: FunctionCallFields
    index: Annotated[int | None, Field(ge=0, description="The call's place in the answer that it is from.")] = None

    def call(self) -> ToolCall:
        return ToolCall(self.id, self.function.name, self.function.arguments)


class ChatMessage(Wire):
    """One message. `content` is a string or text parts; an assistant's or a tool's message may have none. In a tool's
    message `tool_call_id` names the call that it is the result of."""

    later: ClassVar[dict[str, Absent]] = dict.fromkeys(("function_call", "refusal", "audio", "annotations"), NOTHING)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: TextParts | None = None
    name: Annotated[str, Field(max_length=64)] | None = None
    reasoning_content: Annotated[
        str | None, Field(description="What an earlier answer's model wrote for itself; it is not sent again.")
    ] = None
    reasoning: Annotated[str | None, Field(description="vLLM's newer name of `reasoning_content`.")] = None
    tool_calls: Annotated[list[ToolCallFields], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = None
    tool_call_id: CallId | None = None
    parsed: Annotated[Any, Read] = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_functions(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("role") == "function":
            raise unsupported("role", "function is an older form: use tool, with the tool_call_id of its call")
        return data

    @model_validator(mode="after")
    def _agree(self) -> ChatMessage:
        if self.tool_calls and self.role != "assistant":
            raise wrong("tool_calls", "are an assistant's: remove them from this message")
        if (self.role == "tool") != (self.tool_call_id is not None):
            missing = "is missing: name the call that this is the result of"
            raise wrong("tool_call_id", missing if self.role == "tool" else "is a tool's: remove it from this message")
        for field in ("reasoning_content", "reasoning"):
            if getattr(self, field) and self.role != "assistant":
                raise wrong(field, "is an assistant's: remove it from this message")
        if self.reasoning and self.reasoning_content and self.reasoning != self.reasoning_content:
            raise wrong("reasoning", "is another name of reasoning_content: send one of them")
        if self.content is None and self.role not in ("assistant", "tool"):
            raise wrong("content", "is missing: add it")
        return self

    @property
    def reasoning_text(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    def message(self) -> Message:
        """Returns the domain's message. `developer` is OpenAI's newer word for `system`. A call without text has the
        empty text."""
        role = "system" if self.role == "developer" else self.role
        calls = tuple(each.call() for each in self.tool_calls or ())
        return Message(role, self.content or "", self.name, calls, self.tool_call_id, self.reasoning_text)


class DocumentText(Wire):
    """A text that the answer may rest on; rank is its position."""

    text: str
    title: Annotated[str, Field(max_length=1024)] | None = None
    id: Annotated[str, Field(max_length=256)] | None = None

    def document(self) -> Document:
        return Document(self.text, self.title, self.id)


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
Documents = Annotated[list[DocumentText], Field(max_length=MAX_DOCUMENTS, fail_fast=True)]


class ContextFields(Wire):
    """How the prompt is fitted into the window. `refuse`, the default, refuses what does not fit, with the numbers;
    `window` leaves the oldest turns out; `middle` leaves out the turns behind the first, and the middle of an overlong
    question; `summarise` puts a summary in their place, `retrieve` those old turns that match the question. `pin`:
    messages that stay, `m_0`, `m_1`, … by position. `inspect`: the receipt also lists every message with what became
    of it and why, and the prompt token by token."""

    policy: Literal["refuse", "window", "middle", "summarise", "retrieve"] | None = None
    max_input_tokens: Tokens | None = None
    reserve_output_tokens: TokenId | None = None
    documents_budget: TokenId | None = None
    recall_budget: TokenId | None = None
    summary_budget: TokenId | None = None
    knowledge: bool | None = None
    low_water: Annotated[float, Field(gt=0, lt=1)] | None = None
    pin: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=MOST_PINS)] = []
    inspect: bool | None = None

    @model_validator(mode="after")
    def _fit_the_policy(self) -> ContextFields:
        """A policy that is not the request's own leaves a note in the receipt instead."""
        unread = self.options().unread if self.policy is not None else ()
        if unread:
            readers = ", ".join(READERS[unread[0]])
            raise unsupported(unread[0], f"cannot act with policy {self.policy}: remove it, or choose {readers}")
        return self

    def options(self) -> ContextOptions:
        fields = self.model_dump(exclude={"pin", "inspect"})
        return ContextOptions(**fields, pin=tuple(self.pin), inspect=bool(self.inspect))


MAX_INPUTS: Final = 2048
MAX_DIMENSIONS: Final = 65536
Dimensions = Annotated[int, Field(ge=1, le=MAX_DIMENSIONS, description="The first so many numbers, normalized again.")]
