"""How soon a full batch has a free seat, by what answers took. Each step takes 20 ms, and 1 ms a token."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from service.engine.scheduling.turnover import Turnover
from service.engine.sequences.batch import Scheduled
from service.engine.sequences.sequence import Sequence
from tests.fakes import make_request

CONSTANT, TOKEN = 0.02, 0.001


class Batch:
    """Sequences that run; a step gives each one token, and ends those that have `length`."""

    def __init__(self) -> None:
        self.turnover = Turnover()
        self.running: list[Sequence] = []

    def step(self, length: int, prompts: Iterable[int] = ()) -> int:
        """Takes in a new sequence for each of the `prompts`, all of whose tokens are computed in this step."""
        new = [Scheduled(Sequence.of(make_request("", [1] * tokens)), tokens) for tokens in prompts]
        items = [*(Scheduled(each, 1) for each in self.running), *new]
        tokens = sum(item.num_tokens for item in items)
        self.turnover.charge(items, CONSTANT + TOKEN * tokens, CONSTANT)
        for item in items:
            item.sequence.num_steps += 1
        ended = [item.sequence for item in items if item.sequence.num_steps >= length]
        for sequence in ended:
            self.turnover.end(sequence)
        self.running = [item.sequence for item in items if item.sequence not in ended]
        return len(ended)

    def seat_seconds(self, seats: int) -> float:
        return self.turnover.seat_seconds(seats, CONSTANT, self.running)


def expected(seats: int, steps: int, prompt: int = 1) -> float:
    return steps * CONSTANT / seats + TOKEN * (prompt + steps - 1)


def test_nothing_is_known_before_an_answer_has_ended() -> None:
    batch = Batch()
    for _ in range(9):
        batch.step(10, [5] if not batch.running else [])
        assert batch.seat_seconds(4) == 0.0
    batch.step(10)
    assert batch.seat_seconds(4) == pytest.approx(expected(4, 10, 5))


@pytest.mark.parametrize("every", [1, 50], ids=["one after the other", "all together"])
def test_a_seat_is_free_at_the_rate_of_ends(every: int) -> None:
    """Also while a batch fills, and while it drains: there ends come without newcomers."""
    batch, seen = Batch(), []
    for number in range(300):
        newcomers = [30] * every if number % every == 0 and number < 200 else []
        batch.step(50, newcomers)
        seen.append(batch.seat_seconds(50))
    assert not batch.running
    assert [each for each in seen if each] == pytest.approx([expected(50, 50, 30)] * len([e for e in seen if e]))


def test_answers_that_came_alone_say_how_long_a_crowd_of_them_takes() -> None:
    batch = Batch()
    for _ in range(1000):
        batch.step(50, [1] if not batch.running else [])
    assert batch.seat_seconds(1) == pytest.approx(expected(1, 50))
    assert batch.seat_seconds(40) == pytest.approx(expected(40, 50))


def test_answers_that_become_longer_are_known_before_they_end() -> None:
    batch = Batch()
    for number in range(500):
        batch.step(10, [1] * 8 if number % 10 == 0 else [])
    assert batch.seat_seconds(8) == pytest.approx(expected(8, 10))
    batch.step(1000, [1] * 8)
    for _ in range(499):
        batch.step(1000)
    assert batch.seat_seconds(8) > 5 * expected(8, 10)


def test_who_left_the_queue_says_nothing() -> None:
    batch = Batch()
    for number in range(50):
        batch.step(10, [1] * 8 if number % 10 == 0 else [])
    for _ in range(100):
        batch.turnover.end(Sequence.of(make_request("", [1])))
    assert batch.seat_seconds(8) == pytest.approx(expected(8, 10))
