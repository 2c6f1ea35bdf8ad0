"""This module makes `/openapi.json` from the routes and the wire models, with errors as the service words them."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from service.api.http.documented import NAMED, REFERENCE, TEXT
from service.api.http.errors import ErrorDialect, Internal, body_of, error_dialect
from service.api.openapi.operation_facts import add_facts
from service.errors import (
    Conflict,
    DeadlineExceeded,
    DosirakError,
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    RateLimited,
    Stale,
    StorageFull,
    TooLarge,
    Unauthorized,
    UnsupportedMediaType,
)

_ERRORS: Final[tuple[DosirakError, ...]] = (
    InvalidRequest("`temperature` must be at most 2", param="temperature"),
    Unauthorized("Send the server's key as the header Authorization: Bearer …, or as X-Api-Key"),
    Forbidden("This needs a key with the scope admin: send another key, or have the scope added"),
    NotFound("There is no model 'demo:9'", param="model"),
    MethodNotAllowed("This route takes GET or HEAD, not POST"),
    Conflict("There is a model of that name already: choose another"),
    Stale("Somebody else changed it first: read it again"),
    TooLarge("The body is larger than 1048576 bytes: send less"),
    UnsupportedMediaType("Send JSON as UTF-8, with Content-Type: application/json"),
    RateLimited("Too many requests at a time: try again when Retry-After has passed"),
    Internal(),
    Overloaded("The server is at capacity: try again when Retry-After has passed"),
    DeadlineExceeded("`deadline_ms` passed before the first token"),
    StorageFull("The server's disk is full: try again when the operator has made room"),
)
_BY_STATUS: Final = {400: _ERRORS[0]} | {error.status: error for error in _ERRORS}


def error_example(status: int, dialect: ErrorDialect) -> dict[str, Any]:
    """Returns the body of an error of this status, as the dialect has it."""
    return body_of(_BY_STATUS[status], "9f2c61f0d4c74a0f8b1f2a7f3e0c5d11", dialect)


PROBES: Final = ("/livez", "/readyz", "/healthz")
"""BentoML answers these itself where it serves, in text."""
NATIVE_ERROR: Final = {
    "type": "object",
    "required": ["error", "code", "error_type", "request_id"],
    "properties": {name: {"type": "string"} for name in ("error", "code", "error_type", "request_id")},
    "additionalProperties": {"type": "number"},
}
OPENAI_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {name: {"type": ["string", "null"]} for name in ("message", "type", "param", "code")},
        }
    },
}
ANTHROPIC_ERROR: Final = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": OPENAI_ERROR["properties"]["error"],
        "request_id": {"type": "string"},
    },
}
SENTENCE_ERROR: Final = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
ERROR_SCHEMAS: Final = {
    ErrorDialect.NATIVE: ("Error", NATIVE_ERROR),
    ErrorDialect.OPENAI: ("OpenAIError", OPENAI_ERROR),
    ErrorDialect.RESPONSES: ("OpenAIError", OPENAI_ERROR),
    ErrorDialect.TRITON: ("TritonError", SENTENCE_ERROR),
    ErrorDialect.OLLAMA: ("OllamaError", SENTENCE_ERROR),
    ErrorDialect.ANTHROPIC: ("AnthropicError", ANTHROPIC_ERROR),
}
"""The name and the schema of each dialect's error body."""
ERRORS: Final = {
    401: "No key, or a wrong one.",
    403: "The key may not do this.",
    404: "No such model, version or route.",
    405: "Wrong method.",
    409: "In use, there already, or refused by the gate.",
    412: "Somebody else changed it first.",
    413: "The body is too large.",
    415: "Not UTF-8 JSON, or compressed.",
    429: "The caller's quota; see Retry-After.",
    500: "A defect of the server, or a model without usable probabilities.",
    503: "At capacity, loading or draining; see Retry-After.",
    504: "`deadline_ms` passed before the first token.",
    507: "The disk is full.",
}
INVALID: Final = "A field is wrong, unknown, or cannot act; or the context overflows."


def document(app: FastAPI, *, keyed: bool = False, open_metrics: bool = False) -> dict[str, Any]:
    """Returns the OpenAPI document: every route, its body, and every error status in its dialect. A server that is
    `keyed` says where it asks for the key; with `open_metrics` not for its metrics."""
    spec = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, schemas = models_json_schema([(model, "validation") for model in NAMED.values()], ref_template=REFERENCE)
    components = spec.setdefault("components", {}).setdefault("schemas", {})
    components |= {**schemas["$defs"], **dict(ERROR_SCHEMAS.values())}
    for path, methods in spec["paths"].items():
        for operation in methods.values():
            _document_errors(operation, path)
    add_facts(spec, keyed, open_metrics)
    return spec


def _document_errors(operation: dict[str, Any], path: str) -> None:
    dialect = error_dialect(path)
    schema = {"$ref": REFERENCE.format(model=ERROR_SCHEMAS[dialect][0])}
    invalid = 422 if dialect is ErrorDialect.NATIVE else 400
    operation["responses"].pop("422", None)  # FastAPI's own words, which this server does not use
    for status, text in {**ERRORS, invalid: INVALID}.items():
        content = {"schema": schema, "example": error_example(status, dialect)}
        own = operation["responses"].get(str(status), {}).get("content", {})  # a library's text, say
        operation["responses"][str(status)] = {"description": text, "content": {"application/json": content, **own}}
    if path in PROBES:
        operation["responses"]["503"]["content"][TEXT] = {"schema": {"type": "string"}}
