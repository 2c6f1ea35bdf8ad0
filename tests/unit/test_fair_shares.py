"""Owners of one engine have equal shares of it while all of them want more, whatever each sends."""

from __future__ import annotations

from collections import Counter

import pytest

from service.engine.process.core import EngineCore
from service.engine.protocol.messages import AGEING_SECONDS
from service.engine.scheduling.deadlines import Deadlines
from service.engine.scheduling.fair_shares import FairShares
from tests.fakes import FakeClock, make_core, make_request, run_all

SEATS = 4


def core_of(**sent: int) -> EngineCore:
    """A core of SEATS places with so many requests of each owner, the first owner's before the next one's."""
    core = make_core(num_blocks=256, max_num_seqs=SEATS)
    for at, (owner, count) in enumerate(sent.items()):
        for number in range(count):
            core.add(make_request(f"{owner}{number}", owner=owner, arrival=100.0 * at + number, max_tokens=8))
    return core


def ends(core: EngineCore) -> list[str]:
    """The ids of all requests in the order of their ends."""
    order = []
    while core.has_work:
        order += [output.request_id for output in core.step() if output.finish_reason is not None]
    return order


def jain(shares: list[int]) -> float:
    """Jain's index of fairness: 1 where all shares are equal, 1/n where one has all."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def test_five_owners_with_long_lines_have_equal_shares() -> None:
    order = ends(core_of(a=200, b=20, c=20, d=40, e=20))
    shares = Counter(each[0] for each in order[:80])
    assert jain([shares[owner] for owner in "abcde"]) >= 0.99, shares


def test_shares_are_of_tokens_not_of_requests() -> None:
    core = make_core(num_blocks=256, max_num_seqs=SEATS)
    for number in range(60):
        core.add(make_request(f"a{number}", owner="a", arrival=number, max_tokens=4))
        core.add(make_request(f"b{number}", range(30), owner="b", arrival=number, max_tokens=30))
    order = ends(core)[:40]
    tokens = [sum(size for each in order if each[0] == owner) for owner, size in (("a", 3 + 4), ("b", 30 + 30))]
    assert jain(tokens) >= 0.95, tokens


def test_one_request_does_not_wait_behind_a_long_line() -> None:
    assert ends(core_of(greedy=100, light=1)).index("light0") <= 2 * SEATS


def test_who_was_away_has_saved_nothing_up() -> None:
    shares, core = FairShares(), core_of(a=100)
    for _ in range(50):
        core.step()
    for number in range(20):
        core.add(make_request(f"b{number}", owner="b", arrival=1e3 + number, max_tokens=8))
    order = [each[0] for each in ends(core)]
    assert abs(order[:24].count("a") - order[:24].count("b")) <= SEATS + 1
    assert not shares.is_shared


def test_who_had_little_running_for_long_has_saved_nothing_up() -> None:
    """One long stream beside another owner's many: a line that begins then has no more than its part."""
    core = make_core(num_blocks=256, max_num_seqs=2 * SEATS)
    core.add(make_request("b", owner="b", max_tokens=1500))
    asked = 0

    def fill(owner: str, count: int) -> None:
        nonlocal asked
        live = [*core.scheduler.running, *core.scheduler.waiting]
        for _ in range(count - sum(each.request.owner == owner for each in live)):
            core.add(make_request(f"{owner}{asked}", owner=owner, arrival=asked, max_tokens=8))
            asked += 1

    for _ in range(300):
        fill("a", 2 * SEATS - 1)
        core.step()
    tokens: Counter[str] = Counter()
    for _ in range(200):
        fill("a", 4 * SEATS)
        fill("b", 4 * SEATS)
        for output in core.step():
            tokens[output.request_id[0]] += len(output.token_ids)
    assert jain([tokens[owner] for owner in "ab"]) >= 0.95, tokens


def test_one_owner_is_served_in_order() -> None:
    order = ends(core_of(a=12))
    assert order == [f"a{number}" for number in range(12)]


def test_a_higher_priority_comes_first_whoever_sends_it() -> None:
    core = make_core(num_blocks=256, max_num_seqs=1)
    for number in range(3):
        core.add(make_request(f"a{number}", owner="a", arrival=number))
        core.add(make_request(f"b{number}", owner="b", arrival=number, priority=1))
    assert ends(core)[:3] == ["b0", "b1", "b2"]


