"""The package sends one span of each request to a collector. It knows traces and clocks; no route, no model and no
answer.

`span` holds values, and every process may import it; `exporting` imports OpenTelemetry, and only a server that has a
collector imports it.
"""

from service.observability.tracing.span import Attributes, Event, Facts, Span, TraceContext, Tracer, trace_context

__all__ = ["Attributes", "Event", "Facts", "Span", "TraceContext", "Tracer", "trace_context"]
