"""These models describe OpenAI's files and batches as answers."""

from __future__ import annotations

from typing import Literal

from service.api.shared.answer_schemas import IdPage, Shown


class FileShown(Shown):
    """Seconds since 1970; `expires_at` is null for a file that stays."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: str | None


class FilePage(IdPage[FileShown]):
    """Newest first, unless `order` is `asc`."""


class FileDeleted(Shown):
    id: str
    object: Literal["file"]
    deleted: bool


class BatchError(Shown):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(Shown):
    object: Literal["list"]
    data: list[BatchError]


class BatchCounts(Shown):
    total: int
    completed: int
    failed: int


class BatchShown(Shown):
    """Seconds since 1970; null for what has not come. `errors` says why the file was not taken."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    metadata: dict[str, str] | None


class BatchPage(IdPage[BatchShown]):
    """Newest first."""
