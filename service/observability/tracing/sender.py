"""The sender posts spans to a collector with the library's client: its headers, certificates, compression, retries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from service.observability.tracing.encoding import Origin, Recorded, encoded

EXPORT_SECONDS: Final = 3.0
"""How long one export may take, with its retries."""


class Sender(OTLPSpanExporter):
    """The library's exporter with our encoder. The library has no place for one, so its client is reached into."""

    def __init__(self, url: str, origin: Origin) -> None:
        super().__init__(url, timeout=EXPORT_SECONDS)
        self._origin = origin

    def send(self, spans: Sequence[Recorded]) -> bool:
        """Returns whether the collector took the spans."""
        return self._client.export(encoded(self._origin, spans)).success
