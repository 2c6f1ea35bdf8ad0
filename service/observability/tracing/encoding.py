"""Encoding writes spans as OTLP's protobuf, each attribute once: nearly all of them come again in the next span.

Objects for each attribute are most of what the library's `encode_spans` costs. Bytes of a message may be joined
(https://protobuf.dev/programming-guides/encoding/#last-one-wins), so those of attributes are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, SpanFlags, Status
from opentelemetry.trace import SpanContext

from service.observability.tracing.span import Attributes, Facts, Span, Value

KEPT: Final = 4096
"""Attributes whose bytes are kept, of about 100 each."""
OURS: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
OF_CALLER: Final = OURS | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


@dataclass(frozen=True, slots=True)
class Recorded:
    """A span with its own ids and its parent's, and attributes that the sampler adds."""

    context: SpanContext
    parent: SpanContext | None
    span: Span
    facts: Facts
    of_sampler: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """What all spans share: attributes of the service, and who made the spans by which conventions."""

    resource: Attributes
    name: str
    version: str
    conventions: str


def encoded(origin: Origin, spans: Iterable[Recorded]) -> bytes:
    """Returns the body of an export."""
    of_service = ResourceSpans(resource=Resource(attributes=[_key_value(*each) for each in origin.resource.items()]))
    scope = InstrumentationScope(name=origin.name, version=origin.version)
    of_tracer = ScopeSpans(scope=scope, schema_url=origin.conventions)
    for span in spans:
        of_tracer.spans.add().MergeFromString(_message(span))
    of_service.scope_spans.append(of_tracer)
    data: bytes = ExportTraceServiceRequest(resource_spans=[of_service]).SerializeToString()
    return data


def _message(recorded: Recorded) -> bytes:
    context, parent, span, facts = recorded.context, recorded.parent, recorded.span, recorded.facts
    made = trace_pb2.Span(
        trace_id=context.trace_id.to_bytes(16),
        span_id=context.span_id.to_bytes(8),
        trace_state=",".join(f"{key}={value}" for key, value in context.trace_state.items()),
        parent_span_id=parent.span_id.to_bytes(8) if parent is not None else b"",
        name=span.name,
        kind=trace_pb2.Span.SPAN_KIND_SERVER,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        events=[trace_pb2.Span.Event(name=event.name, time_unix_nano=event.at_ns) for event in facts.events],
        status=Status() if facts.failure is None else Status(code=Status.STATUS_CODE_ERROR, message=facts.failure),
        flags=OURS if parent is None else OF_CALLER,
    )
    fields: bytes = made.SerializeToString()
    attributes = {**recorded.of_sampler, **facts.attributes}
    return fields + b"".join(_attribute(key, type(value).__name__, _kept(value)) for key, value in attributes.items())


def _kept(value: Value) -> str | bool | int | float | tuple[str, ...]:
    return value if isinstance(value, str | int | float) else tuple(value)


@lru_cache(maxsize=KEPT)
def _attribute(key: str, kind: str, value: Value) -> bytes:
    """Returns a span of this attribute alone. `kind` tells True, 1 and 1.0 apart."""
    field: bytes = trace_pb2.Span(attributes=[_key_value(key, value)]).SerializeToString()
    return field


def _key_value(key: str, value: Value) -> KeyValue:
    return KeyValue(key=key, value=_any(value))


def _any(value: Value) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=[_any(each) for each in value]))
