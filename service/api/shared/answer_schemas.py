"""These models describe what several answers share: usage, timings, the context receipt, guard findings, pages."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Object = dict[str, Any]
FinishReason = Literal["stop", "length", "deadline", "error", "content_filter"]
FinishDetail = Literal["deadline", "error"]
Precision = Annotated[str, Field(description="fp32, bf16, int8, int8-weight, llm-int8, int4 or file.")]


class Shown(BaseModel):
    """An answer has these fields and no others; fields with a default may be absent."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Page(Shown, Generic[Item]):
    """`next_cursor` is null on the last page."""

    data: list[Item]
    next_cursor: str | None


class Usage(Shown):
    """Exact counts. `completion_tokens`: every sampled token of every sequence, with end tokens and stop strings.
    `cached_tokens`: prompt tokens that the prefix cache had. `reasoning_tokens`: sampled tokens of a reasoning part;
    absent where the answer cannot have one."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    prompt_tokens_before_truncation: int
    reasoning_tokens: int | None = None


class Timings(Shown):
    """Milliseconds; null where there was no token. `tokens_per_second`: the tokens after the first, divided by their
    time. `batch_size_mean`: mean number of sequences in the steps of this answer. `replayed`: how often another engine
    process took the answer over because its own had died; not there otherwise."""

    queue_ms: float | None
    prefill_ms: float | None
    ttft_ms: float | None
    decode_ms: float | None
    total_ms: float | None
    tokens_per_second: float | None
    batch_size_mean: float | None
    replayed: int | None = None


class Parts(Shown):
    template: int
    system: int
    documents: int
    summary: int
    history: int
    current: int
    tools: int | None = None


class Cut(Shown):
    """The first of the newest messages that are sent, and the number of tokens for which the next turns keep this cut.
    `at` of a stored receipt is null once that message is deleted."""

    at: str | None
    stable_for_tokens: int


class Counts(Shown):
    """How many messages there are of each kind; the lists of ids may name fewer."""

    kept: int
    dropped: int
    summarised: int


class KeptDocuments(Shown):
    """Ids of documents; `cut` are the ids of `kept` that were not sent whole."""

    kept: list[str]
    dropped: list[str]
    cut: list[str] | None = None


class InspectedMessage(Shown):
    """One message of the chat, or a document, a summary, passages of the knowledge base, a raw prompt: `role` is then
    that word. `tokens` are those of its texts, without the template's."""

    id: str | None
    role: str
    tokens: int
    state: Literal["kept", "dropped", "summarised", "recalled"]
    why: str


class RenderedToken(Shown):
    """`text` is what the token adds to the text before it; all texts join to the prompt. `message` is an index into
    `messages`, null for the template's own tokens."""

    id: int
    text: str
    message: int | None


class Receipt(Shown):
    """What the model received of a chat. `parts` sum to `used`; `kept`, `dropped` and `summarised` are message ids.
    `messages`, `rendered` and `unlisted` are there where the request sets `context.inspect`; `unlisted` is how many
    messages that were not sent `messages` leaves out."""

    policy: str
    window: int
    reserved_output: int
    used: int
    free: int
    truncated: bool
    parts: Parts
    kept: list[str]
    dropped: list[str]
    summarised: list[str]
    counts: Counts
    dropped_tokens: int
    cached_tokens: int
    cut: Cut | None
    notes: list[str]
    documents: KeptDocuments | None = None
    recalled: list[str] | None = None
    messages: list[InspectedMessage] | None = None
    rendered: list[RenderedToken] | None = None
    unlisted: int | None = None


class GuardFinding(Shown):
    """How often a rule of the guard found something in the answer."""

    rule: str
    action: Literal["flag", "mask", "stop"]
    count: int


class CalledFunction(Shown):
    """`arguments` is a JSON object as text."""

    name: str
    arguments: str


class CalledTool(Shown):
    id: str
    type: Literal["function"]
    function: CalledFunction


class Status(Shown):
    status: Literal["ok"]
    failing: list[str] | None = None
