"""A span shows an exchange, HTTP's request and response, to a trace: attributes by OpenTelemetry's conventions for HTTP
servers, and for generative AI (`gen_ai.*`), with our own facts beside them (`dosirak.*`). It holds no address, no
header and no body, only numbers and names: never a text that a client wrote or a model said.

https://github.com/open-telemetry/semantic-conventions-genai
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from operator import itemgetter
from typing import Any, Final

from starlette.types import Scope

from service.api.answering.notes import Generation
from service.context.prompt import Chat
from service.context.receipt import Receipt
from service.generation.answer import Answer
from service.generation.request import GenerationRequest
from service.observability.metrics import METHODS
from service.observability.tracing import Attributes, Event, Facts, Span, TraceContext

PROVIDER: Final = "dosirak"
PARTS: Final = ("template", "system", "documents", "summary", "history", "current")
ALWAYS: Final = tuple(f"dosirak.context.{name}_tokens" for name in ("used", "reserved_output", "free"))
COUNTED: Final = (
    "dosirak.context.dropped_tokens",
    *(f"dosirak.context.{fate}_messages" for fate in ("kept", "dropped", "summarised", "recalled")),
    *(f"dosirak.context.{part}_tokens" for part in PARTS),
)
"""Counts that are left out where they are 0."""


def generation_attributes(generation: Generation) -> dict[str, Any]:
    """Returns what is known; counts are sums over all answers. Where no answer began, that is what the client asked
    for."""
    answers = generation.opening.answers
    request = answers[0].request if answers else generation.requests[0]
    known = {**_answered(answers), **_served(answers), **_receipt(answers)} if answers else {}
    return {**_requested(request, len(generation.requests)), "gen_ai.request.stream": generation.is_streamed, **known}


def _requested(request: GenerationRequest, prompts: int) -> dict[str, Any]:
    """Returns the parameters. Stop strings are a client's words, and so is the name of a model that is not there."""
    is_chat = request.turn is not None or isinstance(request.source, Chat)
    sampling, choices = request.sampling, request.n * prompts
    optional = {
        "gen_ai.request.max_tokens": request.max_new_tokens,
        "gen_ai.request.seed": request.seed,
        "gen_ai.request.top_k": sampling.top_k or None,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
        "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
        "gen_ai.request.choice.count": choices if choices > 1 else None,
    }
    return {
        "gen_ai.operation.name": "chat" if is_chat else "text_completion",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.output.type": "text",
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        **_known(optional),
    }


def _answered(answers: Sequence[Answer]) -> dict[str, Any]:
    first, usage = answers[0], [answer.usage() for answer in answers]
    reasons = [each.finish_reason for answer in answers for each in answer.best]
    return {
        "gen_ai.request.model": first.request.model or first.manifest.name,
        "gen_ai.request.max_tokens": first.max_new_tokens,
        "gen_ai.response.id": first.request.id,
        "gen_ai.response.model": first.manifest.reference,
        "gen_ai.response.finish_reasons": [reason.value if reason else "abort" for reason in reasons],
        "gen_ai.usage.input_tokens": sum(each["prompt_tokens"] for each in usage),
        "gen_ai.usage.output_tokens": sum(each["completion_tokens"] for each in usage),
        "gen_ai.usage.cache_read.input_tokens": sum(each["cached_tokens"] for each in usage),
    }


def _served(answers: Sequence[Answer]) -> dict[str, Any]:
    first = answers[0]
    ttft = None if first.first_at is None else first.first_at - first.request.arrival
    return {
        "dosirak.model.version": first.manifest.version,
        "dosirak.model.digest": first.manifest.digest,
        **_known(
            {
                "gen_ai.response.time_to_first_chunk": ttft,
                "dosirak.queue_seconds": first.queue_seconds,
                "dosirak.prefill_seconds": first.prefill_seconds,
            }
        ),
    }


