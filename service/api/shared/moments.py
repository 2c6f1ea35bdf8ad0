"""Times in query parameters, in ISO 8601."""

from __future__ import annotations

from datetime import UTC, datetime

from service.errors import InvalidRequest


def moment_of(text: str, param: str) -> datetime:
    """Returns the time in UTC, which a text without a zone has. Raises InvalidRequest, which names the parameter."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(f"{param} must be a time in ISO 8601, as in 2026-11-21T12:00:00Z", param=param) from None
