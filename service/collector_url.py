"""This module checks the address to which spans are sent. It knows no setting, no environment and no network."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

TRACES_PATH: Final = "/v1/traces"
"""Where a collector takes traces, below its base (OTLP 1.9, "OTLP/HTTP Request")."""
EXAMPLE: Final = "http://collector:4318"


def checked_url(url: str) -> str:
    """Returns `url`. Raises ValueError, as a sentence without the URL's own text, where no span could be sent to it."""
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # an unfinished IPv6 address, or a port that is none
        named, parts = False, urlsplit("")
    if parts.scheme not in ("http", "https") or not named or not url.isprintable() or " " in url:
        raise ValueError(f"must be a URL of a collector that takes OTLP over HTTP, as {EXAMPLE}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "must be a URL without user, query and fragment: put credentials into OTEL_EXPORTER_OTLP_HEADERS"
        )
    return url


def traces_url(base: str) -> str:
    """Returns where a collector with this base takes traces; a base that names that path already stays as it is."""
    bare = base.rstrip("/")
    return bare if bare.endswith(TRACES_PATH) else f"{bare}{TRACES_PATH}"
