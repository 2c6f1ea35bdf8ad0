"""Scenarios: what a file may say, the borders of every field, and the sentence for what it may not say."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadtest.runner.address import parse_address
from service.evaluation.scenarios.figures import NotMeasured
from service.evaluation.scenarios.reading import parse, read_scenario
from service.evaluation.scenarios.requests import due_times
from service.evaluation.scenarios.scenario import OpenLoop

SCENARIOS = sorted((Path(__file__).parents[2] / "loadtest" / "scenarios").glob("*.toml"))
SMALL: dict[str, Any] = {
    "name": "small",
    "load": {"kind": "open", "rate": 10, "seconds": 20},
    "requests": [{"route": "/generate_stream"}],
    "actions": [{"kind": "promote", "at_seconds": 1, "model": "demo", "version": "1"}],
    "limits": {"ttft_p95_ms": 100},
}
CLOSED = {"kind": "closed", "users": 4, "seconds": 20}


def changed(path: str, value: object) -> dict[str, Any]:
    """`SMALL` with another value at a dotted path."""
    made = deepcopy(SMALL)
    *places, last = path.split(".")
    part: Any = made
    for place in places:
        part = part[int(place)] if place.isdigit() else part.setdefault(place, {})
    part[last] = value
    return made


def refusal(given: dict[str, Any]) -> str:
    with pytest.raises(NotMeasured) as refused:
        parse(given)
    return str(refused.value)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_of_the_repository(path: Path) -> None:
    scenario = read_scenario(path)
    assert scenario.name == path.stem and scenario.description and scenario.worse_by


def test_there_is_one_for_each_purpose_and_smoke_is_short() -> None:
    names = {path.stem for path in SCENARIOS}
    assert names >= {"smoke", "chat", "mixed", "overload", "swap", "canary", "batches"}
    assert read_scenario(next(path for path in SCENARIOS if path.stem == "smoke")).load.window[1] <= 50


@pytest.mark.parametrize(
    ("path", "key", "nearest"),
    [
        ("descripton", "descripton", "description"),
        ("load.rat", "rat", "rate"),
        ("load.user", "user", "users"),
        ("requests.0.prompt_word", "prompt_word", "prompt_words"),
        ("actions.0.verson", "verson", "version"),
        ("limits.ttft_p97_ms", "ttft_p97_ms", "ttft_p99_ms"),
        ("worse_by.tokens_per_secnd", "tokens_per_secnd", "tokens_per_second"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(path: str, key: str, nearest: str) -> None:
    said = refusal(changed(path, 1))
    assert f'"{key}"' in said and f'did you mean "{nearest}"?' in said


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("load.rate", 0, "load.rate: input should be greater than 0, not 0"),
        ("load.rate", "a", "load.rate: input should be a valid number, not 'a'"),
        ("load.rate", True, "load.rate: input should be a valid number, not True"),
        ("load.rate", float("nan"), "load.rate: input should be a finite number"),
        ("load.kind", "half", "load.kind is one of open, closed"),
        ("load.min_samples", 1000, "min_samples is 1000, but 10 a second for 20 s are about 200 requests"),
        ("load", CLOSED | {"rate": 3}, 'unknown key "rate" in [load]'),
        ("load.think_seconds", 1, 'unknown key "think_seconds" in [load]'),
        ("requests", [], "requests: list should have at least 1 item"),
        ("requests.0.route", "/v2/models", "requests[1].route: input should be '/generate_stream'"),
        ("requests.0.prompt_words", [9, 3], "requests[1].prompt_words: the least comes first: [3, 9]"),
        ("requests.0.prompt_words", [0, 3], "requests[1].prompt_words: input should be greater than or equal to 1"),
        ("requests.0.prompts", 4, "prompts acts on /v1/completions alone, not on /generate_stream"),
        ("requests.0.turns", 4, 'turns needs kind = "closed"'),
        ("actions.0.at_seconds", 25, "at_seconds is 25, but the run ends after 25 s"),
        ("actions.0.kind", "delete", "actions[1].kind is one of promote, rollout, abort_rollout, promote_rollout"),
        ("limits", {}, "limits: dictionary should have at least 1 item"),
        ("limits.ttft_p95_ms", -1, "limits.ttft_p95_ms: input should be greater than or equal to 0, not -1"),
        ("limits.failed_ratio", 1.5, "failed_ratio is a ratio: its limit is at most 1"),
        ("load.min_samples", 19, "ttft_p95_ms needs load.min_samples of 20 at least"),
        ("requests.0.route", "/generate", "ttft_p95_ms needs a route that streams"),
        ("worse_by.failed_ratio", 0.1, "worse_by.failed_ratio: a ratio of it says nothing"),
        ("worse_by.tokens_per_second", 1, "1 or more allows everything"),
    ],
)
def test_what_cannot_act_is_refused_by_name(path: str, value: object, said: str) -> None:
    assert said in refusal(changed(path, value))


@pytest.mark.parametrize(("place", "missing"), [("load", "load"), ("limits", "limits"), ("name", "name")])
def test_what_is_missing_is_named(place: str, missing: str) -> None:
    assert refusal({key: value for key, value in SMALL.items() if key != place}) == f"{missing} is missing"


@given(
    st.floats(0.5, 200),
    st.floats(0.5, 60),
    st.floats(0, 20),
    st.integers(0, 99),
    st.sampled_from(["poisson", "constant"]),
)
@example(rate=5.0, seconds=1.9, warmup=14.585377591093092, seed=0, arrivals="poisson")
@example(rate=0.5, seconds=3.0, warmup=1.1, seed=0, arrivals="constant")
def test_a_schedule_has_as_many_requests_as_its_rate_says(
    rate: float, seconds: float, warmup: float, seed: int, arrivals: Any
) -> None:
    load = OpenLoop(
        kind="open", rate=rate, seconds=seconds, warmup_seconds=warmup, seed=seed, arrivals=arrivals, min_samples=1
    ) if rate * seconds >= 1 else None  # fmt: skip
    if load is None:
        return
    times = due_times(load)
    counted = [at for at in times if at >= warmup]
    assert times == sorted(times) == due_times(load)
    assert len(counted) == round(rate * seconds) and len(times) - len(counted) == round(rate * warmup)
    assert all(0 <= at < warmup + seconds + 1 / rate for at in times)


def test_the_digest_is_of_the_load_and_not_of_the_limits() -> None:
    same = [changed("limits.ttft_p95_ms", 7), changed("description", "other"), changed("worse_by.itl_p50_ms", 0.1)]
    other = [changed("load.rate", 11), changed("load.seed", 2), changed("requests.0.turns", 1)]
    digests = [parse(each).digest for each in [*same, *other]]
    assert set(digests[:3]) == {parse(SMALL).digest}
    assert digests[3] != digests[0] != digests[4] and digests[5] == digests[0]  # 1 turn is the default


@pytest.mark.parametrize("url", ["127.0.0.1:3000", "ftp://h", "http://", "http://h:x", "http://u:p@h", "http://h?a=1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(NotMeasured, match="--host"):
        parse_address(url)


def test_names_of_the_loopback_are_one_machine() -> None:
    urls = ["http://localhost:1", "http://127.0.0.1:2/", "http://[::1]:3/prefix"]
    assert {parse_address(url).machine for url in urls} == {"localhost"}
    assert parse_address(urls[2]).url == "http://[::1]:3/prefix"


def test_a_file_that_is_no_scenario(tmp_path: Path) -> None:
    for text in ("a = ", "\x00"):
        (tmp_path / "x.toml").write_text(text)
        with pytest.raises(NotMeasured, match="is no TOML"):
            read_scenario(tmp_path / "x.toml")
    with pytest.raises(NotMeasured, match="No such file"):
        read_scenario(tmp_path / "y.toml")
