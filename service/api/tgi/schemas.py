"""These wire models are the bodies of `POST /generate` and its relatives: TGI's shape as a superset, Triton's by its
key."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, model_validator

from service.api.shared.chat_schemas import (
    Continues,
    ToolChoice,
    Tools,
    fit_a_session,
    fit_continuing,
    fit_generation_prompt,
    one_answer,
)
from service.api.shared.grammar_schemas import GrammarFields
from service.api.shared.schemas import (
    MAX_LOGPROBS,
    MAX_TOKENS,
    Absent,
    ContextFields,
    DeadlineMs,
    Documents,
    Messages,
    ModelReference,
    Priority,
    RequestIdText,
    SamplingFields,
    Sequences,
    SessionId,
    StopOrStops,
    Temperature,
    TokenId,
    Tokens,
    TopP,
    UserText,
    Wire,
    unsupported,
    wrong,
)
from service.engine.protocol.messages import FILTERS, NEUTRAL

MAX_CHOICES = 64
MAX_CHOICE_CHARACTERS = 2048
BESIDE_CHOICES = frozenset({"truncate", "adapter_id"})
"""Parameters that shape the prompt; the others shape a text, and choices have none."""
SOURCES = ("inputs", "messages", "input_ids", "text_input")
PLACELESS: Final = ("details", "decoder_input_details", "top_n_tokens", "return_full_text")
"""Parameters that add to an answer what Triton's shape has no place for."""
WORDS: Final = ("bad_words", "stop_words")
"""Triton's lists of words."""


def without_no_words(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields without the empty strings among Triton's words, and without a list that has no others:
    clients of Triton send those where they want nothing."""
    if fields.keys().isdisjoint(WORDS):
        return fields
    found = dict[str, Any]()
    for name, value in fields.items():
        if name in WORDS:
            value = [each for each in value if each != ""] if isinstance(value, list) else value
            if value in (None, "", []):
                continue
        found[name] = value
    return found


class Parameters(SamplingFields):
    """The parameters of an answer. As in TGI, decoding is greedy unless `do_sample` is true or a field that shapes
    sampling is given (`temperature`, or `top_p`, `typical_p` below 1, `top_k`, `min_p` above 0); `temperature` 0 is
    always greedy."""

    later: ClassVar[dict[str, Absent]] = {
        "watermark": (None, False),
        "bad_words": (None, "", [], [""]),
        "stop_words": (None, "", [], [""]),
    }
    reasons: ClassVar[dict[str, str]] = {
        "watermark": "cannot act: answers get no watermark here; remove it",
        "bad_words": "cannot act: forbid tokens with logit_bias, or texts with a grammar",
        "stop_words": "is Triton's name for stop: send stop",
    }
    max_new_tokens: Tokens | None = None
    max_tokens: Annotated[Tokens | None, Field(description="Another name of `max_new_tokens`.")] = None
    min_new_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    stop: StopOrStops | None = None
    include_stop: bool | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    do_sample: bool | None = None
    n: Sequences | None = None
    best_of: Sequences | None = None
    details: Annotated[
        bool | None, Field(description="decoder_input_details and top_n_tokens ask for them as well.")
    ] = None
    decoder_input_details: bool | None = None
    top_n_tokens: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_full_text: bool | None = None
    truncate: Tokens | None = None
    grammar: GrammarFields | None = None
    ignore_eos: bool | None = None
    adapter_id: Annotated[ModelReference | None, Field(description="TGI's name for an adapter's `model`.")] = None

    @model_validator(mode="before")
    @classmethod
    def _leave_no_words_out(cls, data: Any) -> Any:
        return without_no_words(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _agree(self) -> Parameters:
        if self.max_tokens is not None and self.max_new_tokens is not None:
            raise wrong("max_tokens", "is another name of max_new_tokens: send one of them")
        if self.best_of is not None and self.best_of < (self.n or 1):
            raise wrong("best_of", "must be at least n")
        name, least = self.minimum
        if least > (self.new_tokens or MAX_TOKENS):
            most = "max_new_tokens" if self.max_tokens is None else "max_tokens"
            raise wrong(name, f"must not be larger than {most}")
        return self

    @property
    def new_tokens(self) -> int | None:
        return self.max_tokens if self.max_new_tokens is None else self.max_new_tokens

    @property
    def minimum(self) -> tuple[str, int]:
        """Returns the least number of tokens, and the field that says it, as its client calls it."""
        return "min_new_tokens", self.min_new_tokens or 0

    @property
    def wants_details(self) -> bool:
        """Returns whether the answer has details: what stands nowhere else asks for them too, as in TGI."""
        return bool(self.details or self.decoder_input_details or self.top_n_tokens)

    def fit_triton(self, prefix: str = "") -> None:
        """Raises for what an answer in Triton's shape, of one text, does not show."""
        if (self.n or 1) > 1:
            raise unsupported(f"{prefix}n", "must be 1: an answer in Triton's shape has one text")
        for name in PLACELESS:
            if getattr(self, name):
                raise unsupported(
                    f"{prefix}{name}",
                    "adds what an answer in Triton's shape has no place for: ask /generate with inputs",
                )

    @property
    def samples(self) -> bool:
        shaping = (getattr(self, name) not in (None, NEUTRAL[name]) for name in FILTERS)
        return bool(self.do_sample) or self.temperature is not None or any(shaping)


class GenerationFields(Wire):
    """The fields of every native body that generates."""

    parameters: Parameters = Field(default_factory=Parameters)
    stream: bool = False
    context: ContextFields | None = None
    priority: Priority = 0
    deadline_ms: DeadlineMs | None = None

    @model_validator(mode="before")
    @classmethod
    def _absent_parameters(cls, data: Any) -> Any:
        """Drops nulls: TGI's clients send `"parameters": null` where there are none, and `"stream": null`."""
        if isinstance(data, dict):
            return {
                key: value for key, value in data.items() if value is not None or key not in ("parameters", "stream")
            }
        return data


class GenerateBody(GenerationFields):
    """Exactly one of `inputs`, `messages`, `input_ids`, `text_input`."""

    session_id: SessionId | None = None
    inputs: str | None = None
    messages: Messages | None = None
    input_ids: Annotated[list[TokenId], Field(min_length=1, fail_fast=True)] | None = None
    text_input: Annotated[str | None, Field(description="Triton's key; the answer is in Triton's shape.")] = None
    model: ModelReference | None = None
    documents: Documents | None = None
    request_id: RequestIdText | None = None
    user: UserText | None = None
    continue_final_message: Continues = False
    choices: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_CHARACTERS)]] | None,
        Field(min_length=1, max_length=MAX_CHOICES, description="Texts whose probabilities are the answer."),
    ] = None

    @property
    def reference(self) -> str | None:
        return self.model or self.parameters.adapter_id

    @model_validator(mode="after")
    def _one_model(self) -> GenerateBody:
        if self.model is not None and self.parameters.adapter_id not in (None, self.model):
            raise wrong("parameters.adapter_id", "is another name of model: send one of them")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> GenerateBody:
        sources = [name for name in SOURCES if getattr(self, name) is not None]
        if len(sources) != 1:
            names = " and ".join(sources) or "none"
            raise wrong("inputs", f"or messages, input_ids or text_input: send exactly one of them (found {names})")
        if self.continue_final_message:
            fit_continuing(self.messages)
        if self.session_id is not None:
            fit_a_session(self.messages, self.continue_final_message)
            one_answer(self.parameters.n or 1, "parameters.n")
            one_answer(self.parameters.best_of or 1, "parameters.best_of")
        if self.documents and self.messages is None:
            raise unsupported("documents", "are placed by the chat template: send messages")
        if self.text_input is not None:
            self.parameters.fit_triton("parameters.")
        if self.parameters.return_full_text and self.inputs is None:
            raise unsupported("parameters.return_full_text", "needs inputs: there is no other text to return")
        return self

    @model_validator(mode="after")
    def _choices_are_alone(self) -> GenerateBody:
        if self.choices is None:
            return self
        parameters = self.parameters.model_dump(exclude_defaults=True).keys() - BESIDE_CHOICES
        named = [name for name in ("session_id", "text_input") if getattr(self, name) is not None]
        named += ["stream"] if self.stream else []
        if beside := [*named, *(f"parameters.{name}" for name in sorted(parameters))]:
            raise unsupported(beside[0], "cannot act beside choices, which are answered without a text: remove it")
        return self


