"""This module makes the OpenAPI document's examples of errors, by the function that makes the errors themselves."""

from __future__ import annotations

from typing import Any, Final

from service.api.http.errors import Internal, body_of
from service.api.http.paths import ErrorDialect
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
