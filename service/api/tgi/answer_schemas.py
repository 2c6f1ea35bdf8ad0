"""These models describe answers of the native dialect, TGI's as a superset, of Triton's, of tokenizing and of the
context preview."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, RootModel

from service.api.shared.answer_schemas import CalledTool, FinishReason, GuardFinding, Receipt, Shown, Timings, Usage

TgiReason = Literal["length", "eos_token", "stop_sequence"]


class TokenShown(Shown):
    """`logprob` is null where the request does not want it. `id` is null in an event without a token: a deadline's
    end."""

    id: int | None
    text: str
    logprob: float | None
    special: bool


class PromptToken(Shown):
    """`logprob` is null for the first token: nothing stands before it."""

    id: int
    text: str
    logprob: float | None


class SequenceDetails(Shown):
    finish_reason: TgiReason
    generated_tokens: int
    seed: int
    tokens: list[TokenShown]
    prefill: list[PromptToken]
    top_tokens: list[list[TokenShown]] | None = None


class OtherSequence(SequenceDetails):
    generated_text: str


class Details(SequenceDetails):
    """TGI's details. `prefill` has the prompt's tokens where the request sets `decoder_input_details`."""

    best_of_sequences: list[OtherSequence] | None = None


class GenerateAnswer(Shown):
    """`reasoning` is what the model wrote for itself before its answer. With `n` above 1 `generated_texts` has all
    answers, the first of them first."""

    generated_text: str
    reasoning: str | None = None
    id: str
    model: str
    version: str
    digest: str
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    context: Receipt
    session_id: str | None = None
    tool_calls: list[CalledTool] | None = None
    guard: list[GuardFinding] | None = None
    generated_texts: list[str] | None = None
    details: Details | None = None


class ChoiceToken(Shown):
    id: int
    text: str
    logprob: float


class ScoredText(Shown):
    """`logprob` is the sum over its tokens; `probability` its share among the choices."""

    text: str
    logprob: float
    probability: float
    tokens: list[ChoiceToken]


class ChoicesAnswer(Shown):
    """`choice` is the likeliest of `choices`, which have the request's order."""

    choice: str
    choices: list[ScoredText]
    id: str
    model: str
    version: str
    digest: str
    usage: Usage
    timings: Timings
    context: Receipt


class TritonAnswer(Shown):
    model_name: str
    model_version: str
    text_output: str


class StreamDetails(Shown):
    finish_reason: TgiReason
    generated_tokens: int
    input_length: int
    seed: int


class TokenEvent(Shown):
    """One token. All fields from `generated_text` on are null or absent except in the last event. A failure is an event
    named `error` with the error body."""

    index: int
    token: TokenShown
    reasoning: str | None = None
    generated_text: str | None
    details: StreamDetails | None
    top_tokens: list[TokenShown] | None = None
    id: str | None = None
    model: str | None = None
    version: str | None = None
    digest: str | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    context: Receipt | None = None
    session_id: str | None = None
    tool_calls: list[CalledTool] | None = None
    guard: list[GuardFinding] | None = None


class GenerateEvent(RootModel[TokenEvent | TritonAnswer]):
    """The data of one event; in Triton's shape where the body has `text_input`."""


class Preview(Shown):
    """`context` is null where the call would be refused; then the refusal's sentence, code and numbers stand beside
    it."""

    model_config = ConfigDict(extra="allow")
    model: str
    version: str
    digest: str
    would_refuse: bool
    context: Receipt | None
    error: str | None = None
    code: str | None = None


class TextToken(Shown):
    """`start` and `stop` are positions in the text, in characters."""

    id: int
    text: str
    start: int
    stop: int


class TokenizeCount(Shown):
    count: int
    max_model_len: int
    tokens: list[int]


class Detokenized(Shown):
    prompt: str


class TokenizerInfo(Shown):
    """The files' own values; null where no file says. `model_max_length`: tokens."""

    tokenizer_class: str | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None
    model_max_length: int | None


class ChatTokens(Shown):
    tokenize_response: list[TextToken]
    templated_text: str