class RegenerateBody(GenerationFields):
    """The parameters for answering the last question again, and the tools: a session keeps none."""

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _fits(self) -> RegenerateBody:
        parameters = self.parameters
        one_answer(parameters.n or 1, "parameters.n")
        one_answer(parameters.best_of or 1, "parameters.best_of")
        if parameters.adapter_id is not None:
            raise unsupported("parameters.adapter_id", "cannot act: the session says which model answers")
        if parameters.return_full_text:
            raise unsupported("parameters.return_full_text", "needs inputs: there is no other text to return")
        return self


class TokenizeBody(Wire):
    """Its key decides the answer: `inputs` gives TGI's, `prompt` or `messages` vLLM's. The template places `tools` as
    for an answer; `strict` of a tool is no token."""

    inputs: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    model: ModelReference | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: Continues = False
    tools: Tools | None = None

    @model_validator(mode="after")
    def _ends_agree(self) -> TokenizeBody:
        if self.continue_final_message:
            fit_generation_prompt(True, "add_generation_prompt" in self.model_fields_set and self.add_generation_prompt)
            fit_continuing(self.messages)
        return self

    @model_validator(mode="after")
    def _one_source(self) -> TokenizeBody:
        if sum(value is not None for value in (self.inputs, self.prompt, self.messages)) != 1:
            raise wrong("inputs", "or prompt or messages: send exactly one of them")
        if self.messages is None and not self.add_generation_prompt:
            raise unsupported("add_generation_prompt", "is about a chat: send messages, or remove it")
        if self.messages is None and self.tools:
            raise unsupported("tools", "are about a chat: send messages, or remove them")
        if self.messages is not None and not self.add_special_tokens:
            raise unsupported(
                "add_special_tokens", "cannot act: a chat's template writes its special tokens; remove it"
            )
        return self


class DetokenizeBody(Wire):
    """Token ids to turn into text. Control tokens are shown, so that the text gives the same ids again."""

    tokens: list[TokenId]
    model: ModelReference | None = None
    skip_special_tokens: bool = False


class ChatTokenizeBody(Wire):
    messages: Messages
    model: ModelReference | None = None
    documents: Documents | None = None
