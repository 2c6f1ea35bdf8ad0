"""The header `traceparent` is read as the W3C's specification says."""

from __future__ import annotations

import pytest

from service.observability.tracing import trace_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_parent() -> None:
    found = trace_context([f" 00-{TRACE}-{SPAN}-01\t"], ["a=1", "b=2"])
    assert found is not None
    assert (found.trace_id, found.span_id, found.is_sampled, found.states) == (TRACE, SPAN, True, ("a=1", "b=2"))


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("ff", True)])
def test_the_sampled_flag_is_the_last_bit(flags: str, sampled: bool) -> None:
    found = trace_context([f"00-{TRACE}-{SPAN}-{flags}"], [])
    assert found is not None and found.is_sampled is sampled


def test_a_later_version_may_say_more() -> None:
    assert trace_context([f"cc-{TRACE}-{SPAN}-01-what-comes"], []) is not None


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [""],
        [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"],
        [f"00-{TRACE}-{SPAN}-01-more"],
        [f"ff-{TRACE}-{SPAN}-01"],
        [f"00-{'0' * 32}-{SPAN}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"00-{TRACE.upper()}-{SPAN}-01"],
        [f"00-{TRACE}-{SPAN}-1"],
        [f"00-{TRACE}-{SPAN}"],
        [f"cc-{TRACE}-{SPAN}-01more"],
        ["00-" + "x" * 10_000],
    ],
)
def test_what_cannot_be_followed_begins_a_new_trace(headers: list[str]) -> None:
    assert trace_context(headers, ["a=1"]) is None
