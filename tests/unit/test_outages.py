"""Outages log each change once, and say what fails now."""

from __future__ import annotations

from structlog.testing import capture_logs

from service.storage.outages import FORGOTTEN_SECONDS, QUIET_SECONDS, Outages


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_outage_is_told_once_and_its_end_once() -> None:
    clock = Clock()
    outages = Outages("store", clock=clock)
    with capture_logs() as logged:
        for clock.now in range(30):
            outages.began("writing", "It is full", f"full {clock.now}", "full")
            outages.ended("reading", "writing")  # another page, which is well
        assert outages.sentences == ["It is full"] and outages.is_failing()
        outages.began("writing", "It is gone", "gone", "gone")
        clock.now += QUIET_SECONDS
        outages.ended("reading")
        assert outages.sentences == ["It is gone"]
        outages.ended("reading", "writing")
        outages.ended("reading", "writing")
    assert [(each["event"], each.get("reason")) for each in logged] == [
        ("store_failed", "full 0"),
        ("store_failed", "gone"),
        ("store_back", None),
    ]
    assert logged[-1]["seconds"] == clock.now and not outages.is_failing()


def test_what_nobody_uses_any_more_is_not_said_to_fail() -> None:
    clock = Clock()
    outages = Outages("store", clock=clock)
    with capture_logs() as logged:
        outages.began("connecting", "It is away", "away")
        clock.now += FORGOTTEN_SECONDS
        assert outages.sentences == []
        outages.began("connecting", "It is away", "away")
        outages.ended("connecting", quiet=0)
    assert [each["event"] for each in logged] == ["store_failed", "store_failed", "store_back"]
