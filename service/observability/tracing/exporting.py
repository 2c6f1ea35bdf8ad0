"""Exporting sends spans to a collector, OTLP over HTTP, in a thread beside the event loop. With `bounded`, the
only module that knows OpenTelemetry.

    record ─▶ sampler ─▶ at most MOST_WAITING spans ─▶ the library's batch thread ─▶ its exporter ─▶ collector

A collector that does not answer costs spans and counts, never a request: nothing here waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
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

from service.observability.tracing.bounded import BoundedProcessor, CountedExporter, Losses
from service.observability.tracing.span import Attributes, Span
from service.observability.tracing.trace_context import TraceContext

CONVENTIONS: Final = Schemas.V1_44_0.value
"""The version of the semantic conventions that our attributes follow."""
SERVICE: Final = "dosirak"
CLOSE_SECONDS: Final = 2.0
log = structlog.get_logger(__name__)


class Exporting:
    """A Tracer. `losses` is told of failed exports and lost spans, also from the library's thread."""

    def __init__(self, url: str, version: str, losses: Losses) -> None:
        """`version` is that of this software. The library reads the standard variables itself: headers, certificates,
        compression, resource attributes, sampler."""
        self._resource = _resource(version)
        self._scope = InstrumentationScope(SERVICE, version, CONVENTIONS)
        provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        self._exporter = CountedExporter(url, losses)
        self._processor = BoundedProcessor(self._exporter)
        self._sampler, self._ids = provider.sampler, provider.id_generator

    def record(self, span: Span) -> str | None:
        """Does as Tracer.record."""
        try:
            return self._record(span)
        except Exception:  # a defect of tracing must not become one of the request
            log.exception("span_not_recorded")
            return None

    def _record(self, span: Span) -> str | None:
        """A span of the library would be open until its request ends, and takes four times the processor time."""
        parent = None if span.parent is None else _context(span.parent)
        around = None if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())
        trace_id = self._ids.generate_trace_id() if parent is None else parent.trace_id
        chosen = self._sampler.should_sample(around, trace_id, span.name, SpanKind.SERVER)
        if chosen.decision is Decision.RECORD_AND_SAMPLE:
            sampled = TraceFlags(TraceFlags.SAMPLED)
            context = SpanContext(trace_id, self._ids.generate_span_id(), False, sampled, chosen.trace_state)
            self._processor.take(self._ended(span, context, parent, chosen.attributes))
        return f"{trace_id:032x}"

    def _ended(
        self, span: Span, context: SpanContext, parent: SpanContext | None, of_sampler: Attributes
    ) -> ReadableSpan:
        facts = span.facts()
        return ReadableSpan(
            span.name,
            context,
            parent,
            self._resource,
            {**of_sampler, **facts.attributes},
            [Event(event.name, timestamp=event.at_ns) for event in facts.events],
            kind=SpanKind.SERVER,
            status=Status() if facts.failure is None else Status(StatusCode.ERROR, facts.failure),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    async def close(self) -> None:
        """Does as Tracer.close, within CLOSE_SECONDS. The library itself would wait for up to 30 s."""
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS)
        if closing.is_alive():
            self._exporter.shutdown()
            log.warning("spans_lost_at_the_end", spans=self._exporter.num_waiting)


def _context(parent: TraceContext) -> SpanContext:
    state = TraceState.from_header(list(parent.states)) if parent.states else None
    return SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), True, TraceFlags(parent.flags), state)


def _resource(version: str) -> Resource:
    """Returns what all spans share: this service and its version. The standard variables may say otherwise."""
    ours = Resource({"service.name": SERVICE, "service.version": version})
    return ours.merge(OTELResourceDetector().detect())
