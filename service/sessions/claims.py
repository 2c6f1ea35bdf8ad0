"""What becomes of an `Idempotency-Key`, as values: somebody's claim, another's work, an answer. Knows no database."""

from __future__ import annotations

from dataclasses import dataclass

LEASE_SECONDS = 10.0
"""How long a key waits for somebody who shows no sign of life."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to finish a key; worth nothing once another has taken over."""

    owner: str
    key: str
    token: str


@dataclass(frozen=True, slots=True)
class Fresh:
    """Generate, renew within `LEASE_SECONDS`, then finish or abandon."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another works on it, or has died less than `seconds` ago."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    response: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """An answer to be kept under a claimed key."""

    claim: Claim
    response: bytes
