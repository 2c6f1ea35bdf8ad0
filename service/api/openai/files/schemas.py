"""These wire models are the fields of OpenAI's files and batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

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
