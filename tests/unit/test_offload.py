"""Slots with exact numbers, and what is worth one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from service.engine.batch import BlockCopy
from service.engine.batching import BatchingPolicy
from service.engine.block_manager import BlockManager
from service.engine.core import EngineCore
from service.engine.eviction import EvictionCandidate
from service.engine.messages import FinishReason
from service.engine.offload import Offload
from tests.fakes import FakeClock, FakeRunner, expected_tokens, make_core, make_request, run_all, tokens_of


def ranked(content: str, worth: float = 1.0, parent: str = "") -> EvictionCandidate:
    return EvictionCandidate(content.encode(), parent.encode(), worth, worth, 0)


def test_a_content_goes_and_comes_back_and_keeps_its_disk_block() -> None:
    offload = Offload(2)
    offload.save(ranked("a"), 7)
    offload.save(ranked("b"), 8)
    assert offload.take_copies() == (BlockCopy(7, 0), BlockCopy(8, 1))
    offload.hold(b"a")
    offload.restore(b"a", 5)
    offload.save(ranked("a"), 5)
    assert offload.take_copies() == (BlockCopy(5, 0, restores=True),), "what it holds need not be written again"
    assert (len(offload), offload.num_restored, offload.take_copies()) == (2, 1, ())
    assert offload.is_sound()


def test_a_full_file_gives_up_the_end_that_is_worth_least() -> None:
    offload = Offload(2)
    for content, worth, block in (("dear", 5, 1), ("cheap", 1, 2), ("other", 2, 3), ("cheaper", 0.5, 4)):
        offload.save(ranked(content, worth), block)
        assert offload.is_sound()
    assert b"dear" in offload and b"other" in offload
    assert offload.take_copies() == (BlockCopy(1, 0), BlockCopy(2, 1), BlockCopy(3, 1)), "not worth a block"


def test_what_is_held_is_nobody_elses() -> None:
    offload = Offload(1)
    offload.save(ranked("a", 1), 1)
    offload.hold(b"a")
    offload.save(ranked("b", 9), 2)
    offload.restore(b"a", 3)
    assert offload.take_copies() == (BlockCopy(1, 0), BlockCopy(3, 0, restores=True))


def test_only_what_takes_longer_to_compute_than_there_and_back() -> None:
    offload = Offload(9)
    offload.save(ranked("first", 0.001), 1)
    offload.observe(copies=4, seconds=0.4)
    offload.save(ranked("cheap", 0.19), 2)
    offload.save(ranked("dear", 0.21, parent="before"), 3)
    offload.save(ranked("before", 0.1), 4)
    assert [copy.block for copy in offload.take_copies()] == [1, 3, 4], "what lies before a offloaded one goes as well"
    for attempt in range(4000):
        offload.save(ranked(f"again {attempt}", 0.15), 5)
    assert offload.take_copies(), "one slow copy is no verdict for ever"


def test_what_is_lost_is_dropped() -> None:
    offload = Offload(2)
    offload.save(ranked("a"), 1)
    for _ in range(2):
        offload.lose(BlockCopy(1, 0))
    offload.drop(b"never here")
    assert (len(offload), b"a" in offload, offload.is_sound()) == (0, False, True)
    offload.save(ranked("b"), 2)
    offload.save(ranked("c"), 3)
    assert offload.take_copies()[1:] == (BlockCopy(2, 0), BlockCopy(3, 1)), "its slot is free again"


def test_without_slots_nothing_is_kept() -> None:
    offload = Offload(0)
    offload.save(ranked("a", 1e9), 1)
    assert (len(offload), offload.take_copies()) == (0, ())


def offloading(runner: FakeRunner, clock: FakeClock | None = None, disk_blocks: int = 30) -> EngineCore:
    blocks = BlockManager(8, 4, offload=Offload(disk_blocks))
    return make_core(runner, clock, blocks=blocks)


def ask(core: EngineCore, id: str, token_ids: Iterable[int]) -> tuple[list[int], int]:
    """Its tokens, and how many of its prompt's were cached."""
    request = make_request(id, token_ids)
    core.add(request)
    outputs = run_all(core)[id]
    assert tokens_of(outputs) == expected_tokens(request)
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    return tokens_of(outputs), outputs[-1].num_cached_tokens


def test_a_chat_that_was_pressed_out_comes_back() -> None:
    core = offloading(FakeRunner())
    ask(core, "a", range(17))
    ask(core, "b", range(50, 78))
    assert ask(core, "a again", range(17))[1] == 16
    assert core.stats.restored_tokens_total == 16
    assert core.stats.blocks_offloaded == len(core.scheduler.blocks.offload) > 0
    core.scheduler.check_integrity()


@pytest.mark.parametrize("restores", [True, False], ids=["reading fails", "writing fails"])
def test_a_disk_that_fails_costs_time_alone(restores: bool) -> None:
    runner = FakeRunner(fails=lambda copy: copy.restores is restores)
    core = offloading(runner)
    ask(core, "a", range(17))
    ask(core, "b", range(50, 78))
    assert ask(core, "a again", range(17))[1] == 0
    assert core.stats.restored_tokens_total == 0
    core.scheduler.check_integrity()
    assert ask(core, "a once more", range(17))[1] == 16, "what was computed instead is cached"


def test_two_that_wait_for_the_same_blocks_both_compute_them() -> None:
    core = offloading(FakeRunner(fails=lambda copy: copy.restores))
    ask(core, "a", range(9))
    ask(core, "b", range(50, 78))
    for id in ("one", "two"):
        core.add(make_request(id, [*range(9), 30]))
    outputs = run_all(core)
    assert [tokens_of(outputs[id]) for id in ("one", "two")] == [
        expected_tokens(make_request(id, [*range(9), 30])) for id in ("one", "two")
    ]


class SlowDisk(FakeRunner):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def copy(self, copies: Iterable[BlockCopy]) -> list[BlockCopy]:
        copies = list(copies)
        self._clock.advance(10.0 * len(copies))
        return super().copy(copies)


def test_copies_are_no_computing_but_take_part_of_the_step() -> None:
    clock = FakeClock()
    core = offloading(SlowDisk(clock), clock)
    ask(core, "a", range(17))
    seen = []
    core.scheduler.policy.observe = lambda work, seconds, ends=0: seen.append(seconds)  # type: ignore[method-assign]
    core.add(make_request("b", range(50, 78)))
    core.step()
    assert core.stats.step_seconds >= 10.0
    assert seen == [0.0], "the cost line is of what is computed"
    run_all(core)
    ask(core, "c", range(80, 105))
    assert core.scheduler.blocks.offload.take_copies() == ()
    assert core.stats.blocks_offloaded < 6, "a disk so slow gets nothing more"


def test_a_block_costs_more_the_further_behind_it_lies() -> None:
    policy = BatchingPolicy(64, 8, 0.1)
    seconds = [policy.block_seconds(index, 16) for index in range(4)]
    assert seconds == sorted(seconds) and seconds[0] < seconds[3]
    assert sum(seconds) == pytest.approx(policy.recompute_seconds(64))
