"""Errors form one tree of every failure that a client can see: `code` for programs, a sentence for people, the status.

    DosirakError
    ├── InvalidRequest        422  invalid_request       a field is wrong; `param` names it
    │   ├── UnsupportedField  422  unsupported_field     a known field that this server cannot act on
    │   └── ContextOverflow   422  context_overflow      prompt + reserve pass the window; the body has the numbers
    ├── EngineKilled          422  engine_killed         the engine process died each time this request ran
    ├── MalformedRequest      400  malformed_request     no HTTP/1.1, or such that can be read in two ways
    ├── Unauthorized          401  unauthorized
    ├── Forbidden             403  forbidden
    ├── NotFound              404  not_found
    ├── MethodNotAllowed      405  method_not_allowed
    ├── RequestTimeout        408  request_timeout       headers or body did not come in time
    ├── Conflict              409  conflict
    ├── Stale                 412  stale
    ├── TooLarge              413  too_large
    ├── UnsupportedMediaType  415  unsupported_media_type
    ├── RateLimited           429  rate_limited          retryable
    │   └── QuotaExceeded     429  rate_limited          a quota is used up; delete something first
    ├── HeadersTooLarge       431  headers_too_large
    ├── GenerationFailed      500  generation_failed     no usable distribution, or the engine was stopped
    ├── Overloaded            503  overloaded            retryable
    ├── Unavailable           503  unavailable           retryable: loading or draining
    │   └── NoEngine          503  no_engine             no torch here; another instance may have it
    ├── DeadlineExceeded      504  deadline_exceeded     retryable where earlier requests were the cause
    └── StorageFull           507  storage_full

The module knows no HTTP library: `api.http.errors` maps this tree to bodies. Every message says what to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

Number = int | float


class DosirakError(Exception):
    """`numbers` are merged into the error body (for example `window`, `needed_tokens`). `fields` are names of ours, of
    which the sentence and `param` hold each once, and which dialects spell in their own way; all other words are the
    client's, or said the same to everybody."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    error_type: ClassVar[str] = "generation"
    """TGI's word for the same thing."""
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        fields: Sequence[str] = (),
        **numbers: Number,
    ) -> None:
        super().__init__(message)
        self.fields = fields
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.numbers = numbers


class InvalidRequest(DosirakError):
    status, code, error_type = 422, "invalid_request", "validation"


class UnsupportedField(InvalidRequest):
    code = "unsupported_field"


class ContextOverflow(InvalidRequest):
    code = "context_overflow"


class EngineKilled(DosirakError):
    """A 4xx, although the defect is the server's: clients and load balancers retry a request that failed with a 5xx,
    and each retry would cost an engine."""

    status, code, error_type = 422, "engine_killed", "generation"


class MalformedRequest(DosirakError):
    status, code, error_type = 400, "malformed_request", "validation"


class Unauthorized(DosirakError):
    status, code, error_type = 401, "unauthorized", "validation"


class Forbidden(DosirakError):
    status, code, error_type = 403, "forbidden", "validation"


class NotFound(DosirakError):
    status, code, error_type = 404, "not_found", "validation"


class MethodNotAllowed(DosirakError):
    status, code, error_type = 405, "method_not_allowed", "validation"


class RequestTimeout(DosirakError):
    status, code, error_type = 408, "request_timeout", "validation"


class Conflict(DosirakError):
    status, code, error_type = 409, "conflict", "validation"


class Stale(DosirakError):
    status, code, error_type = 412, "stale", "validation"


class TooLarge(DosirakError):
    status, code, error_type = 413, "too_large", "validation"


class UnsupportedMediaType(DosirakError):
    status, code, error_type = 415, "unsupported_media_type", "validation"


class RateLimited(DosirakError):
    status, code, error_type, retryable = 429, "rate_limited", "overloaded", True


class QuotaExceeded(RateLimited):
    retryable = False


class HeadersTooLarge(DosirakError):
    status, code, error_type = 431, "headers_too_large", "validation"


class GenerationFailed(DosirakError):
    status, code, error_type = 500, "generation_failed", "generation"


class Overloaded(DosirakError):
    status, code, error_type, retryable = 503, "overloaded", "overloaded", True


class Unavailable(DosirakError):
    status, code, error_type, retryable = 503, "unavailable", "overloaded", True


class NoEngine(Unavailable):
    """Another instance may have an engine; this one never will."""

    code, retryable = "no_engine", False

    def __init__(self) -> None:
        super().__init__(
            "There is no engine here, because torch is not installed: ask an instance that has one (the image's "
            "targets cpu, demo and cuda), or install torch"
        )


class DeadlineExceeded(DosirakError):
    status, code, error_type = 504, "deadline_exceeded", "incomplete_generation"


class StorageFull(DosirakError):
    status, code, error_type = 507, "storage_full", "generation"
