"""These models describe OpenAI's files and batches as answers."""

from __future__ import annotations

from typing import Literal

from service.api.schemas.answers.base import Shown


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


class FilePage(Shown):
    object: Literal["list"]
    data: list[FileShown]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(Shown):
    id: str
    object: Literal["file"]
    deleted: bool
