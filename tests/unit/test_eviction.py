"""The eviction policy: exact orders, and seconds against the least recently used on the same trace."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable

import pytest

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.kv_cache.eviction import EvictionPolicy
from service.engine.sequences.sequence import Sequence
from tests.fakes import make_request


def ranking(*entries: tuple[str, str, float]) -> EvictionPolicy:
    made = EvictionPolicy()
    for content, parent, worth in entries:
        made.add(content.encode(), parent.encode(), worth)
    assert made.is_sound()
    return made


def order(made: EvictionPolicy) -> str:
    found = []
    while made:
        found.append(made.pop().content.decode())
        assert made.is_sound()
    return "".join(found)


def test_the_cheapest_goes_first_and_of_equals_the_oldest() -> None:
    assert order(ranking(("a", "", 2), ("b", "", 1), ("c", "", 2), ("d", "", 1))) == "bdac"


def test_ends_go_before_what_lies_before_them() -> None:
    assert order(ranking(("a", "", 1), ("b", "a", 9), ("c", "b", 9), ("x", "", 5))) == "xcba"
    assert order(ranking(("c", "b", 9), ("b", "a", 9), ("a", "", 1))) == "cba", "in whatever order they came"


def test_what_comes_late_stands_higher() -> None:
    made = ranking(("dear", "", 5), ("a", "", 2), ("b", "", 4))
    assert [made.pop().content, made.pop().content] == [b"a", b"b"]
    made.add(b"c", b"", 2)
    assert order(made) == "dearc", "the level has risen to 4: 5 against 4 + 2"


def test_what_is_taken_out_uncovers_what_lay_before_it() -> None:
    made = ranking(("a", "", 1), ("b", "a", 1), ("c", "a", 1), ("x", "", 2))
    for content in (b"b", b"c", b"never here"):
        made.discard(content)
        assert made.is_sound()
    assert not made.is_before(b"a")
    assert order(made) == "ax"


def test_the_heap_stays_in_proportion() -> None:
    made = ranking(*((str(number), "", 1.0) for number in range(8)))
    for number in range(5000):
        made.discard(str(number % 8).encode())
        made.add(str(number % 8).encode(), b"", 1.0)
    assert len(made._ends) < 100
    assert made.is_sound()


def test_nothing_to_take() -> None:
    with pytest.raises(IndexError):
        EvictionPolicy().pop()


def chats(seed: int) -> Iterable[tuple[int, int]]:
    """(chat, tokens) by time: 150 chats, most of them short, few turns or many, gaps with a long tail."""
    rng = random.Random(seed)
    sizes = [(rng.choice((1, 1, 2, 3, 6)) * 4, rng.choice((1, 2, 4, 20)) * 4) for _ in range(150)]
    turns = [(rng.random() * 300, chat, 0, min(30, int(rng.paretovariate(0.9)))) for chat in range(150)]
    heapq.heapify(turns)
    while turns:
        now, chat, turn, count = heapq.heappop(turns)
        more, first = sizes[chat]
        yield chat, min(512, first + more * (turn + 1))
        if turn + 1 < count:
            heapq.heappush(turns, (now + 5 * rng.paretovariate(1.2), chat, turn + 1, count))


def recomputed(seconds: Callable[[int], float], worth: Callable[[int], float], seed: int) -> float:
    """Of all the blocks that had to be computed, under a pool of 150."""
    blocks = BlockManager(150, 4, worth=worth)
    total = 0.0
    for number, (chat, length) in enumerate(chats(seed)):
        tokens = [chat * 1000 + at for at in range(length + 1)]
        sequence = Sequence.of(make_request(str(number), tokens))
        prefix = blocks.match(sequence)
        assert blocks.allocate(sequence, len(tokens) - 4 * len(prefix), prefix)
        total += sum(seconds(index) for index in range(len(prefix), length // 4))
        blocks.mark_computed(sequence, sequence.num_remaining_tokens)
        blocks.free(sequence)
    return total


def test_less_is_computed_again_than_by_least_recently_used() -> None:
    """Where blocks cost the more the further behind they lie. Where all cost the same it is the same rule."""

    def dear(index: int) -> float:
        return 1 + index / 4

    ours = sum(recomputed(dear, dear, seed) for seed in range(3))
    lru = sum(recomputed(dear, lambda index: 1.0, seed) for seed in range(3))
    assert ours < 0.97 * lru
