"""Our encoder of spans says what the library's says, of every span that `exporting` can record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as LibraryEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from service.observability.tracing import Event, Facts, Span
from service.observability.tracing.encoding import Origin, Recorded, encoded

WORDS = st.text(max_size=20)
VALUES = (
    WORDS | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.lists(WORDS, max_size=3)
)
LIKE = st.sampled_from([0, False, 1, True, 1.0, "1", ["1"], "", [], 2, 2.0])
"""Values that a dictionary takes for one another, or that look alike."""
MOMENTS = st.integers(1, 2**63 - 1)
STATES = st.lists(st.sampled_from(["vendor=1", "a=b,c=d"]), max_size=2, unique=True)


ORIGIN = Origin({"service.name": "dosirak", "service.version": "1.2"}, "dosirak", "1.2", "https://conventions/1")


def of_library(each: Recorded) -> ReadableSpan:
    failure, resource = each.facts.failure, Resource(dict(ORIGIN.resource))
    return ReadableSpan(
        each.span.name,
        each.context,
        each.parent,
        resource,
        {**each.of_sampler, **each.facts.attributes},
        [LibraryEvent(event.name, timestamp=event.at_ns) for event in each.facts.events],
        kind=SpanKind.SERVER,
        status=Status() if failure is None else Status(StatusCode.ERROR, failure),
        start_time=each.span.start_ns,
        end_time=each.span.end_ns,
        instrumentation_scope=InstrumentationScope(ORIGIN.name, ORIGIN.version, ORIGIN.conventions),
    )


def compare(spans: list[Recorded]) -> None:
    said = ExportTraceServiceRequest.FromString(encoded(ORIGIN, spans))
    assert said == encode_spans([of_library(each) for each in spans])


def span_context(draw: st.DrawFn, *, is_remote: bool) -> SpanContext:
    state = TraceState.from_header(draw(STATES))
    ids = draw(st.integers(1, 2**128 - 1)), draw(st.integers(1, 2**64 - 1))
    return SpanContext(*ids, is_remote, TraceFlags(TraceFlags.SAMPLED), state)


@st.composite
def recorded(draw: st.DrawFn) -> Recorded:
    attributes: Mapping[str, Any] = draw(st.dictionaries(st.text(min_size=1, max_size=5), VALUES | LIKE, max_size=6))
    events = [Event(name, at) for name, at in draw(st.lists(st.tuples(WORDS, MOMENTS), max_size=3))]
    facts = Facts(attributes, events, draw(st.none() | WORDS))
    parent = span_context(draw, is_remote=True) if draw(st.booleans()) else None
    span = Span(draw(st.text(min_size=1, max_size=9)), None, draw(MOMENTS), draw(MOMENTS), lambda: facts)
    return Recorded(span_context(draw, is_remote=False), parent, span, facts, draw(st.sampled_from([{}, {"rate": 2}])))


@settings(max_examples=150, deadline=None)
@given(st.lists(recorded(), min_size=1, max_size=4))
def test_it_says_what_the_library_says(spans: list[Recorded]) -> None:
    compare(spans)


def test_values_that_are_equal_are_told_apart() -> None:
    """In every order: bytes that are kept for 1 must not be sent for True."""
    alike: list[Any] = [1, True, 1.0, 0, False, 0.0]
    context = SpanContext(1, 2, False, TraceFlags(TraceFlags.SAMPLED))
    facts = [Facts({"key": value}) for value in (*alike, *reversed(alike))]
    compare([Recorded(context, None, Span("a", None, 1, 2, lambda: Facts({})), each) for each in facts])
