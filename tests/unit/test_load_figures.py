"""Figures of samples, limits and verdicts, baselines, and what a reply of each route says."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import msgspec
import numpy as np
import pytest
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from loadtest.run import arguments
from loadtest.runner import html_page, result, sample
from loadtest.runner.address import parse_address
from loadtest.runner.arrivals import InFlight, unanswered
from loadtest.runner.generator import Generator, watch
from loadtest.runner.judging import Check, cached_otherwise, checks, figures, verdict
from loadtest.runner.replies import Reply, Splitter, data_of, read
from loadtest.runner.result import Baseline, Host, Result
from loadtest.runner.sample import Sample
from service.evaluation.scenarios.figures import NotMeasured, percentile
from service.evaluation.scenarios.reading import parse
from service.evaluation.scenarios.requests import due_times
from service.evaluation.scenarios.scenario import OpenLoop

HERE = parse_address("http://127.0.0.1:3000")
HOST = Host("a processor", "x86_64", 2, 24)
SCENARIO = parse(
    {
        "name": "small",
        "load": {"kind": "open", "rate": 10, "seconds": 20},
        "requests": [{"route": "/generate_stream"}],
        "limits": {"ttft_p95_ms": 100, "tokens_per_second": 10, "failed_ratio": 0.01},
        "worse_by": {"ttft_p95_ms": 0.2, "tokens_per_second": 0.2},
    }
)


def made(due: float = 5.0, ttft: float = 20.0, gaps: int = 3, error: str = "", **others: Any) -> Sample:
    return Sample(
        id="load-0", due=due, sent=due, route="/generate_stream", status=200, error=error, model="demo:2",
        tokens=gaps + 1, ttft_ms=ttft, itl_ms=[5.0] * gaps, e2e_ms=ttft + 5.0 * gaps, **others,
    )  # fmt: skip


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.sampled_from([50, 95, 99]))
def test_percentiles_are_numpys(values: list[float], percent: int) -> None:
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_figures_count_whole_answers_over_the_time_until_the_last_of_them() -> None:
    samples = [made(), made(ttft=40.0), made(error="cut"), made(error="status 503", refused=True)]
    late = made(due=24.0, ttft=4000.0, gaps=200)
    found = figures([*samples, late], (5.0, 25.0))
    assert found["ttft_p50_ms"] == 40.0 and found["e2e_p50_ms"] == 55.0 and found["itl_p99_ms"] == 5.0
    assert (found["failed_ratio"], found["refused_ratio"], found["error_ratio"]) == (0.4, 0.2, 0.2)
    assert found["requests_per_second"] == pytest.approx(3 / 24.0)  # the last answer ends at 29 s
    assert found["tokens_per_second"] == pytest.approx((4 + 4 + 201) / 24.0)
    assert found["versions"] == 1
    prompts = [made(prompt_tokens=30, cached_tokens=30), made(prompt_tokens=10), made(error="cut", prompt_tokens=9)]
    assert figures(prompts, (5.0, 25.0))["cached_ratio"] == 0.75


def test_no_answer_gives_no_latency() -> None:
    found = figures([made(error="cut")], (5.0, 25.0))
    assert found["ttft_p50_ms"] is None and found["failed_ratio"] == 1 and found["tokens_per_second"] == 0


def test_a_request_that_was_due_and_got_no_answer_has_failed() -> None:
    load = SCENARIO.load
    assert isinstance(load, OpenLoop)
    dues = [round(due, 6) for due in due_times(load)]
    answered = [made(due=due) for due in dues[:-60]]
    cut = [InFlight(f"load-{due}", due, due + 0.5, "/generate_stream") for due in dues[-60:-50]]
    found = unanswered(SCENARIO, answered, cut, 90.0)
    assert len(answered) + len(found) == len(dues) and {each.due for each in (*answered, *found)} == set(dues)
    reasons = [each.error.partition(":")[0] for each in found]
    assert reasons == ["no whole answer before the end of the run"] * 10 + ["never sent"] * 50
    assert found[0].sent == round(cut[0].sent, 6) and found[-1].sent == 90.0 and "raise users" in found[-1].error
    assert all(each.counts for each in found), "they were due in the counted seconds"
    assert figures([*answered, *found], load.window)["failed_ratio"] == 60 / len(dues)
    assert unanswered(SCENARIO, [made(due=due) for due in dues], [], 90.0) == []


def test_the_generator_is_watched_in_the_seconds_of_the_load() -> None:
    """It ends with them, though the run is not over; a timer that cannot fire is late."""
    watching = gevent.spawn(watch, 0.05, Event())
    gevent.sleep(0)
    end = time.perf_counter() + 0.3
    used = time.process_time()
    while time.perf_counter() < end or time.process_time() < used + 0.05:
        pass
    took = watching.get(timeout=20)
    assert took.late_ms > 250 and took.cores > 0
    with pytest.raises(NotMeasured, match="generator itself was late"):
        replace(took, cores=0.5).check()


@pytest.mark.parametrize(
    ("generator", "said"),
    [(Generator(0.91, 0.0), "busy"), (Generator(0.1, 251.0), "late"), (Generator(0.9, 250.0), "")],
)
def test_a_generator_that_measures_itself_measures_nothing(generator: Generator, said: str) -> None:
    with pytest.raises(NotMeasured, match=f"the load generator itself was {said}") if said else nullcontext():
        generator.check()


@pytest.mark.parametrize("option", ["--ke", "--k"])
def test_an_option_that_is_cut_short_is_none(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The reports hide what follows --key, and no other word."""
    with pytest.raises(SystemExit):
        arguments(["smoke.toml", "--host", "http://x", "--out", "y", option, "secret"])
    assert f"unrecognized arguments: {option}" in capsys.readouterr().err


