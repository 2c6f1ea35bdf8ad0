"""Encoding writes spans as OTLP's protobuf, each attribute once: nearly all of them come again in the next span.

The library's `encode_spans` makes three objects of each attribute, which is most of what it costs. Bytes of a message
may be joined (https://protobuf.dev/programming-guides/encoding/#last-one-wins), so those of attributes are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status
from opentelemetry.sdk.trace import ReadableSpan

KEPT: Final = 4096
"""Attributes whose bytes are kept, of about 100 each."""
CODES: Final = (Status.STATUS_CODE_UNSET, Status.STATUS_CODE_OK, Status.STATUS_CODE_ERROR)
Value = str | bool | int | float | Sequence[str]


def encoded(spans: Sequence[ReadableSpan]) -> bytes:
    """Returns what `encode_spans` writes, for spans as `exporting` makes them: of one tracer, for a server, with
    attributes of plain values and events of none."""
    request = encode_spans(spans[:1])
    of_tracer = request.resource_spans[0].scope_spans[0]
    del of_tracer.spans[:]
    for span in spans:
        of_tracer.spans.add().MergeFromString(_message(span))
    data: bytes = request.SerializePartialToString()
    return data


def _message(span: ReadableSpan) -> bytes:
    context, parent = span.context, span.parent
    is_remote = SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK if parent is not None and parent.is_remote else 0
    made = Span(
        trace_id=context.trace_id.to_bytes(16),
        span_id=context.span_id.to_bytes(8),
        trace_state=",".join(f"{key}={value}" for key, value in context.trace_state.items()),
        parent_span_id=parent.span_id.to_bytes(8) if parent is not None else b"",
        name=span.name,
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=span.start_time or 0,
        end_time_unix_nano=span.end_time or 0,
        events=[Span.Event(name=event.name, time_unix_nano=event.timestamp) for event in span.events],
        status=Status(code=CODES[span.status.status_code.value], message=span.status.description or ""),
        dropped_attributes_count=span.dropped_attributes,
        dropped_events_count=span.dropped_events,
        flags=SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK | is_remote,
    )
    fields: bytes = made.SerializePartialToString()
    attributes: Mapping[str, Any] = span.attributes or {}
    return fields + b"".join(_attribute(key, type(value).__name__, value) for key, value in attributes.items())


@lru_cache(maxsize=KEPT)
def _attribute(key: str, kind: str, value: Value) -> bytes:
    """Returns a span of this attribute alone. `kind` tells True, 1 and 1.0 apart."""
    field: bytes = Span(attributes=[KeyValue(key=key, value=_any(value))]).SerializePartialToString()
    return field


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
