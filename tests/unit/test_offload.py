"""Slots with exact numbers, and what is worth one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.kv_cache.eviction import EvictionCandidate
from service.engine.kv_cache.offload import Offload
from service.engine.process.core import EngineCore
from service.engine.protocol.messages import FinishReason
from service.engine.scheduling.batching import BatchingPolicy
from service.engine.scheduling.scheduler import Scheduler
from service.engine.sequences.batch import Batch, BlockCopy, SampledToken
from tests.fakes import FakeClock, FakeRunner, expected_tokens, make_core, make_request, run_all, tokens_of
from tests.property.test_blocks_machine import superseded


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
    assert offload.take_copies() == (BlockCopy(1, 0), BlockCopy(3, 1)), "not worth a block, or no longer"


def test_a_copy_that_another_overwrites_is_made_only_if_something_reads_it() -> None:
    offload = Offload(1)
    for number, read in enumerate((False, True, False, False)):
        offload.save(ranked(str(number), worth=1 + number), number)
        if read:
            offload.hold(str(number).encode())
            offload.restore(str(number).encode(), 9)
        assert offload.is_sound()
    assert offload.num_pending == 3
    assert offload.take_copies() == (BlockCopy(1, 0), BlockCopy(9, 0, restores=True), BlockCopy(3, 0))
    offload.save(ranked("later", worth=9), 5)
    assert offload.take_copies() == (BlockCopy(5, 0),), "what was taken is made"


def test_past_its_limit_of_copies_a_step_saves_nothing_but_restores_what_is_held() -> None:
    offload = Offload(9)
    offload.save(ranked("a"), 1)
    offload.take_copies()
    offload.max_copies = 1
    offload.save(ranked("b"), 2)
    offload.save(ranked("c"), 3)
    offload.hold(b"a")
    offload.restore(b"a", 4)
    assert offload.take_copies() == (BlockCopy(2, 1), BlockCopy(4, 0, restores=True))
    assert b"c" not in offload and offload.is_sound()


def test_what_is_not_saved_is_not_in_the_forecast() -> None:
    offload = Offload(9)
    assert offload.forecast(0, 100) == pytest.approx(100 * offload.copy_seconds), "nothing is known"
    offload.observe(1, 0.1)
    for number in range(100):
        offload.save(ranked(str(number), worth=0.15), 1)
    assert offload.forecast(2, 100) == pytest.approx(0.2, rel=0.5), "it would not pay"
    assert offload.num_pending == 0


def test_a_disk_that_turns_slow_shows_at_once_and_one_slow_copy_is_soon_forgotten() -> None:
    offload = Offload(9)
    guess = offload.copy_seconds
    offload.observe(10, 0.01)
    assert guess > offload.copy_seconds == pytest.approx(0.001)
    offload.observe(92, 92 * 1.001)
    assert offload.copy_seconds == pytest.approx(0.921)
    for _ in range(10):
        offload.observe(1, 0.001)
    assert offload.copy_seconds < 0.002
    offload.observe(1, 0.901)
    assert offload.copy_seconds == pytest.approx(0.1, rel=0.03)
    assert Offload(0).copy_seconds == 0.0


def test_a_file_that_takes_nothing_is_left_alone_for_longer_each_time() -> None:
    """The fifth failure of a full disk costs no more than the first; the first success ends it."""
    offload, tries = Offload(9), list[int]()
    for number in range(3000):
        offload.save(ranked(str(number)), 1)
        for copy in offload.take_copies():
            tries.append(number)
            offload.observe(1, 0.001, failures=1)
            offload.lose(copy)
    assert [later - earlier for earlier, later in pairwise(tries)] == [65, 129, 257, 513, 1025]
    offload.observe(2, 0.002, failures=1)
    offload.save(ranked("at last"), 1)
    assert len(offload.take_copies()) == 1


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
    offload.take_copies()
    for _ in range(2):
        offload.lose(BlockCopy(1, 0))
    offload.drop(b"never here")
    assert (len(offload), b"a" in offload, offload.is_sound()) == (0, False, True)
    offload.save(ranked("b"), 2)
    offload.save(ranked("c"), 3)
    assert offload.take_copies() == (BlockCopy(2, 0), BlockCopy(3, 1)), "its slot is free again"


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


def test_a_restore_fails_whose_sequence_made_way_in_the_same_step() -> None:
    """Its blocks are cached by then, with a content that never came: they are free again."""
    offload, now = Offload(64), 0.0
    scheduler = Scheduler(BlockManager(8, 16, True, offload), BatchingPolicy(64, 8, 0.1), 2, 128)

    def step(failing: bool = False) -> None:
        nonlocal now
        now += 0.01
        batch = scheduler.schedule(now)
        failed = [copy for copy in batch.copies if copy.restores] if failing else []
        assert bool(failed) is failing
        if batch.copies:
            offload.observe(len(batch.copies), 1e-5, len(failed))
        batch = scheduler.without(batch, failed) if failed else batch
        scheduler.update(batch, [SampledToken(7) if each.samples else None for each in batch.scheduled], now)
        scheduler.check_integrity()

    def add(id: str, token_ids: list[int], max_tokens: int, owner: str) -> None:
        now_arrives = now + len(scheduler.waiting) * 1e-4
        scheduler.add(make_request(id, token_ids, max_tokens=max_tokens, arrival=now_arrives, owner=owner))

    for id, token_ids in (("known", [1] * 33), *((f"other {at}", [100 + at] * 100) for at in range(6))):
        add(id, token_ids, 1, "a")
        while scheduler.has_work:
            step()
    add("running", [50] * 10, 40, "a")
    step()
    step()
    add("known again", [1] * 33, 10, "a")
    add("light", [60] * 10, 10, "b")
    step(failing=True)
    add("large", [77] * 100, 2, "b")
    for _ in range(100):
        if scheduler.has_work:
            step()
    assert not scheduler.has_work


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
    core.scheduler.policy.observe = lambda work, seconds: seen.append(seconds)  # type: ignore[method-assign]
    core.add(make_request("b", range(50, 78)))
    core.step()
    assert core.stats.step_seconds >= 10.0
    assert seen == [0.0], "the cost line is of what is computed"
    run_all(core)
    ask(core, "c", range(80, 105))
    assert core.scheduler.blocks.offload.take_copies() == ()
    assert core.stats.blocks_offloaded < 6, "a disk so slow gets nothing more"


class TimedRunner(FakeRunner):
    """A step takes 20 ms and 0.1 ms a token, a copy 2 ms."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.copies: list[list[BlockCopy]] = []
        self._clock = clock

    def copy(self, copies: Iterable[BlockCopy]) -> list[BlockCopy]:
        self.copies.append(list(copies))
        self._clock.advance(0.002 * len(self.copies[-1]))
        return super().copy(self.copies[-1])

    def run(self, batch: Batch) -> list[SampledToken | None]:
        self._clock.advance(0.02 + 0.0001 * batch.num_tokens)
        return super().run(batch)


