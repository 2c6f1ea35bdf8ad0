"""This module reads the OpenAPI document's examples of answers, which a server with the demo model gave."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parent / "answer_examples.json"
"""Answers by operation, status and media type: `{"GET /livez": {"200": {"application/json": {"status": "ok"}}}}`. The
example of a stream is its text."""


@cache
def answer_examples() -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the file's examples, read once; the caller leaves them unchanged."""
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found
