"""This table says what the fields of a batch do."""

from __future__ import annotations

from typing import Final

from service.api.openai.files import schemas as files
from tests.api.fields.cases import Table, acts, notes, refuses

EXPIRING: Final = {"output_expires_after": {"anchor": "created_at", "seconds": 3600}}
BATCH: Final = Table(
    files.BatchBody,
    "/v1/batches",
    {"input_file_id": "<file>", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    (
        acts("input_file_id", "file-nobody", "status", 404),
        refuses("endpoint", "/v1/nothing"),
        refuses("completion_window", "1h"),
        acts("metadata", {"order": "7"}, "answer.metadata"),
        refuses("output_expires_after.anchor", "started_at", **EXPIRING),
        notes("output_expires_after.seconds", 7200, 5, **EXPIRING),
    ),
)
TABLES: Final = (BATCH,)
