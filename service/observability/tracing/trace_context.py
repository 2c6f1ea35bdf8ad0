"""The trace context says to which trace a caller's request belongs: W3C Trace Context, read from headers. It knows no
library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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
