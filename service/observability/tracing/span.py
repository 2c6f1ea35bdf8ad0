"""A span is one request as a trace shows it: its name, its time, and facts. This module holds values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.observability.tracing.trace_context import TraceContext

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
