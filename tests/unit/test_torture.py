"""Every oracle of `loadtest.torture` finds what is planted for it, and nothing in a sound record."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from loadtest.histories import History, Turn, differences
from loadtest.torture import page
from loadtest.torture.endings import Dialect, Torn, canonical, ending
from loadtest.torture.faults import FAULTS
from loadtest.torture.ledger import Exchange, Life, Lives
from loadtest.torture.oracles import POOL_THREADS, Held, at_rest, judged, kept, of_drain, slope
from loadtest.torture.run import Plan, schedule

TOKEN = b'data: {"index": 1, "token": {"id": 7, "text": "a"}, "generated_text": null}\n\n'
LAST = b'data: {"index": 2, "token": {"id": 8, "text": "b"}, "generated_text": "ab", "id": "gen-1", "timings": {}}\n\n'
FAILED = b'event: error\ndata: {"error": "shutting down", "code": "unavailable"}\n\n'
WHOLE: dict[Dialect, bytes] = {
    "native": TOKEN + b": keep-alive\n\n" + LAST,
    "openai": b'data: {"id": "c-1", "choices": [{"delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n',
    "anthropic": b'event: ping\ndata: {"type": "ping"}\n\nevent: x\ndata: {"type": "a"}\n\n'
    b'event: message_stop\ndata: {"type": "message_stop"}\n\n',
    "ollama": b'{"message": {"content": "a"}, "done": false}\n \n{"done": true}\n',
    "whole": b'{"generated_text": "ab"}',
}
ERRORS: dict[Dialect, bytes] = {
    "native": TOKEN + FAILED,
    "openai": b'data: {"choices": []}\n\ndata: {"error": {"code": "unavailable"}}\n\ndata: [DONE]\n\n',
    "anthropic": b'event: error\ndata: {"type": "error", "error": {"type": "unavailable"}}\n\n',
    "ollama": b'{"done": false}\n{"error": "shutting down", "code": "unavailable"}\n',
    "whole": b'{"error": "shutting down", "code": "unavailable"}',
}
KEY = ("native", "0", "demo:2")
REFERENCES = {KEY: canonical("native", WHOLE["native"])}
SOUND = Exchange("native", 10.0, "native", "0", 12.0, 200, version="demo:2", body=WHOLE["native"])
READY = Life(0.0, 5.0)
KILLED, DRAINED = Life(0.0, 5.0, 11.0, 11.5, "kill"), Life(0.0, 5.0, 11.0, 13.0, "drain")
REFUSED = replace(SOUND, status=503, retry_after="1", body=b"{}")


@pytest.mark.parametrize("dialect", WHOLE)
def test_a_stream_is_read_to_its_dialects_end(dialect: Dialect) -> None:
    assert ending(dialect, WHOLE[dialect]) == ""
    assert ending(dialect, ERRORS[dialect]) == "unavailable"
    for at in range(len(WHOLE[dialect])):
        with pytest.raises(Torn):
            ending(dialect, WHOLE[dialect][:at])
    if dialect != "whole":
        with pytest.raises(Torn, match="behind its end"):
            ending(dialect, WHOLE[dialect] * 2)


def test_what_is_the_same_each_time_leaves_out_names_and_times_only() -> None:
    other = WHOLE["native"].replace(b"gen-1", b"gen-2").replace(b'"timings": {}', b'"timings": {"ttft_ms": 3}')
    assert canonical("native", other) == REFERENCES[KEY]
    for one, changed in ((b'"id": 7', b'"id": 9'), (b'"text": "b"', b'"text": "c"'), (b'"ab"', b'"ac"')):
        assert canonical("native", WHOLE["native"].replace(one, changed)) != REFERENCES[KEY]


SOUND_RECORDS = {
    "a whole answer": (SOUND, READY),
    "an unknown version has no reference": (replace(SOUND, version="demo:3", body=TOKEN + LAST), READY),
    "a client that left": (replace(SOUND, body=TOKEN[:9], has_left=True), READY),
    "cut by SIGKILL": (replace(SOUND, body=TOKEN[:9], lost="ClientPayloadError"), KILLED),
    "refused beside no service": (replace(SOUND, sent_at=3.0, ended_at=3.1, lost="refused"), READY),
    "503 in a start": (replace(REFUSED, sent_at=3.0), READY),
    "503 in a drain": (REFUSED, DRAINED),
    "an error event in a drain": (replace(SOUND, body=ERRORS["native"]), DRAINED),
}
PLANTED = {
    "a stream cut inside an event": (replace(SOUND, body=TOKEN + LAST[:20]), READY, "torn: it ends inside an event"),
    "a stream without its end": (replace(SOUND, body=TOKEN), READY, "torn: nothing ends it"),
    "a connection lost": (replace(SOUND, body=TOKEN, lost="ClientPayloadError"), READY, "ClientPayloadError after"),
    "a connection lost in a drain": (replace(SOUND, body=TOKEN, lost="ClientPayloadError"), DRAINED, "after"),
    "lost behind a kill": (replace(SOUND, sent_at=11.6, lost="ServerDisconnectedError"), KILLED, "after"),
    "refused beside a service": (replace(SOUND, lost="refused", status=0, body=b""), READY, "refused after no answer"),
    "another token": (replace(SOUND, body=WHOLE["native"].replace(b": 7", b": 9")), READY, "another answer than alone"),
    "another logprob": (
        replace(SOUND, body=WHOLE["native"].replace(b'"text": "a"', b'"text": "a", "logprob": -0.1')),
        READY,
        "another answer than alone",
    ),
    "an error event": (replace(SOUND, body=ERRORS["native"]), READY, "error event unavailable"),
    "an error event beside an engine kill": (replace(SOUND, body=ERRORS["native"]), KILLED, "error event unavailable"),
    "503 of a ready service": (REFUSED, READY, "503"),
    "500": (replace(REFUSED, status=500), DRAINED, "500"),
    "503 without Retry-After": (replace(REFUSED, retry_after=""), DRAINED, "503 without Retry-After"),
}


@pytest.mark.parametrize("case", SOUND_RECORDS)
def test_nothing_is_found_in(case: str) -> None:
    exchange, life = SOUND_RECORDS[case]
    assert judged(exchange, Lives([life]), REFERENCES) == ""


@pytest.mark.parametrize("case", PLANTED)
def test_found_is(case: str) -> None:
    exchange, life, finding = PLANTED[case]
    assert finding in judged(exchange, Lives([life]), REFERENCES)


def _probe(kind: str, at: float, status: int, retry_after: str = "", lost: str = "") -> Exchange:
    return Exchange(kind, at, ended_at=at, status=status, retry_after=retry_after, lost=lost)


PROBES = [
    _probe("newcomer", 11.0, 200),
    _probe("livez", 11.1, 200),
    _probe("newcomer", 11.2, 503, "1"),
    _probe("livez", 12.6, 200),
    _probe("newcomer", 12.9, 0, lost="refused"),
]
DRAINS = {
    "503 without Retry-After": _probe("newcomer", 11.3, 503),
    "let in behind the first refusal": _probe("newcomer", 11.3, 200),
    "livez away": _probe("livez", 11.4, 0, lost="refused"),
    "livez without an answer": _probe("livez", 12.7, 0, lost="TimeoutError"),
    "livez 503": _probe("livez", 11.3, 503, "1"),
    "accepted and reset": _probe("newcomer", 12.9, 0, lost="ClientOSError"),
}


def test_a_drain_is_sound() -> None:
    assert of_drain(DRAINED, PROBES, 12.5, 0) == []
    assert of_drain(DRAINED, PROBES, 12.5, -9) == ["the exit status is -9"]


@pytest.mark.parametrize("case", DRAINS)
def test_a_drain_is_not_sound_with(case: str) -> None:
    assert len(of_drain(DRAINED, [*PROBES, DRAINS[case]], 12.5, 0)) == 1


def test_what_is_held_at_rest_is_found() -> None:
    held = Held(100.0, 20, 9)
    assert at_rest({"seats": 0.0}) == [] and at_rest({"seats": 1.0}) == ["seats is 1 at rest"]
    assert kept({"api": held}, {"api": replace(held, mib=900, threads=8)}) == []
    assert kept({"api": held}, {"api": replace(held, descriptors=22)}) == ["api has 2 descriptors more"]
    begun = replace(held, threads=9 + POOL_THREADS - 1)
    assert kept({"api": held}, {"api": begun}) == [], "the event loop's pool"
    more = f"api has {POOL_THREADS} threads more"
    assert kept({"api": held}, {"api": replace(begun, threads=begun.threads + 1)}) == [more]


def test_a_leak_has_a_slope_and_noise_has_none() -> None:
    draw = random.Random(0)
    flat = [(10.0 * at, 200 + draw.uniform(-3, 3)) for at in range(360)]
    assert abs(slope(flat)) < 1
    assert slope([(seconds, mib + seconds / 360) for seconds, mib in flat]) == pytest.approx(10, abs=1)


@pytest.mark.parametrize("mistake", ["lost", "doubled", "reordered", "torn", "another answer", "foreign"])
def test_a_turn_is_not(mistake: str) -> None:
    turns = [Turn(str(at), float(at), at + 0.5, f"answer {at}") for at in range(3)]
    stored = [{"role": role, "content": text} for turn in turns for role, text in _told(turn)]
    assert differences(History("s", turns), stored) == []
    planted: dict[str, list[dict[str, str | None]]] = {
        "lost": stored[:4],
        "doubled": [*stored, *stored[4:]],
        "reordered": [*stored[2:4], *stored[:2], *stored[4:]],
        "torn": stored[:5],
        "another answer": [*stored[:5], {"role": "assistant", "content": "other"}],
        "foreign": [*stored, {"role": "user", "content": "x"}, stored[1]],
    }
    assert differences(History("s", turns), planted[mistake]) != []


def _told(turn: Turn) -> list[tuple[str, str | None]]:
    return [("user", turn.text), ("assistant", turn.answer)]


def test_the_seed_decides_the_faults() -> None:
    def drawn(seed: int) -> list[tuple[float, str]]:
        return list(islice(schedule(Plan(seed, tuple(FAULTS), None, 1, 4.0, 1, False, Path())), 3 * len(FAULTS)))

    assert drawn(1) == drawn(1) != drawn(2)
    assert {kind for _, kind in drawn(1)[: len(FAULTS)]} == FAULTS.keys()


def test_the_page_is_what_its_results_say() -> None:
    assert page.PAGE.read_text() == page.page(page.kept_results())
