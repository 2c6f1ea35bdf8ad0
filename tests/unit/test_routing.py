"""The prefix router: chats come back, fresh chats spread, and what is remembered is bounded."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from service.engine.client import routing
from service.engine.client.routing import BLOCK, BLOCKS_A_REQUEST, MOST_BLOCKS, PrefixRouter
from service.engine.protocol.messages import Request, SamplingParams


@dataclass(eq=False)
class Seat:
    in_flight: int = 0


def prompt(*token_ids: int, adapter: str = "", cache_salt: str = "") -> Request:
    return Request("any", token_ids, SamplingParams(max_tokens=1), adapter=adapter, cache_salt=cache_salt)


@pytest.mark.parametrize("system", [0, 1, BLOCK, 300, 1000])
@pytest.mark.parametrize("turn", [BLOCK, 40, 500])
def test_each_turn_goes_where_the_last_one_went(system: int, turn: int) -> None:
    """Whatever its length is, and however long the beginning is that it shares with other chats."""
    router, seats = PrefixRouter[Seat](), [Seat(), Seat(), Seat()]
    shared = range(system)
    chats = {number: [*shared, *range(10_000 * number, 10_000 * number + turn)] for number in range(1, 7)}
    homes = {}
    for number, tokens in chats.items():
        homes[number] = router.place(prompt(*tokens), seats)
        homes[number].in_flight += 1
    for seat in seats:
        seat.in_flight = 0
    for round_ in range(4):
        for number, tokens in chats.items():
            tokens += range(10_000 * number + 1000 * round_, 10_000 * number + 1000 * round_ + turn)
            assert router.place(prompt(*tokens), seats) is homes[number]


def test_fresh_chats_spread_once_all_have_had_the_beginning_that_they_share() -> None:
    router, seats = PrefixRouter[Seat](), [Seat(), Seat(), Seat()]
    for number in range(60):
        router.place(prompt(*range(100), *range(1000 * number, 1000 * number + 50)), seats).in_flight += 1
        counts = sorted(seat.in_flight for seat in seats)
        assert counts[-1] - counts[0] <= (1 if counts[0] > 1 else 100 // BLOCK // BLOCKS_A_REQUEST + 1)


@pytest.mark.parametrize("blocks", [2, 8, MOST_BLOCKS, 20 * MOST_BLOCKS])
def test_a_beginning_weighs_as_much_as_requests_in_flight(blocks: int) -> None:
    """Up to 16 requests; then another engine computes it too, and is as good as the first one."""
    router, seats = PrefixRouter[Seat](), [Seat(), Seat()]
    tokens = range(blocks * BLOCK)
    home = router.place(prompt(*tokens), seats)
    home.in_flight = min(blocks, MOST_BLOCKS) // BLOCKS_A_REQUEST
    assert router.place(prompt(*tokens), seats) is home
    home.in_flight += 1
    other = router.place(prompt(*tokens), seats)
    assert other is not home
    home.in_flight = 0
    assert router.place(prompt(*tokens), seats) is home, "both know it"
    other.in_flight = home.in_flight = 3
    router.place(prompt(*tokens, *range(40)), [other])
    assert router.place(prompt(*tokens, *range(80)), seats) is other, "which has had more of it"


def test_less_than_a_block_is_no_beginning() -> None:
    router, seats = PrefixRouter[Seat](), [Seat(), Seat()]
    for count, returns in ((BLOCK - 1, False), (BLOCK, True)):
        home = router.place(prompt(*range(count, 2 * count)), seats)
        home.in_flight += 1
        assert (router.place(prompt(*range(count, 2 * count)), seats) is home) == returns


@pytest.mark.parametrize("other", [prompt(*range(64), adapter="other"), prompt(*range(64), cache_salt="other")])
def test_adapters_and_salts_share_nothing(other: Request) -> None:
    router, seats = PrefixRouter[Seat](), [Seat(), Seat()]
    home = router.place(prompt(*range(64)), seats)
    home.in_flight = 1
    assert router.place(other, seats) is not home


def test_one_that_is_not_free_gets_nothing() -> None:
    router, seats = PrefixRouter[Seat](), [Seat(), Seat()]
    home = router.place(prompt(*range(64)), seats)
    rest = [seat for seat in seats if seat is not home]
    assert router.place(prompt(*range(64)), rest) is rest[0]


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MOST_REMEMBERED", 8)
    router, seats = PrefixRouter[Seat](), [Seat(), Seat()]
    kept = prompt(*range(BLOCK))
    others = (prompt(*range(1000 * number, 1000 * number + BLOCK)) for number in range(1, 100))
    router.place(kept, seats[1:])
    for _ in range(12):
        router.place(next(others), seats[:1])
        assert router.place(kept, seats) is seats[1], "asked again, so new again"
    for _ in range(8):
        router.place(next(others), seats[:1])
    assert router.place(kept, seats) is seats[0]
    assert len(router._known) == 8
