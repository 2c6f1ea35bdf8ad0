"""Exporting sends spans to a collector, OTLP over HTTP, in a thread beside the event loop. The only module that knows
OpenTelemetry.

    record ─▶ sampler ─▶ at most MOST_WAITING spans ─▶ the library's batch thread ─▶ its exporter ─▶ collector

A collector that does not answer costs spans and counts, never a request: nothing here waits for it. The library
drops the oldest span without a count; so spans that wait are bounded here, and lost ones are counted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from typing import Final, Protocol

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
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

from service.observability.tracing.span import Attributes, Span, TraceContext

MOST_WAITING: Final = 2048
BATCH: Final = 128
"""Spans of one export: encoding 128 takes the interpreter for about 15 ms, in turns with the event loop."""
EXPORT_SECONDS: Final = 3.0
"""How long one export may take, with its retries."""
DELAY_MS: Final = 1000.0
"""How long a span waits for others."""
QUIET_SECONDS: Final = 60.0
"""Between two log lines about a collector that does not answer."""
LIBRARY: Final = "opentelemetry"
log = structlog.get_logger(__name__)
CONVENTIONS: Final = Schemas.V1_44_0.value
"""The version of the semantic conventions that our attributes follow."""
SERVICE: Final = "dosirak"
CLOSE_SECONDS: Final = 2.0


class Losses(Protocol):
    """Counts what a collector cost. Called from the event loop and from the library's thread."""

    def export_failed(self) -> None: ...

    def spans_dropped(self, spans: int) -> None: ...


class CountedExporter(SpanExporter):
    """Passes spans on to the library's exporter. Counts what waits and what fails, and logs a failure once in
    QUIET_SECONDS."""

    def __init__(self, url: str, losses: Losses) -> None:
        self._exporter = OTLPSpanExporter(url, timeout=EXPORT_SECONDS)
        self._losses = losses
        self._words = _FirstWords()
        self._lock = threading.Lock()
        self._lost, self._logged_at = 0, float("-inf")
        self.num_waiting = 0

    def enter(self) -> bool:
        """Returns whether one more span may wait, and counts it."""
        with self._lock:
            if self.num_waiting >= MOST_WAITING:
                return False
            self.num_waiting += 1
            return True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Is called by the library's thread."""
        self._words.text = ""
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            result, self._words.text = SpanExportResult.FAILURE, type(error).__name__
        with self._lock:
            self.num_waiting -= len(spans)
        if result is not SpanExportResult.SUCCESS:
            self._losses.export_failed()
            self.lose(len(spans))
        return result

    def lose(self, spans: int) -> None:
        """Counts spans that no collector gets."""
        self._losses.spans_dropped(spans)
        with self._lock:
            self._lost += spans
            if time.monotonic() - self._logged_at < QUIET_SECONDS:
                return
            lost, self._lost, self._logged_at = self._lost, 0, time.monotonic()
        log.warning("spans_lost", spans=lost, reason=self._words.text or "more spans wait than a collector takes")

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class BoundedProcessor(BatchSpanProcessor):
    """The library's batch thread, that takes no more than MOST_WAITING spans: the library drops the oldest without a
    count."""

    def __init__(self, exporter: CountedExporter) -> None:
        super().__init__(exporter, MOST_WAITING, DELAY_MS, BATCH)
        self._counted = exporter

    def take(self, span: ReadableSpan) -> None:
        if self._counted.enter():
            self.on_end(span)
        else:
            self._counted.lose(1)


class _FirstWords(logging.Handler):
    """Keeps the first thing that the library says about an export, and keeps all of it out of the log: the library
    repeats itself at every export, and quotes headers of clients."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        logger = logging.getLogger(LIBRARY)
        logger.handlers, logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(f"{LIBRARY}.exporter"):
            self.text = self.text or record.getMessage()


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