def _receipt(answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns the receipt's numbers: tokens of the window, and messages of the chat. What there was nothing of is left
    out: most chats drop nothing and have two of the six parts, and each attribute costs processor time."""
    receipts = [answer.prompt.receipt for answer in answers]
    sums = [sum(column) for column in zip(*map(_numbers, receipts), strict=True)]
    counted = zip(COUNTED, sums[len(ALWAYS) :], strict=True)
    return {
        "dosirak.context.policy": receipts[0].policy,
        "dosirak.context.window_tokens": receipts[0].window,
        "dosirak.context.truncated": any(receipt.truncated for receipt in receipts),
        **dict(zip(ALWAYS, sums, strict=False)),
        **{name: count for name, count in counted if count},
    }


def _numbers(receipt: Receipt) -> tuple[int, ...]:
    """Returns what ALWAYS and COUNTED name."""
    counts, parts = receipt.counts, receipt.parts
    window = (receipt.used, receipt.reserved_output, receipt.free, receipt.dropped_tokens)
    messages = (counts.kept, counts.dropped, counts.summarised, len(receipt.recalled))
    return (*window, *messages, *(getattr(parts, part) for part in PARTS))


def events_of(generation: Generation) -> Iterator[tuple[str, float]]:
    """Yields each stage that an answer reached, and when, as a point of `time.monotonic()`."""
    for answer in generation.opening.answers:
        yield "admitted", answer.admitted_at
        if answer.queue_seconds is not None:
            yield "first_step", max(answer.admitted_at, answer.request.arrival + answer.queue_seconds)
        for moment in answer.replayed_at:
            yield "replayed", moment
        if answer.first_at is not None:
            yield "first_token", answer.first_at
        if answer.stored_at is not None:
            yield "stored", answer.stored_at


def _known(optional: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in optional.items() if value is not None}


OTHER_METHOD: Final = "_OTHER"
CLIENT_DISCONNECTED: Final = "client_disconnected"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response, once both have ended. `started` is a point of `time.monotonic()`; `logged` are the
    fields of its log line; `is_gone`: the client left before the end."""

    scope: Scope
    route: str | None
    status: int
    is_gone: bool
    started: float
    logged: Mapping[str, Any]
    parent: TraceContext | None


def span_of(exchange: Exchange) -> Span:
    """Returns the span, which ends now. Its name has no more values than there are methods and routes."""
    end_ns, now = time.time_ns(), time.monotonic()

    def at_ns(moment: float) -> int:
        return end_ns - round((now - moment) * 1e9)

    method = exchange.scope["method"]
    name = " ".join([method if method in METHODS else "HTTP", *([exchange.route] if exchange.route else [])])
    return Span(name, exchange.parent, at_ns(exchange.started), end_ns, lambda: _facts(exchange, at_ns))


def _facts(exchange: Exchange, at_ns: Callable[[float], int]) -> Facts:
    state = exchange.scope["state"]
    generation: Generation | None = state.get("generation")
    attributes: dict[str, Any] = {**_http(exchange), "dosirak.request_id": state["request_id"]}
    events: list[Event] = []
    if generation is not None:
        attributes |= generation_attributes(generation)
        attributes["dosirak.idempotent_replayed"] = bool(exchange.logged.get("replayed"))
        reached = sorted(events_of(generation), key=itemgetter(1))
        events = [Event(name, at_ns(moment)) for name, moment in reached]
    return Facts(attributes, events, _failure(exchange))


def _http(exchange: Exchange) -> Attributes:
    scope = exchange.scope
    method, error = scope["method"], _error(exchange)
    return {
        "http.request.method": method if method in METHODS else OTHER_METHOD,
        "http.response.status_code": exchange.status,
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
        **({"http.route": exchange.route} if exchange.route else {}),
        **({"error.type": error} if error else {}),
    }


def _error(exchange: Exchange) -> str | None:
    """Returns why the client did not get what it asked for: our error code, or that it left."""
    code: str | None = exchange.logged.get("code")
    if code is None and exchange.is_gone:
        return CLIENT_DISCONNECTED
    return code or (str(exchange.status) if exchange.status >= HTTPStatus.INTERNAL_SERVER_ERROR else None)


def _failure(exchange: Exchange) -> str | None:
    """Returns why the server failed. A refusal (4xx) is the client's, and so is leaving; an error behind the headers of
    a stream is the server's."""
    refused = HTTPStatus.BAD_REQUEST <= exchange.status < HTTPStatus.INTERNAL_SERVER_ERROR
    return None if refused else _error(exchange)