def a_full_house(num_blocks: int, disk_blocks: int) -> tuple[EngineCore, TimedRunner, FakeClock]:
    """All blocks cached, all of them worth a copy, and the machine known."""
    clock = FakeClock()
    runner = TimedRunner(clock)
    policy = BatchingPolicy(2048, 8, inter_token_latency_target=0.1)
    blocks = BlockManager(num_blocks, 4, offload=Offload(disk_blocks), worth=lambda index: 1.0 + index)
    core = EngineCore(runner, Scheduler(blocks, policy, 8, 100_000), clock)
    for number in range(4):
        size = num_blocks - 2 if number % 2 else 4 * (num_blocks - 2) // 5
        core.add(make_request(f"old {number}", [number] * 4 + [*range(4 * size - 4)], max_tokens=2))
        run_all(core)
    runner.copies.clear()
    return core, runner, clock


def test_an_admission_of_2000_blocks_copies_them_chunk_by_chunk_and_none_in_vain() -> None:
    core, runner, clock = a_full_house(num_blocks=2010, disk_blocks=512)
    core.add(make_request("long", [90, *range(4 * 2000 - 1)], max_tokens=1))
    seconds = []
    while core.has_work:
        started = clock.now
        core.step()
        seconds.append(clock.now - started)
        core.scheduler.check_integrity()
    assert max(seconds) <= 1.1, "whoever arrives meanwhile waits no longer than for any other step"
    assert sum(len(copies) for copies in runner.copies) > 1000
    assert max(len(copies) for copies in runner.copies) < 500
    assert sum(superseded(copies) for copies in runner.copies) == 0


@pytest.mark.parametrize("returns", [False, True], ids=["a new prompt", "an old one comes back"])
def test_a_running_stream_keeps_its_target_beside_copies(returns: bool) -> None:
    core, _, clock = a_full_house(num_blocks=510, disk_blocks=5000)
    core.add(make_request("old chat", [80, *range(1599)], max_tokens=1))
    run_all(core)
    core.add(make_request("other", [81, *range(1990)], max_tokens=1))
    run_all(core)
    core.add(make_request("stream", [85], max_tokens=10_000, is_streamed=True))
    core.step()
    restored = core.stats.restored_tokens_total
    core.add(request := make_request("long", [80, *range(1599), 8] if returns else [86, *range(1599)], max_tokens=1))
    gaps, answer = [], list[int]()
    while not answer:
        started = clock.now
        answer = tokens_of(output for output in core.step() if output.request_id == "long")
        gaps.append(clock.now - started)
    assert max(gaps) <= 0.105, "copies count"
    assert answer == expected_tokens(request)
    assert (core.stats.restored_tokens_total - restored > 1000) == returns


def test_a_forecast_counts_what_must_come_back() -> None:
    core, _, _ = a_full_house(num_blocks=510, disk_blocks=5000)
    core.add(make_request("old chat", [80, *range(1599)], max_tokens=1))
    run_all(core)
    core.add(make_request("other", [81, *range(1990)], max_tokens=1))
    run_all(core)
    core.add(make_request("again", [80, *range(1599), 8], max_tokens=1))
    backlog = core.scheduler.backlog()
    assert backlog.tokens < 100, "most of it is in the file"
    assert 0.4 < backlog.copy_seconds == pytest.approx(core.scheduler.policy.first_token_seconds(backlog), abs=0.1)


def test_a_block_costs_more_the_further_behind_it_lies() -> None:
    policy = BatchingPolicy(64, 8, 0.1)
    seconds = [policy.block_seconds(index, 16) for index in range(4)]
    assert seconds == sorted(seconds) and seconds[0] < seconds[3]
    assert sum(seconds) == pytest.approx(policy.recompute_seconds(64))
