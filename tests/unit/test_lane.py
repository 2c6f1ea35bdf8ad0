"""Sequences behind the clients: no share of a step while a client's prompt waits; seats and blocks are given back."""

from __future__ import annotations

import pytest

from service.engine.scheduling import scheduler as module
from service.engine.scheduling.cost import Work
from tests.fakes import make_request, make_scheduler
from tests.unit.test_scheduler import step


def test_the_lane_pauses_while_a_prompt_waits_and_goes_on_beside_its_decodes() -> None:
    scheduler = make_scheduler(num_blocks=64, max_num_batched_tokens=16)
    scheduler.add(make_request("line", range(6), priority=-2, max_tokens=9))
    assert step(scheduler)[0] == [("line", 6)]
    scheduler.add(make_request("client", range(20, 44), arrival=1))
    scheduler.add(make_request("next line", range(60, 64), priority=-2, arrival=0.5))
    assert step(scheduler)[0] == [("client", 16)]
    assert step(scheduler)[0] == [("client", 8)]
    assert step(scheduler)[0] == [("client", 1), ("line", 1), ("next line", 4)]


def test_without_the_pause_the_same_steps_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug, planted."""
    monkeypatch.setattr(module, "clients_wait", lambda running, waiting: False)
    with pytest.raises(AssertionError):
        test_the_lane_pauses_while_a_prompt_waits_and_goes_on_beside_its_decodes()


def test_seats_are_given_back() -> None:
    scheduler = make_scheduler(num_blocks=64, max_num_seqs=2)
    for n in range(2):
        scheduler.add(make_request(f"line {n}", [n + 1], priority=-2, max_tokens=9, arrival=n))
    step(scheduler)
    scheduler.add(make_request("client", [9], arrival=2, max_tokens=2))
    assert step(scheduler)[0] == [("client", 1)]
    assert scheduler.num_preemptions == 1
    assert [name for name, _ in step(scheduler)[0]] == ["client", "line 0"]
    assert [name for name, _ in step(scheduler)[0]] == ["line 0", "line 1"]


def test_blocks_are_given_back() -> None:
    scheduler = make_scheduler(num_blocks=6, prefix_caching=False)
    scheduler.add(make_request("line", range(16), priority=-2, max_tokens=4))
    step(scheduler)
    scheduler.add(make_request("client", range(30, 46), arrival=1, max_tokens=2))
    assert step(scheduler)[0] == [("client", 16)] and scheduler.num_preemptions == 1
    while scheduler.has_work:
        step(scheduler)


def test_what_runs_behind_is_no_backlog_of_a_client() -> None:
    scheduler = make_scheduler(num_blocks=64, max_num_batched_tokens=16)
    scheduler.add(make_request("line", range(40), priority=-1))
    step(scheduler)
    assert scheduler.backlog().tokens == scheduler.backlog().prefills == 0
    scheduler.add(make_request("client", range(50, 60), arrival=1))
    assert scheduler.backlog().tokens == 10


def test_a_prompt_from_behind_makes_short_steps() -> None:
    scheduler = make_scheduler(num_blocks=256, max_num_batched_tokens=512)
    scheduler.policy.inter_token_latency_target = 0.1
    for n in range(400):
        tokens = 1 + 7 * n % 300
        scheduler.policy.observe(Work(tokens), 0.001 + 0.0001 * tokens)
    scheduler.add(make_request("line", range(400), priority=-2, max_tokens=1))
    [(_, tokens)] = step(scheduler)[0]
    assert 40 <= tokens <= 60, "5 ms, a twentieth of the target"
    scheduler.abort(["line"])
    step(scheduler)
    scheduler.add(make_request("client", range(500, 900), max_tokens=1))
    assert step(scheduler)[0] == [("client", 400)]
