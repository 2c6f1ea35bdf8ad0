"""This module checks the address to which spans are sent. It knows no setting and no network."""

from __future__ import annotations

from collections.abc import Mapping
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


def standard_traces_url(given: Mapping[str, str]) -> str | None:
    """Returns where OpenTelemetry's own variables want traces sent; None where they name no collector, or want none.
    Raises ValueError, with the variable's name, for what cannot be sent to.

    https://opentelemetry.io/docs/specs/otel/protocol/exporter/
    """
    if given.get("OTEL_SDK_DISABLED", "").lower() == "true" or given.get("OTEL_TRACES_EXPORTER", "") == "none":
        return None
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        if not (url := given.get(name)):
            continue
        _refuse_other_protocols(given)
        try:
            return checked_url(url) if "TRACES" in name else traces_url(checked_url(url))
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    return None


def _refuse_other_protocols(given: Mapping[str, str]) -> None:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if protocol := given.get(name):
            if protocol != "http/protobuf":
                raise ValueError(
                    f"{name}={protocol[:40]}, but traces go over HTTP with protobuf: set DOSIRAK_OTLP_ENDPOINT to the "
                    "collector's address for that (its port 4318 as a rule), or OTEL_TRACES_EXPORTER=none for no traces"
                )
            return