def test_a_deadline_counts_the_turns_of_the_others_and_not_their_line() -> None:
    core = core_of(greedy=50, light=2)
    shares, waiting = core.scheduler._shares, core.scheduler.waiting
    ahead = shares.ahead(waiting, waiting[-1])
    assert Counter(each.request.owner for each in ahead) == {"greedy": 2, "light": 2}
    assert len(shares.ahead(waiting, waiting[49])) == 52


def test_a_deadline_counts_no_turns_for_what_goes_before_in_any_case() -> None:
    """Five of a higher priority are before everybody; behind them its owner has one request, as others have two."""
    core = make_core(num_blocks=256, max_num_seqs=SEATS)
    for number in range(5):
        core.add(make_request(f"a{number}", owner="a", arrival=number, priority=1))
        core.add(make_request(f"b{number}", owner="b", arrival=number))
    core.add(make_request("last", owner="a", arrival=9))
    waiting = core.scheduler.waiting
    ahead = core.scheduler._shares.ahead(waiting, waiting[-1])
    assert [each.request.id for each in ahead] == ["a0", "a1", "a2", "a3", "a4", "b0", "last"]


def test_a_deadline_counts_turns_by_tokens() -> None:
    core = make_core(num_blocks=256, max_num_seqs=SEATS)
    for number in range(4):
        core.add(make_request(f"a{number}", range(30), owner="a", arrival=number))
    for number in range(4):
        core.add(make_request(f"b{number}", range(10), owner="b", arrival=9 + number))
    waiting = core.scheduler.waiting
    ahead = core.scheduler._shares.ahead(waiting, waiting[-2])
    assert [each.request.id for each in ahead] == ["a0", "b0", "b1", "b2"]


def waited(priority: int, owners: str) -> float:
    """How long a request of that priority waits for the one place, which a request of 9 takes each second."""
    core = make_core(clock=(clock := FakeClock()), num_blocks=64, max_num_seqs=1)
    core.add(make_request("low", owner=owners[0], priority=priority, max_tokens=1))
    for number in range(200):
        core.add(make_request(f"high{number}", owner=owners[-1], priority=9, arrival=clock.now, max_tokens=1))
        if any(output.request_id == "low" for output in core.step()):
            return clock.now
        clock.advance(1)
    raise AssertionError("it starves")


@pytest.mark.parametrize("owners", ["a", "ab"])
@pytest.mark.parametrize("priority", [0, 5, 8])
def test_nobody_waits_for_ever_behind_a_higher_priority(priority: int, owners: str) -> None:
    most = (9 - priority) * AGEING_SECONDS
    assert most - AGEING_SECONDS < waited(priority, owners) <= most + 1


