"""These wire models are OpenAI's files and batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from service.api.openai.lists import IdPage
from service.api.shared.answer_schemas import Shown
from service.api.shared.schemas import Wire, unsupported

NAMED_BY_OPENAI = ("assistants", "evals", "fine-tune", "user_data", "vision")


Key = Annotated[str, Field(max_length=64)]
Value = Annotated[str, Field(max_length=512)]


class ExpiresAfter(Wire):
    """When something expires: seconds after it was made, an hour to 30 days."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2592000)]


class BatchBody(Wire):
    """A batch: a file of requests for one endpoint, answered within a day."""

    input_file_id: Annotated[str, Field(min_length=1, max_length=100)]
    endpoint: Annotated[str, Field(max_length=100)]
    completion_window: Literal["24h"]
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None


class FileFields(Wire):
    """The fields of an upload beside its file. Only batches read files, so `purpose` is `batch`."""

    purpose: Literal["batch"]
    expires_after: ExpiresAfter | None = None

    @field_validator("purpose", mode="before")
    @classmethod
    def _has_a_use(cls, value: Any) -> Any:
        if value in NAMED_BY_OPENAI:
            raise unsupported("", f"`{value}` has no use here: only batches read files, so send `batch`")
        return value


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