def judged(found: dict[str, float | None], counted: int = 200, baseline: Any = None) -> tuple[list[Check], str, str]:
    limits = checks(SCENARIO, figures([], (0.0, 1.0)) | found, baseline)
    return limits, *verdict(limits, counted, 100)


GOOD: dict[str, float | None] = {"ttft_p95_ms": 100.0, "tokens_per_second": 10.0, "failed_ratio": 0.01}


def test_a_limit_holds_at_its_border() -> None:
    limits, said, why = judged(GOOD)
    assert said == "holds" and not why and [check.holds for check in limits] == [True] * 3


@pytest.mark.parametrize(
    ("figure", "value", "sentence"),
    [
        ("ttft_p95_ms", 100.1, "ttft_p95_ms is 100.1; at most 100"),
        ("tokens_per_second", 9.9, "tokens_per_second is 9.9; at least 10"),
    ],
)
def test_a_broken_limit_is_named(figure: str, value: float, sentence: str) -> None:
    limits, said, why = judged(GOOD | {figure: value})
    assert (said, why) == ("broken", sentence)
    assert [check.figure for check in limits if not check.holds] == [figure]


def test_too_few_samples_judge_nothing() -> None:
    assert judged(GOOD | {"failed_ratio": 1.0}, counted=99)[1:] == (
        "not measured", "99 requests count, and the scenario needs 100"
    )  # fmt: skip


def test_where_all_fail_the_failures_are_named_and_where_a_figure_is_missing_nothing_is_measured() -> None:
    missing: dict[str, float | None] = {"ttft_p95_ms": None}
    assert judged(GOOD | missing | {"failed_ratio": 1.0})[1] == "broken"
    assert judged(GOOD | missing)[1:] == ("not measured", "no answer gives ttft_p95_ms")


