"""Exporting sends spans to a collector, OTLP over HTTP, in a thread beside the event loop. With `bounded` and
`encoding`, the only modules that know OpenTelemetry.

    record ─▶ sampler ─▶ at most MOST_WAITING spans ─▶ the library's batch thread ─▶ collector

A collector that does not answer costs spans and counts, never a request: nothing here waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Final

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Span as OpenSpan

from service.tracing.bounded import BoundedProcessor, CountedExporter, Losses
from service.tracing.encoding import encoded
from service.tracing.span import Facts, Span
from service.tracing.trace_context import TraceContext

CONVENTIONS: Final = Schemas.V1_44_0.value
"""The version of the semantic conventions that our attributes follow."""
SERVICE: Final = "dosirak"
EXPORT_SECONDS: Final = 3.0
"""How long one export may take, with its retries."""
CLOSE_SECONDS: Final = 2.0
log = structlog.get_logger(__name__)


class Exporting:
    """A Tracer. `losses` is told of failed exports and lost spans, also from the library's thread."""

    def __init__(self, url: str, version: str, losses: Losses) -> None:
        """`version` is that of this software. The library reads the standard variables itself: headers, certificates,
        compression, resource attributes, sampler."""
        self._exporter = CountedExporter(_Sender(url, timeout=EXPORT_SECONDS), losses)
        self._provider = TracerProvider(resource=_resource(version), shutdown_on_exit=False)
        self._provider.add_span_processor(BoundedProcessor(self._exporter))
        self._tracer = self._provider.get_tracer(SERVICE, version, schema_url=CONVENTIONS)

    def record(self, span: Span) -> str | None:
        """Does as Tracer.record."""
        try:
            return self._record(span)
        except Exception:  # a defect of tracing must not become one of the request
            log.exception("span_not_recorded")
            return None

    def _record(self, span: Span) -> str | None:
        parent = set_span_in_context(NonRecordingSpan(_context(span.parent))) if span.parent else None
        opened = self._tracer.start_span(span.name, parent, SpanKind.SERVER, start_time=span.start_ns)
        if opened.is_recording():
            _fill(opened, span.facts())
        opened.end(span.end_ns)
        context = opened.get_span_context()
        return f"{context.trace_id:032x}" if context.is_valid else None

    async def close(self) -> None:
        """Does as Tracer.close, within CLOSE_SECONDS. The library itself would wait for up to 30 s."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS)
        if closing.is_alive():
            self._exporter.shutdown()
            log.warning("spans_lost_at_the_end", spans=self._exporter.num_waiting)


class _Sender(OTLPSpanExporter):
    """The library's, with our encoder: the library has no place for one, so its client is reached into."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        sent = self._client.export(encoded(spans))
        return SpanExportResult.SUCCESS if sent.success else SpanExportResult.FAILURE


def _fill(opened: OpenSpan, facts: Facts) -> None:
    opened.set_attributes(facts.attributes)
    for event in facts.events:
        opened.add_event(event.name, timestamp=event.at_ns)
    if facts.failure is not None:
        opened.set_status(Status(StatusCode.ERROR, facts.failure))


def _context(parent: TraceContext) -> SpanContext:
    state = TraceState.from_header(list(parent.states)) if parent.states else None
    return SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), True, TraceFlags(parent.flags), state)


def _resource(version: str) -> Resource:
    """Returns what all spans share: this service and its version. The standard variables may say otherwise."""
    ours = Resource({"service.name": SERVICE, "service.version": version})
    return ours.merge(OTELResourceDetector().detect())