def test_without_ageing_the_lowest_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug, planted."""
    monkeypatch.setattr("service.engine.protocol.messages.AGEING_SECONDS", 1e9)
    with pytest.raises(AssertionError, match="starves"):
        waited(0, "a")


def test_background_work_gains_nothing_by_waiting() -> None:
    core = make_core(clock=(clock := FakeClock()), num_blocks=64, max_num_seqs=1)
    core.add(make_request("line", priority=-2))
    clock.advance(1e4)
    core.add(make_request("client", arrival=clock.now))
    assert ends(core) == ["client", "line"]


def test_who_has_gained_a_priority_keeps_it_while_it_runs() -> None:
    """So its blocks are not the first that are taken again."""
    core = make_core(clock=(clock := FakeClock()), num_blocks=64, max_num_seqs=2)
    core.add(make_request("low", max_tokens=8))
    clock.advance(9 * AGEING_SECONDS)
    for number in range(2):
        core.add(make_request(f"high{number}", priority=9, arrival=clock.now + number, max_tokens=8))
    core.step()
    assert [each.request.id for each in core.scheduler.running] == ["low", "high0"]
    core.scheduler.check_integrity()


def test_who_passes_a_higher_priority_does_not_take_it_over() -> None:
    """The place of an owner who has none running is no priority: those of a higher one are not preempted for it."""
    core = make_core(clock=(clock := FakeClock()), num_blocks=200, max_num_seqs=4, max_num_batched_tokens=64)
    for number in range(4):
        core.add(make_request(f"a{number}", [number] * 5, max_tokens=60, owner="a"))
    core.step()
    clock.advance(0.1)
    core.add(make_request("urgent", [9] * 5, max_tokens=60, priority=9, owner="a", arrival=clock.now))
    core.add(make_request("other", [8] * 5, max_tokens=60, owner="b", arrival=clock.now))
    core.step()
    ranked = [(each.request.id, each.priority) for each in core.scheduler.running]
    assert len(ranked) == 4 and ranked[-1] == ("other", 0)
    core.scheduler.check_integrity()


@pytest.mark.parametrize("owners", [1, 3])
def test_nothing_is_kept_of_owners_who_left(owners: int) -> None:
    core = core_of(**{f"owner{number}": 5 for number in range(owners)})
    run_all(core)
    assert not core.scheduler._shares._tokens and not core.scheduler._shares.is_shared


def first_token_step(core: EngineCore, id: str, most: int = 100) -> int:
    """How many steps it takes until a request has its first token."""
    for number in range(1, most):
        if any(output.request_id == id and output.token_ids for output in core.step()):
            return number
    raise AssertionError("no token")


@pytest.mark.parametrize("blocks", [256, 24], ids=["for want of a seat", "for want of blocks"])
def test_an_owner_with_nothing_running_does_not_wait_for_an_end(blocks: int) -> None:
    core = make_core(num_blocks=blocks, max_num_seqs=SEATS if blocks == 256 else 16)
    for number in range(16):
        core.add(
            make_request(f"a{number}", range(10 * number, 10 * number + 8), owner="a", arrival=number, max_tokens=40)
        )
    for _ in range(5):
        core.step()
    was = {each.request.id: list(each.token_ids) for each in core.scheduler.running}
    core.add(make_request("b0", range(500, 508), owner="b", arrival=1e3, max_tokens=40))
    core.add(make_request("b1", range(600, 608), owner="b", arrival=1e3, max_tokens=40))
    assert first_token_step(core, "b0") <= 2
    core.scheduler.check_integrity()
    now = {each.request.id for each in core.scheduler.running}
    assert "b0" in now and "b1" not in now, "one seat only is taken from others"
    if blocks == 256:
        assert was.keys() - now == {f"a{SEATS - 1}"}, "the newest one makes way"
        assert core.stats.preemptions_total == 0, "those for want of blocks, which an operator can mend"
    whole = run_all(core)
    assert {len(outputs) for outputs in whole.values()} != {0}


def test_nobody_makes_way_for_an_owner_who_runs_or_in_equal_parts() -> None:
    core = core_of(a=2, b=2)
    core.step()
    core.add(make_request("c0", owner="c", arrival=1e3, max_tokens=8))
    core.step()
    assert Counter(each.request.owner for each in core.scheduler.running) == {"a": 2, "b": 1, "c": 1}
    core.add(make_request("b9", owner="b", arrival=1e3, max_tokens=8))
    core.add(make_request("d0", owner="d", arrival=1e3, max_tokens=8))
    core.step()
    core.step()  # who has had as many tokens and came before is first, until a step has counted
    assert Counter(each.request.owner for each in core.scheduler.running) == {"a": 1, "b": 1, "c": 1, "d": 1}
    core.add(make_request("e0", owner="e", arrival=1e3, max_tokens=8))
    core.step()
    core.step()
    made_way = sum(each.num_preemptions for each in core.scheduler.waiting)
    assert made_way == 2, "of four with a seat each, none makes way for a fifth"


def test_who_has_had_much_gets_a_place_too() -> None:
    """Others are first by their tokens, and nobody makes way for them, for they have places."""
    core = core_of(a=2 * SEATS, b=2 * SEATS)
    for _ in range(3):
        core.step()
    core.scheduler._shares._tokens["c"] = 10**6
    core.add(make_request("c", owner="c", arrival=1e3, max_tokens=40))
    assert first_token_step(core, "c") <= 2
    core.scheduler.check_integrity()


def test_nobody_makes_way_for_a_lower_priority() -> None:
    core = make_core(num_blocks=256, max_num_seqs=SEATS)
    for number in range(SEATS):
        core.add(make_request(f"a{number}", owner="a", arrival=number, priority=1, max_tokens=8))
    core.step()
    core.add(make_request("b0", owner="b", arrival=1e3, max_tokens=8))
    core.step()
    assert not any(each.num_preemptions for each in core.scheduler.waiting)


def test_who_comes_too_late_takes_nobodys_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_of(a=SEATS)
    core.step()
    monkeypatch.setattr(Deadlines, "is_too_late", lambda self, sequence, *_: sequence.request.owner == "b")
    core.add(make_request("b0", owner="b", arrival=1e3, max_tokens=8))
    core.step()
    assert [each.num_preemptions for each in core.scheduler.running] == [0] * SEATS
    assert not core.scheduler.waiting, "it was given up"
