"""Our encoder of spans says what the library's says, of every span that `exporting` can make."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service.metrics import Metrics
from service.tracing import Event, Facts, Span, trace_context
from service.tracing.encoding import encoded
from service.tracing.exporting import Exporting

WORDS = st.text(max_size=20)
VALUES = (
    WORDS | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.lists(WORDS, max_size=3)
)
LIKE = st.sampled_from([0, False, 1, True, 1.0, "1", ["1"], "", [], 2, 2.0])
"""Values that a dictionary takes for one another, or that look alike."""
MOMENTS = st.integers(1, 2**63 - 1)
STATES = st.lists(st.sampled_from(["vendor=1", "a=b,c=d"]), max_size=2, unique=True)


@cache
def kept_tracing() -> tuple[InMemorySpanExporter, Exporting]:
    """What `exporting` records stays in memory."""
    kept, tracing = InMemorySpanExporter(), Exporting("http://127.0.0.1:1", "1.2", Metrics())
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracing._tracer = provider.get_tracer("dosirak", "1.2")
    return kept, tracing


def made(spans: list[Span]) -> tuple[ReadableSpan, ...]:
    """Returns the library's spans, as they come to the exporter."""
    kept, tracing = kept_tracing()
    kept.clear()
    for span in spans:
        assert tracing.record(span) is not None
    return kept.get_finished_spans()


@st.composite
def a_span(draw: st.DrawFn) -> Span:
    attributes: Mapping[str, Any] = draw(st.dictionaries(st.text(min_size=1, max_size=5), VALUES | LIKE, max_size=6))
    events = [Event(name, at) for name, at in draw(st.lists(st.tuples(WORDS, MOMENTS), max_size=3))]
    facts = Facts(attributes, events, draw(st.none() | WORDS))
    ids = draw(st.none() | st.tuples(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1)))
    parent = ids and trace_context([f"00-{ids[0]:032x}-{ids[1]:016x}-01"], draw(STATES))
    return Span(draw(st.text(min_size=1, max_size=9)), parent, draw(MOMENTS), draw(MOMENTS), lambda: facts)


@settings(max_examples=150, deadline=None)
@given(st.lists(a_span(), min_size=1, max_size=4))
def test_it_says_what_the_library_says(spans: list[Span]) -> None:
    of_library = made(spans)
    assert ExportTraceServiceRequest.FromString(encoded(of_library)) == encode_spans(of_library)


def test_values_that_are_equal_are_told_apart() -> None:
    """In every order: bytes that are kept for 1 must not be sent for True."""
    alike: list[Any] = [1, True, 1.0, 0, False, 0.0]
    facts = [Facts({"key": value}) for value in (*alike, *reversed(alike))]
    of_library = made([Span("a", None, 1, 2, partial(lambda each: each, each)) for each in facts])
    assert ExportTraceServiceRequest.FromString(encoded(of_library)) == encode_spans(of_library)
