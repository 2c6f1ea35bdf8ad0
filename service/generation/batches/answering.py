"""Answering is what the lane asks of the API: the response to one line's body, as a client would get it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Encode = Callable[[object], bytes]
"""Writes a value as one line of JSON."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A body for an endpoint, as its owner's. `key` is the Idempotency-Key of a line whose answer is stored."""

    owner: str
    endpoint: str
    body: bytes
    key: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. `retry_after` is None where the same request would get the same response again."""

    status: int
    request_id: str
    body: bytes
    retry_after: float | None = None


Answer = Callable[[Asked], Awaitable[Reply]]
