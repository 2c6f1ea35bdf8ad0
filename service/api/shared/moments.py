"""Times in query parameters, in ISO 8601."""

from __future__ import annotations

from datetime import UTC, datetime

from service.errors import InvalidRequest


def require_order(since: float | None, until: float | None) -> None:
    """Raises InvalidRequest for a span that ends before it begins; None is open."""
    if since is not None and until is not None and since > until:
        raise InvalidRequest("`since` is after `until`: send the earlier time as `since`", param="since")


def moment_of(text: str, param: str) -> datetime:
    """Returns the time in UTC, which a text without a zone has. Raises InvalidRequest, which names the parameter."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(f"{param} must be a time in ISO 8601, as in 2026-11-21T12:00:00Z", param=param) from None
