"""Blocks with exact ids and orders."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from service.engine.kv_cache.block_manager import BlockManager, BrokenBlocks
from service.engine.kv_cache.offload import Offload
from service.engine.kv_cache.window import NoWindowBlock, WindowPool
from service.engine.sequences.sequence import Sequence
from tests.fakes import make_request
from tests.property.test_blocks_machine import Unreserved


def sequence(id: str, token_ids: Iterable[int], salt: str = "") -> Sequence:
    return Sequence.of(make_request(id, token_ids, cache_salt=salt))


def computed(blocks: BlockManager, id: str, token_ids: Iterable[int], salt: str = "") -> Sequence:
    """A sequence whose tokens are all in the cache, found or computed."""
    made = sequence(id, token_ids, salt)
    prefix = blocks.match(made)
    assert blocks.allocate(made, made.num_tokens - len(prefix) * blocks.block_size, prefix)
    blocks.mark_computed(made, made.num_remaining_tokens)
    blocks.check_integrity()
    return made


def counts(blocks: BlockManager) -> tuple[int, int]:
    return blocks.num_free, blocks.num_cached


def test_blocks_are_given_in_order_and_only_as_needed() -> None:
    blocks = BlockManager(8, block_size=4)
    a, b = sequence("a", range(9)), sequence("b", range(20, 24))
    assert blocks.allocate(a, 9)
    assert blocks.allocate(b, 4)
    assert (a.block_table, b.block_table) == ([0, 1, 2], [3])
    blocks.mark_computed(a, 9)
    assert blocks.allocate(a, 3)  # 9 + 3 fill the third block
    assert a.block_table == [0, 1, 2]
    assert blocks.allocate(a, 4)
    assert a.block_table == [0, 1, 2, 4]
    blocks.check_integrity()


def test_a_shortage_changes_nothing() -> None:
    blocks = BlockManager(3, block_size=4)
    a, b = sequence("a", range(8)), sequence("b", range(8))
    assert blocks.allocate(a, 8)
    assert not blocks.allocate(b, 8)
    assert not blocks.allocate(b, 4, reserve=1)
    assert (b.block_table, b.num_computed_tokens, counts(blocks)) == ([], 0, (1, 0))
    assert blocks.allocate(b, 4)
    assert blocks.allocate(b, 3, reserve=5), "slots it has already need no block"
    blocks.check_integrity()


@pytest.mark.parametrize(("num_tokens", "matched"), [(3, []), (4, []), (5, [0]), (8, [0]), (9, [0, 1]), (30, [0, 1])])
def test_full_blocks_match_and_never_the_last_token(num_tokens: int, matched: list[int]) -> None:
    blocks = BlockManager(8, block_size=4)
    computed(blocks, "a", range(10))
    assert blocks.match(sequence("b", range(num_tokens))) == matched


def test_a_block_matches_only_once_it_is_computed() -> None:
    blocks = BlockManager(8, block_size=4)
    a, b = sequence("a", range(9)), sequence("b", range(9))
    assert blocks.allocate(a, 9)
    assert blocks.match(b) == []
    blocks.mark_computed(a, 5)
    assert blocks.match(b) == [0]
    blocks.mark_computed(a, 3)
    assert blocks.match(b) == [0, 1]


def test_a_match_depends_on_everything_before_it() -> None:
    blocks = BlockManager(8, block_size=4)
    computed(blocks, "a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert blocks.match(sequence("b", [1, 2, 3, 4, 5, 6, 7, 0, 9])) == [0]
    assert blocks.match(sequence("c", [0, 2, 3, 4, 5, 6, 7, 8, 9])) == []
    assert blocks.match(sequence("d", [1, 2, 3, 4, 5, 6, 7, 8, 9], salt="other owner")) == []


def test_a_shared_block_is_freed_by_its_last_user() -> None:
    blocks = BlockManager(8, block_size=4)
    a = computed(blocks, "a", range(10))
    b = computed(blocks, "b", range(10))
    assert (a.block_table, b.block_table) == ([0, 1, 2], [0, 1, 3])
    blocks.free(a)
    assert counts(blocks) == (5, 0), "block 2 is free, 0 and 1 are still used"
    blocks.free(b)
    assert counts(blocks) == (6, 2)
    blocks.free(b)
    blocks.check_integrity()
    assert (b.block_table, b.num_computed_tokens, counts(blocks)) == ([], 0, (6, 2))


def test_equal_content_computed_twice_is_found_once() -> None:
    blocks = BlockManager(8, block_size=4)
    a, b = sequence("a", range(5)), sequence("b", range(5))
    for made in (a, b):
        assert blocks.allocate(made, 5)
    for made in (a, b):
        blocks.mark_computed(made, 5)
    assert blocks.match(sequence("c", range(5))) == [0]
    blocks.free(a)
    blocks.free(b)
    assert counts(blocks) == (7, 1)
    blocks.check_integrity()


def test_free_blocks_go_before_cached_ones_and_tails_before_heads() -> None:
    blocks = BlockManager(6, block_size=4)
    a, b = computed(blocks, "a", range(12)), computed(blocks, "b", range(50, 58))  # 0 1 2, 3 4
    blocks.free(a)
    blocks.free(b)
    taker = sequence("taker", range(100, 124))
    assert blocks.allocate(taker, 24)
    assert taker.block_table == [5, 2, 1, 0, 4, 3]
    blocks.check_integrity()


def test_a_hit_makes_a_prefix_young_again() -> None:
    blocks = BlockManager(4, block_size=4)
    blocks.free(computed(blocks, "a", range(5)))  # block 0 cached, 1 free
    blocks.free(computed(blocks, "b", range(50, 55)))  # block 2 cached, 3 free
    blocks.free(computed(blocks, "a again", range(5)))
    taker = sequence("taker", range(100, 112))
    assert blocks.allocate(taker, 12)
    assert taker.block_table == [3, 1, 2], "the two free ones, then the older prefix"
    assert blocks.match(sequence("a", range(5))) == [0]


def test_a_matched_prefix_is_not_evicted_by_its_own_tail() -> None:
    blocks = BlockManager(3, block_size=4)
    blocks.free(computed(blocks, "a", range(12)))  # all three cached, 2 the oldest
    b = sequence("b", [*range(8), 90, 91, 92, 93])
    prefix = blocks.match(b)
    assert prefix == [0, 1]
    assert not blocks.allocate(b, 5, prefix), "one block is left behind the prefix, two are needed"
    assert counts(blocks) == (0, 3)
    assert blocks.allocate(b, 4, prefix)
    assert (b.block_table, b.num_computed_tokens) == ([0, 1, 2], 8)
    blocks.check_integrity()


def test_forgotten_blocks_never_match_again() -> None:
    blocks = BlockManager(4, block_size=4)
    a = computed(blocks, "a", range(9))
    blocks.forget(a)
    blocks.check_integrity()
    assert blocks.match(sequence("b", range(9))) == []
    blocks.free(a)
    assert counts(blocks) == (4, 0)


def test_forgotten_content_does_not_come_back_from_the_offload_file() -> None:
    blocks = BlockManager(3, block_size=4, offload=Offload(8))
    for first in (0, 100):
        blocks.free(computed(blocks, str(first), range(first, first + 9)))
    a = sequence("a", range(9))
    assert blocks.match(a) == [None, None], "both are in the file"
    assert blocks.allocate(a, 1, blocks.match(a))
    blocks.forget(a)
    blocks.free(a)
    assert blocks.match(sequence("b", range(9))) == []
    blocks.check_integrity()


def test_the_blocks_of_drafts_that_did_not_come_true_go_back() -> None:
    blocks = BlockManager(6, block_size=4)
    a = sequence("a", range(6))
    assert blocks.allocate(a, 6 + 9)
    blocks.mark_computed(a, 6)
    blocks.trim(a)
    assert (a.block_table, counts(blocks)) == ([0, 1], (4, 0))
    blocks.check_integrity()


def test_without_prefix_caching_nothing_is_kept() -> None:
    blocks = BlockManager(4, block_size=4, prefix_caching=False)
    a = computed(blocks, "a", range(9))
    assert blocks.match(sequence("b", range(9))) == []
    blocks.free(a)
    assert counts(blocks) == (4, 0)
    blocks.check_integrity()


def test_a_pool_needs_a_block() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockManager(0, 4)


class Leaky(BlockManager):
    """Its free() forgets the first block of a table."""

    def free(self, sequence: Sequence) -> None:
        del sequence.block_table[:1]
        super().free(sequence)


def test_a_leak_is_caught() -> None:
    blocks = Leaky(4, block_size=4)
    a = computed(blocks, "a", range(9))
    blocks.free(a)
    with pytest.raises(BrokenBlocks, match="free"):
        blocks.check_integrity()


def test_a_table_changed_behind_its_back_is_caught() -> None:
    blocks = BlockManager(4, block_size=4)
    a, b = computed(blocks, "a", range(9)), computed(blocks, "b", range(3))
    a.block_table[2] = b.block_table[0]
    with pytest.raises(BrokenBlocks):
        blocks.check_integrity()


def test_a_prefix_is_known_by_adapter() -> None:
    blocks = BlockManager(8, 4)

    def sequence(id: str, **fields: str) -> Sequence:
        return Sequence.of(make_request(id, range(9), **fields))

    one = sequence("a", adapter="one")
    assert blocks.allocate(one, 9)
    blocks.mark_computed(one, 9)
    assert len(blocks.match(sequence("b", adapter="one"))) == 2
    for other in ({}, {"adapter": "two"}, {"cache_salt": "one"}, {"adapter": "one", "cache_salt": "x"}):
        assert blocks.match(sequence("c", **other)) == []


def windowed(num_blocks: int = 12, places: int = 6, window: int = 6) -> tuple[BlockManager, WindowPool]:
    """Blocks of four tokens, and window blocks for what a token sees: its own and five before it. Nothing is
    reserved."""
    pool = Unreserved(places, window, 4, 1)
    return BlockManager(num_blocks, 4, windows=pool), pool


def test_a_sequence_keeps_window_blocks_for_what_its_next_token_sees() -> None:
    blocks, pool = windowed()
    a = sequence("a", range(40))
    for _ in range(5):
        assert blocks.allocate(a, 8)
        blocks.mark_computed(a, 8)
        blocks.check_integrity()
    assert a.block_table == list(range(10)) and len(a.window_table) == 10
    assert pool.first_seen(40) == 8, "tokens 35 to 39 lie in blocks 8 and 9"
    assert [pool.place_of(block) is not None for block in a.block_table[8:]] == [True, True]
    assert sum(pool.place_of(block) is not None for block in range(12)) == 6, "the others' places are used again"


def test_the_end_of_a_chat_is_found_again_and_its_middle_is_not() -> None:
    blocks, _ = windowed(places=4)
    a = computed(blocks, "a", range(12))
    for start in (12, 20):  # further turns
        blocks.allocate(a, 8)
        a.token_ids += range(start, start + 8)
        blocks.mark_computed(a, 8)
    blocks.free(a)
    assert blocks.match(sequence("b", range(29))) == [0, 1, 2, 3, 4, 5, 6]
    assert blocks.match(sequence("c", [*range(16), 99])) == [], "the window before token 16 is gone"
    assert blocks.match(sequence("b", range(29)), most=6) == [0, 1, 2, 3, 4, 5], "blocks 4 and 5 are there"
    assert blocks.match(sequence("b", range(29)), most=4) == [], "a cut that ends behind a gap"


def test_what_lost_its_window_blocks_is_replaced_by_what_has_them() -> None:
    blocks, _ = windowed(places=5)
    blocks.free(computed(blocks, "system", range(8)))
    blocks.free(computed(blocks, "other", range(100, 117)))
    assert blocks.match(sequence("a", range(9))) == []
    a = computed(blocks, "a", range(9))
    blocks.free(a)
    assert len(blocks.match(sequence("b", range(9)))) == 2
    blocks.check_integrity()


def test_more_than_the_window_blocks_is_a_defect() -> None:
    blocks, _ = windowed(places=2)
    with pytest.raises(NoWindowBlock):
        blocks.allocate(sequence("a", range(12)), 12)
    with pytest.raises(ValueError, match="a window of 0 tokens"):
        WindowPool(2, 0, 4, 1)
    with pytest.raises(ValueError, match="11 window blocks are too few for one sequence and 8 tokens a step"):
        WindowPool(11, 6, 4, 8)


def test_a_sequence_waits_for_the_window_blocks_that_its_prompt_may_need() -> None:
    blocks = BlockManager(100, 4, windows=WindowPool(26, 6, 4, 8))
    a, b, c, d = sequence("a", range(40)), sequence("b", range(40)), sequence("c", range(40)), sequence("d", range(10))
    assert [blocks.allocate(each, 8, ahead=32) for each in (a, b)] == [True, True], "ten each, and two for a step"
    assert not blocks.allocate(c, 8, ahead=32) and c.block_table == []
    assert not blocks.allocate(d, 8, ahead=2), "seven for a short one"
    blocks.free(a)
    assert blocks.allocate(d, 8, ahead=2)
    assert not blocks.allocate(c, 8, ahead=32)
    blocks.mark_computed(d, 8)
    assert [blocks.allocate(d, 2), blocks.allocate(d, 6), blocks.allocate(d, 10)] == [True, True, True], "ten at most"
    assert blocks.allocate(d, 60), "but for the tokens of a step"
    blocks.free(d)
    assert blocks.allocate(c, 8, ahead=32)
    blocks.check_integrity()


def test_a_sequence_that_grows_may_find_no_window_blocks() -> None:
    blocks = BlockManager(100, 4, windows=WindowPool(14, 6, 4, 8))
    a, b = sequence("a", range(2)), sequence("b", range(2))
    assert [blocks.allocate(each, 2) for each in (a, b)] == [True, True], "five each"
    assert blocks.allocate(a, 10), "and two more"
    assert not blocks.allocate(b, 10)
    blocks.free(a)
    assert blocks.allocate(b, 10)
    blocks.check_integrity()