@pytest.mark.parametrize(
    ("figure", "before", "value", "holds"),
    [
        ("ttft_p95_ms", 50.0, 60.0, True),
        ("ttft_p95_ms", 50.0, 60.1, False),
        ("tokens_per_second", 20.0, 16.0, True),
        ("tokens_per_second", 20.0, 15.9, False),
    ],
)
def test_worse_than_the_baseline_by_more_than_the_ratio(figure: str, before: float, value: float, holds: bool) -> None:
    limits, said, _ = judged(GOOD | {figure: value}, baseline=GOOD | {figure: before})
    check = next(each for each in limits if each.against == "baseline" and each.figure == figure)
    assert check.holds is holds and said == ("holds" if holds else "broken")


@pytest.mark.parametrize(
    ("now", "before", "said"),
    [(0.95, 0.02, "knew 95% of the prompts, and 2% in the baseline"), (0.5, 0.45, ""), (0.5, None, "")],
)
def test_a_run_that_found_its_prompts_cached_is_not_compared(now: float, before: float | None, said: str) -> None:
    sentence = cached_otherwise({"cached_ratio": now}, {"cached_ratio": before} if before else {})
    assert said in sentence and bool(sentence) == bool(said)


def a_result(**changes: Any) -> Result:
    limits = [Check("ttft_p95_ms", 100.0, 120.0, False), Check("itl_p50_ms", 9.0, None, False, "baseline")]
    fields: dict[str, Any] = {
        "scenario": "small", "description": "<b>what</b> it is", "scenario_digest": SCENARIO.digest,
        "verdict": "broken", "why": "ttft_p95_ms is 120; at most 100", "host": HOST, "target": "localhost",
        "url": HERE.url, "server": None, "commit": "abc1234", "command": "python -m loadtest.run x.toml",
        "date": "2026-11-23T00:00:00+00:00", "window": (5.0, 25.0), "requests": 3, "counted": 2,
        "generator_cores": 0.1, "monotonic_began": 1.0, "figures": figures([made()], (5.0, 25.0)), "limits": limits,
        "baseline": Baseline("before", "2026-11-22", {"ttft_p95_ms": 10.0}), "versions": {"demo:2": 2},
        "errors": {"status 500: <script>": 1}, "actions": [(9.0, "demo@production promoted to version 1")],
    }  # fmt: skip
    return Result(**(fields | changes))


def stored(directory: Path, **changes: Any) -> Path:
    result.write(directory, a_result(**changes))
    return directory


def test_a_baseline_of_the_same_load_and_host_on_any_port(tmp_path: Path) -> None:
    address = parse_address("http://localhost:9999")
    assert result.read_baseline(stored(tmp_path), SCENARIO, address, HOST).commit == "abc1234"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scenario": "chat"}, "is of scenario chat, this is small"),
        ({"scenario_digest": "0"}, "its load has changed"),
        ({"host": Host("another", "x86_64", 2, 24)}, "was measured on another host, another"),
        ({"target": "10.0.0.7"}, "is of another host, 10.0.0.7; this is localhost"),
        ({"verdict": "not measured", "why": "too few"}, "measured nothing: too few"),
    ],
)
def test_a_baseline_that_cannot_be_compared(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(NotMeasured, match=said):
        result.read_baseline(stored(tmp_path, **changes), SCENARIO, HERE, HOST)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"scenario": "small"}'])
def test_a_baseline_that_is_no_result(tmp_path: Path, text: str) -> None:
    (tmp_path / "figures.json").write_text(text)
    with pytest.raises(NotMeasured, match="is no result of this command"):
        result.read_baseline(tmp_path, SCENARIO, HERE, HOST)
    with pytest.raises(NotMeasured, match="No such file"):
        result.read_baseline(tmp_path / "nowhere", SCENARIO, HERE, HOST)


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    samples = [made(), made(error="cut", counts=False)]
    sample.write(tmp_path / "samples.jsonl", samples)
    assert sample.read(tmp_path / "samples.jsonl") == samples


def test_the_page_is_one_file_and_escapes_what_others_say() -> None:
    page = html_page.page(a_result(), [made(), made(due=6.0), made(error="cut")])
    for foreign in ("<script", "<link", "src=", "href=", "url(", "@import", "<b>what"):
        assert foreign not in page
    assert page.count("<svg") == 3 and "ttft_p95_ms is 120" in page and "promoted to version 1" in page


