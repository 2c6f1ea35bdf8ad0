"""A span is one request as a trace shows it: its name, its time, facts, and its caller's span from the header
`traceparent`. This module holds values only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

TRACEPARENT: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
"""https://www.w3.org/TR/trace-context/#traceparent-header; a later version may add fields behind ours."""
SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The caller's span. `trace_id` has 32 hex digits, `span_id` 16; `states` are the `tracestate` headers as they
    came."""

    trace_id: str
    span_id: str
    flags: int
    states: tuple[str, ...] = ()

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)


def trace_context(parents: Sequence[str], states: Sequence[str]) -> TraceContext | None:
    """Returns what the `traceparent` and `tracestate` headers say. Returns None where there is no `traceparent`, or
    none that can be followed: the specification wants a new trace then."""
    if len(parents) != 1:
        return None
    found = TRACEPARENT.fullmatch(parents[0].strip(" \t"))
    if found is None or (found["version"] == "00" and found["more"]):
        return None
    return TraceContext(found["trace"], found["span"], int(found["flags"], 16), tuple(states))


Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Event:
    """A moment of a span, in nanoseconds since 1970."""

    name: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What a span says beside its name. `failure` is why the server failed; None where it did what it should."""

    attributes: Attributes
    events: Sequence[Event] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A request that has ended, in nanoseconds since 1970. `facts` is called only where the span is recorded."""

    name: str
    parent: TraceContext | None
    start_ns: int
    end_ns: int
    facts: Callable[[], Facts]


class Tracer(Protocol):
    """Takes spans and sends them to a collector."""

    def record(self, span: Span) -> str | None:
        """Takes a span: its parent's sampled flag, else the sampler, says whether it is sent. Returns the id of its
        trace, also where it is not sent; None where tracing failed. Never waits and never raises."""
        ...

    async def close(self) -> None:
        """Sends what waits, for a bounded time. Later spans are dropped."""
        ...
