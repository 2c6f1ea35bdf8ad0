"""The package sends one span of each request to a collector. It knows traces and clocks; no route, no model and no
answer.

`trace_context` and `span` hold values, and every process may import them; `exporting` imports OpenTelemetry, and only a
server that has a collector imports it.
"""

from service.observability.tracing.span import Attributes, Event, Facts, Span, Tracer
from service.observability.tracing.trace_context import TraceContext, trace_context

__all__ = ["Attributes", "Event", "Facts", "Span", "TraceContext", "Tracer", "trace_context"]