@given(st.lists(st.binary(min_size=1, max_size=9).map(lambda b: b.hex().encode()), max_size=6), st.data())
def test_events_are_found_in_any_pieces(texts: list[bytes], data: st.DataObject) -> None:
    end = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    body = b"".join(b": c" + end + b"data: " + text + end + end for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    splitter, found = Splitter(), list[bytes]()
    for begin, stop in zip([0, *cuts], [*cuts, len(body)], strict=True):
        found += splitter.feed(body[begin:stop])
    assert [data_of(event) for event in found] == texts


def streamed(*events: object, **headers: str) -> Reply:
    lines = [(float(at), b"data: " + msgspec.json.encode(each)) for at, each in enumerate(events)]
    return Reply(status=200, headers={"content-type": "text/event-stream", **headers}, events=lines)


NATIVE = {"index": 1, "token": {"id": 1, "text": "a"}, "generated_text": None}
LAST = NATIVE | {
    "generated_text": "aa",
    "model": "demo:2",
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 2},
}


def test_a_native_stream() -> None:
    answer = read(streamed(NATIVE, LAST, **{"x-model-version": "demo:2"}))
    assert not answer.error and answer.token_times == [0.0, 1.0] and answer.text == "aa"
    assert (answer.tokens, answer.prompt_tokens, answer.cached_tokens, answer.model) == (2, 3, 2, "demo:2")


def test_a_stream_of_openais_dialect() -> None:
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": None}
    cached = {"prompt_tokens_details": {"cached_tokens": 2}}
    usage = {"choices": [], "model": "demo:2", "usage": {"prompt_tokens": 3, "completion_tokens": 1, **cached}}
    reply = streamed(role, {"choices": [{"delta": {"content": "a"}}]}, usage)
    reply.events.append((9.0, b"data: [DONE]"))
    answer = read(reply)
    assert not answer.error and answer.token_times == [1.0] and (answer.tokens, answer.cached_tokens) == (1, 2)


EMPTY = {"model": "demo:2", "usage": {"prompt_tokens": 3, "completion_tokens": 0}}


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=200, body=msgspec.json.encode(EMPTY | {"generated_text": ""})),
        Reply(status=200, body=msgspec.json.encode(EMPTY | {"choices": [{"text": ""}]})),
        streamed(EMPTY | {"generated_text": ""}),
        streamed({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, EMPTY | {"choices": []}),
    ],
)
def test_a_whole_answer_may_have_no_text(reply: Reply) -> None:
    answer = read(reply)
    assert (answer.error, answer.text, answer.prompt_tokens, answer.tokens) == ("", "", 3, 0)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(error="Cut: closed"), "Cut: closed"),
        (Reply(status=500, body=b"planted"), "status 500: planted"),
        (Reply(status=503, body=b'{"error": "512 taken", "request_id": "a"}'), "status 503: 512 taken"),
        (Reply(status=400, body=b'{"error": {"message": "no model"}}'), "status 400: no model"),
        (streamed(NATIVE), "the stream ended without its last event"),
        (streamed(LAST | {"token": None} | {"choices": []}), "unreadable answer"),
        (streamed(NATIVE, {"error": "engine died"}), "error in the stream: engine died"),
        (streamed(NATIVE, LAST, **{"x-model-version": "demo:1"}), "the answer names two versions: demo:1"),
        (Reply(status=200, body=b"{"), "unreadable answer"),
        (Reply(status=200, body=b"[]"), "unreadable answer"),
    ],
)
def test_what_is_no_whole_answer(reply: Reply, error: str) -> None:
    assert read(reply).error.startswith(error)


def test_only_a_refusal_that_says_when_to_come_back_is_one() -> None:
    assert Reply(status=503, headers={"retry-after": "1"}).refused
    assert not Reply(status=503).refused and not Reply(status=500, headers={"retry-after": "1"}).refused
