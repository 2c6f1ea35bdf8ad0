"""Whether values fit JSON schemas, as another library than the server's reads them, formats included."""

from __future__ import annotations

import re
from typing import Any, Final

import jsonschema_rs

HUGE: Final = re.compile(r"[0-9][eE][+-]?[0-9]{3}")
"""A number of JSON that no float holds, as 7e2534: Python reads infinity, which fits no schema."""

DRAFTS: Final = (
    "https://json-schema.org/draft/2020-12/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-04/schema#",
)


def _with_draft(schema: Any) -> Any:
    """The schema with the newest draft that takes it, where it names none. Raises ValueError if no draft does."""
    if isinstance(schema, bool):
        return schema
    for draft in DRAFTS:
        named = {"$schema": draft, **schema}
        if jsonschema_rs.meta.is_valid(named):
            return named
    raise ValueError("no draft takes this schema")


def is_schema(schema: Any) -> bool:
    """Whether it is one by a draft's own schema."""
    try:
        _with_draft(schema)
    except ValueError:
        return False
    return True


def fits_schema(schema: Any, value: Any) -> bool:
    """Raises ValueError for a schema that the library cannot read."""
    return jsonschema_rs.validator_for(_with_draft(schema), validate_formats=True).is_valid(value)
