"""A claim is the state of an `Idempotency-Key`, as a value: this request's claim, another request's work, or an answer.
This module knows no database."""

from __future__ import annotations

from dataclasses import dataclass

from service.storage.sessions.values import StoredAnswer

LEASE_SECONDS = 10.0
"""How long a key waits for a worker that does not renew its claim."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to finish a key. It is void once another request has taken the key over."""

    owner: str
    key: str
    token: str


@dataclass(frozen=True, slots=True)
class Fresh:
    """The key is free: generate, renew within `LEASE_SECONDS`, then finish or abandon."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another request works on the key, or its worker died less than `seconds` ago."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    response: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """An answer to keep under a claimed key. `answer` is its row among the stored answers, if it has one."""

    claim: Claim
    response: bytes
    answer: StoredAnswer | None = None
