"""These values are files and batches as the database keeps them. This module knows no database."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

OPEN: Final = ("validating", "in_progress", "finalizing", "cancelling")
"""The statuses in which a batch has work left."""


def new_file_id() -> str:
    return f"file-{secrets.token_hex(16)}"


def new_batch_id() -> str:
    return f"batch_{secrets.token_hex(16)}"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file's row. `expires_at` None keeps it until it is deleted. `sha256` is that of a content which lies in the
    store of all instances; None where one instance alone has it."""

    id: str
    purpose: str
    filename: str
    bytes: int
    created_at: datetime
    expires_at: datetime | None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """What of a batch no query asks for. `times` are seconds since 1970 at which a status began, by status;
    `output_seconds` is how long its output is kept."""

    endpoint: str
    output_seconds: int
    metadata: dict[str, str] | None = None
    times: dict[str, int] = field(default_factory=dict)
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    output_file_id: str | None = None
    error_file_id: str | None = None


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch's row. `lease_until` is the end of the last claim, and before the first one when the batch was made."""

    id: str
    owner: str
    status: str
    input_file_id: str
    created_at: datetime
    expires_at: datetime
    facts: BatchFacts
    lease_until: datetime


@dataclass(frozen=True, slots=True)
class BatchClaim:
    """The right to work on a batch, void once another worker has taken it over."""

    batch: StoredBatch
    token: str
