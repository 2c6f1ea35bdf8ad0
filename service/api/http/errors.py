"""This module maps errors to bodies in every dialect, in one table, and words the refusals of fields. A path decides
the dialect: a client's own where its prefix is listed, OpenAI's where OpenAI has the route, else the native one.

dialect    status                body
native     the error's own       {"error": sentence, "code", "error_type", "request_id", ...numbers}
OpenAI     400 where it is 422   {"error": {"message", "type", "param", "code"}}
Triton     400 where it is 422   {"error": sentence}
Ollama     400 where it is 422   {"error": sentence}
Anthropic  400 where it is 422   {"type": "error", "error": {"type", "message", "param", "code"}, "request_id"}"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from pydantic_core import ErrorDetails
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from service.api.http.encoding import json_response
from service.errors import ContextOverflow, DosirakError, InvalidRequest, Number, UnsupportedField


class ErrorDialect(StrEnum):
    """The words of an error's body; `api.http.errors` writes them."""

    NATIVE = "native"
    OPENAI = "openai"
    RESPONSES = "responses"
    """OpenAI's body, and the names of its responses."""
    TRITON = "triton"
    OLLAMA = "ollama"
    ANTHROPIC = "anthropic"


PREFIXES: Final = {
    "/v2": ErrorDialect.TRITON,
    "/api": ErrorDialect.OLLAMA,
    "/v1/messages": ErrorDialect.ANTHROPIC,
    "/v1/responses": ErrorDialect.RESPONSES,
}
"""Paths that belong to one dialect with everything below them, also where this server lacks the route."""
SHARED: Final = "/v1/models"
"""A path that OpenAI and Anthropic both have; a header tells their clients apart."""
OURS_UNDER_V1: Final = (
    "/v1/sessions",
    "/v1/context",
    "/v1/repository",
    "/v1/jobs",
    "/v1/deployments",
    "/v1/instances",
    "/v1/keys",
    "/v1/batching",
    "/v1/live",
    "/v1/profiles",
    "/v1/audit",
    "/v1/usage",
    "/v1/feedback",
    "/v1/knowledge",
)


def error_dialect(path: str, is_anthropic: bool = False) -> ErrorDialect:
    """Returns the dialect of a path's errors. `/v1/*` except our own resources is OpenAI's: a client that uses a `/v1`
    path which this server lacks expects OpenAI's error. `is_anthropic`: the request says that its client is
    Anthropic's."""
    if is_anthropic and _below(path, SHARED):
        return ErrorDialect.ANTHROPIC
    for prefix, dialect in PREFIXES.items():
        if _below(path, prefix):
            return dialect
    if path.startswith("/v1/") and not any(_below(path, prefix) for prefix in OURS_UNDER_V1):
        return ErrorDialect.OPENAI
    return ErrorDialect.NATIVE


def _below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")


INTERNAL_MESSAGE: Final = "The server failed on this request; the log has the reason under the request id"
OPENAI_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
ANTHROPIC_VERSION: Final = "anthropic-version"
"""Anthropic's clients send this header with every request."""
ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
NAMES: Final[Mapping[ErrorDialect, Mapping[str, str]]] = {
    ErrorDialect.NATIVE: {},
    ErrorDialect.OPENAI: {"inputs": "prompt", "input_ids": "prompt", "max_new_tokens": "max_tokens"},
    ErrorDialect.RESPONSES: {"messages": "input", "max_new_tokens": "max_output_tokens"},
    ErrorDialect.TRITON: {},
    ErrorDialect.OLLAMA: {
        "send `inputs` instead": "send /api/generate a `prompt` with `raw` true",
        "inputs": "prompt",
        "max_new_tokens": "options.num_predict",
        "max_window": "options.num_ctx",
    },
    ErrorDialect.ANTHROPIC: {
        "max_new_tokens": "max_tokens",
        ".function.parameters": ".input_schema",
    },
}
"""A dialect's names of fields that the layers below name in our words, as an error's `fields` say; an earlier name is
replaced first."""
RULES: Final = {
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "greater_than": "must be above {gt}",
    "less_than": "must be below {lt}",
    "too_short": "must have at least {min_length} item(s)",
    "too_long": "must have at most {max_length} item(s)",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
"""Pydantic's kinds of errors in plain words; its own sentence is kept for the others."""
UNSUPPORTED: Final = "unsupported_field"
_OVERFLOW: Final = "This model's maximum context length is {most} tokens."
"""OpenAI's own sentence: litellm and others that cut a chat and try again know the error by it, not by its code."""


class Internal(DosirakError):
    """A defect of this service. The body only says where to look."""

    def __init__(self) -> None:
        super().__init__(INTERNAL_MESSAGE)


def dialect_of(scope: Scope) -> ErrorDialect:
    """Returns the dialect of a request's errors."""
    return error_dialect(scope["path"], ANTHROPIC_VERSION in Headers(scope=scope))


def status_of(error: DosirakError, dialect: ErrorDialect) -> int:
    return 400 if dialect is not ErrorDialect.NATIVE and error.status == 422 else error.status


def body_of(error: DosirakError, request_id: str, dialect: ErrorDialect) -> dict[str, Any]:
    """Returns the body in the dialect; a stream that fails ends with the same."""
    message, param = (_renamed(text, error.fields, dialect) for text in (error.message, error.param or ""))
    if dialect in (ErrorDialect.TRITON, ErrorDialect.OLLAMA):
        return {"error": message}
    if dialect is ErrorDialect.ANTHROPIC:
        return {"type": "error", "error": _anthropic(error, message, param or None), "request_id": request_id}
    if dialect in (ErrorDialect.OPENAI, ErrorDialect.RESPONSES):
        return {"error": _openai(error, message, param or None)}
    fixed = {"error": message, "code": error.code, "error_type": error.error_type, "request_id": request_id}
    return {**fixed, **error.numbers}


def _renamed(text: str, fields: Sequence[str], dialect: ErrorDialect) -> str:
    for ours, theirs in NAMES[dialect].items():
        if any(each in ours for each in fields):
            text = text.replace(ours, theirs, 1)
    return text


def _needed_and_most(error: DosirakError) -> tuple[Number, Number] | None:
    """Returns how many tokens the request is, and the most that it may be: for the window, or for its own budget.
    Returns None for all but a prompt that is too long. Documents that pass their budget are none: a client that cuts
    its chat would get the same error again."""
    numbers = error.numbers
    if not isinstance(error, ContextOverflow) or not numbers or "documents_budget" in numbers:
        return None
    if "max_input_tokens" in numbers:
        return numbers["prompt_tokens"], numbers["max_input_tokens"]
    return numbers["needed_tokens"], numbers["window"]


def _openai(error: DosirakError, message: str, param: str | None) -> dict[str, str | None]:
    if (told := _needed_and_most(error)) is not None:
        message = f"{_OVERFLOW.format(most=told[1])} {message}"
    kind = OPENAI_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"message": message, "type": kind, "param": param, "code": _code_of(error)}


