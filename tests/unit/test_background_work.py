"""Background work: no share of a step while a client's prompt waits; places and blocks are given back."""

from __future__ import annotations

import pytest

from service.engine.scheduling import scheduler as module
from service.engine.scheduling.cost import StepWork
from tests.fakes import make_request, make_scheduler
from tests.unit.test_scheduler import measured_scheduler, step


def test_it_pauses_while_a_prompt_waits_and_goes_on_beside_its_decodes() -> None:
    scheduler = make_scheduler(num_blocks=64, max_num_batched_tokens=16)
    scheduler.add(make_request("line", range(6), priority=-2, max_tokens=9))
    assert step(scheduler)[0] == [("line", 6)]
    scheduler.add(make_request("client", range(20, 44), arrival=1))
    scheduler.add(make_request("next line", range(60, 64), priority=-2, arrival=0.5))
    assert step(scheduler)[0] == [("client", 16)]
    assert step(scheduler)[0] == [("client", 8)]
    assert step(scheduler, now=1.0)[0] == [("client", 1), ("line", 1), ("next line", 4)]


def test_without_the_pause_the_same_steps_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug, planted."""
    monkeypatch.setattr(module, "clients_wait", lambda running, waiting: False)
    with pytest.raises(AssertionError):
        test_it_pauses_while_a_prompt_waits_and_goes_on_beside_its_decodes()


def test_lines_have_a_twentieth_of_the_clients_time_and_all_of_the_rest() -> None:
    scheduler = measured_scheduler()
    for n in range(8):
        scheduler.add(make_request(f"line {n}", [n + 1], priority=-2, max_tokens=999, arrival=n))
    step(scheduler)
    scheduler.add(make_request("client", [9], arrival=20, max_tokens=500))
    rows = [len(step(scheduler, now=0.011 * n)[0]) - 1 for n in range(500)]
    assert 0.8 * 0.05 <= 0.001 * sum(rows) / (0.011 * 500) <= 0.05, "a row of a line takes 1 ms"
    assert max(rows) <= 5 and min(rows) == 0
    assert len(step(scheduler, now=10.0)[0]) == 8, "the client has ended"


def test_a_line_s_prompt_is_paid_off_beside_clients() -> None:
    """It starves for no client, however long a chunk of it takes."""
    scheduler = measured_scheduler()
    scheduler.add(make_request("client", [9], max_tokens=900))
    step(scheduler)
    scheduler.add(make_request("line", range(100, 140), priority=-2, max_tokens=1, arrival=1))
    steps, computed = 0, 0
    while computed < 40:
        steps += 1
        computed += dict(step(scheduler, now=0.011 * steps)[0]).get("line", 0)
    assert 0.8 <= 0.05 * 0.011 * steps / (0.001 * 40) <= 1.3
    assert steps > 50


def test_what_the_server_does_for_its_clients_is_no_line() -> None:
    """A summary should be there for the next turn."""
    scheduler = measured_scheduler()
    scheduler.add(make_request("client", [9], max_tokens=90))
    step(scheduler)
    scheduler.add(make_request("summary", [1], priority=-1, max_tokens=50, arrival=1))
    assert [len(step(scheduler)[0]) for _ in range(9)] == [2] * 9


def test_seats_are_given_back() -> None:
    scheduler = make_scheduler(num_blocks=64, max_num_seqs=2)
    for n in range(2):
        scheduler.add(make_request(f"line {n}", [n + 1], priority=-2, max_tokens=9, arrival=n))
    step(scheduler)
    scheduler.add(make_request("client", [9], arrival=2, max_tokens=3))
    assert step(scheduler)[0] == [("client", 1)]
    assert [each.num_preemptions for each in scheduler.waiting] == [1]
    assert scheduler.num_preemptions == 0, "no blocks are wanting: an operator can mend nothing"
    assert [name for name, _ in step(scheduler)[0]] == ["client"]
    assert [name for name, _ in step(scheduler, now=1.0)[0]] == ["client", "line 0"]
    assert [name for name, _ in step(scheduler)[0]] == ["line 0", "line 1"]


def test_blocks_are_given_back() -> None:
    scheduler = make_scheduler(num_blocks=6, prefix_caching=False)
    scheduler.add(make_request("line", range(16), priority=-2, max_tokens=4))
    step(scheduler)
    scheduler.add(make_request("client", range(30, 46), arrival=1, max_tokens=2))
    assert step(scheduler)[0] == [("client", 16)]
    assert [each.num_preemptions for each in scheduler.waiting] == [1]
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
        scheduler.policy.observe(StepWork(tokens), 0.001 + 0.0001 * tokens)
    scheduler.add(make_request("line", range(400), priority=-2, max_tokens=1))
    [(_, tokens)] = step(scheduler)[0]
    assert 40 <= tokens <= 60, "5 ms, a twentieth of the target"
    scheduler.abort(["line"])
    step(scheduler)
    scheduler.add(make_request("client", range(500, 900), max_tokens=1))
    assert step(scheduler)[0] == [("client", 400)]
