"""Spans that wait are bounded here, and lost ones are counted: around the library's batch thread, on both of its
sides."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final, Protocol

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

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