def _code_of(error: DosirakError) -> str:
    """Returns the code of `/v1`."""
    return "context_length_exceeded" if isinstance(error, ContextOverflow) else error.code


def _anthropic(error: DosirakError, message: str, param: str | None) -> dict[str, str | None]:
    """`param` and `code` are ours: Anthropic's clients pass over them. Agents know by its first words that a prompt is
    too long, and shorten the chat by its numbers."""
    kind = ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    if (told := _needed_and_most(error)) is not None:
        message = f"prompt is too long: {told[0]} tokens > {told[1]} maximum. {message}"
    return {"type": kind, "message": message, "param": param, "code": _code_of(error)}


def headers_of(error: DosirakError) -> dict[str, str]:
    """Returns `Retry-After` in whole seconds wherever a retry can help."""
    if not error.retryable and error.retry_after is None:
        return {}
    return {"Retry-After": str(max(1, math.ceil(error.retry_after or 1)))}


def response_of(
    error: DosirakError, request_id: str, dialect: ErrorDialect, headers: Mapping[str, str] | None = None
) -> Response:
    shown = {**headers_of(error), **(headers or {})}
    return json_response(body_of(error, request_id, dialect), status=status_of(error, dialect), headers=shown)


def refusal_about(detail: ErrorDetails) -> InvalidRequest:
    """Returns a wrong field as one sentence: its name and what to change."""
    kind, context = detail["type"], detail.get("ctx", {})
    field = field_name([*detail["loc"], *context.get("at", ())])
    if kind == UNSUPPORTED:
        return UnsupportedField(f"`{field}` {context['why']}", param=field)
    if kind == "extra_forbidden":
        where = f"at this place: send it as `{context['home']}`" if "home" in context else ""
        advice = where or "of this request: check its spelling, or remove it"
        return UnsupportedField(f"`{field}` is not a field {advice}", param=field)
    if kind == "missing":
        return InvalidRequest(f"`{field}` is missing: add it", param=field)
    text = _rule(detail)
    return InvalidRequest(f"`{field}` {text}" if field else text[:1].upper() + text[1:], param=field or None)


def _rule(detail: ErrorDetails) -> str:
    """Returns what the field must be, in words that a caller can act on."""
    bounds = {
        name: f"{value:g}" if isinstance(value, float) else value for name, value in detail.get("ctx", {}).items()
    }
    rule = RULES.get(detail["type"])
    if rule is not None:
        return rule.format(**bounds)
    text = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return text.replace("should be", "must be", 1)


def field_name(location: Sequence[int | str]) -> str:
    """Returns `parameters.stop[3]` for ("parameters", "stop", 3)."""
    name = ""
    for part in location:
        if is_hidden(part):
            continue
        name += f"[{part}]" if isinstance(part, int) else f".{part[:80]}" if name else part[:80]
    return name


def hidden(tag: str) -> str:
    """Returns the name of a choice between models; `is_hidden` keeps it out of the names of fields."""
    return f"<{tag}>"


def is_hidden(part: int | str) -> bool:
    return isinstance(part, str) and part[:1] == "<" and part[-1:] == ">"
