"""Blocks under any order of calls: conserved, counted, and never holding what another sequence's tokens are not."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from service.engine.kv_cache.block_manager import BlockManager, Prefix
from service.engine.kv_cache.eviction import EvictionCandidate, EvictionPolicy
from service.engine.kv_cache.offload import Offload
from service.engine.kv_cache.window import WindowPool
from service.engine.sequences.batch import BlockCopy
from service.engine.sequences.sequence import Sequence
from tests.effort import drawn
from tests.fakes import make_request

BLOCKS, BLOCK_SIZE = 9, 4
WINDOW, WINDOW_BLOCKS = 6, 6
SETTINGS = settings(deadline=None, max_examples=drawn(40, 120), stateful_step_count=40)
UNSHRUNK = settings(
    SETTINGS, phases=[Phase.generate], database=None, print_blob=False, derandomize=True, max_examples=1000
)


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """All ones but for at most one token, so that prefixes are often equal."""
    token_ids = [1] * draw(st.integers(1, 20))
    other = draw(st.integers(0, 40))
    return [2 if position == other else token for position, token in enumerate(token_ids)]


class BlocksMachine(RuleBasedStateMachine):
    """Mirrors what was written to every block, as the KV tensors would have it. A step's copies are made together,
    before anything is written."""

    manager: type[BlockManager] = BlockManager
    offload: type[Offload] = Offload
    num_disk_blocks = 0
    windows: type[WindowPool] | None = None
    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        offload = self.offload(self.num_disk_blocks)
        self.pool = self.windows(WINDOW_BLOCKS, WINDOW, BLOCK_SIZE, 1) if self.windows else None
        self.blocks = self.manager(BLOCKS, BLOCK_SIZE, True, offload, lambda index: 1.0 + index, self.pool)
        self.disk_blocks: dict[int, tuple[str, list[int]]] = {}
        self.windows_on_disk: dict[int, tuple[str, list[int]]] = {}
        self.windows_written: dict[int, tuple[str, list[int]]] = {}
        self.parents: dict[bytes, bytes] = {}
        self.written: dict[int, tuple[str, list[int]]] = {}
        self.tables: dict[str, Sequence] = {}
        self.count = 0

    @rule(target=live, token_ids=prompts(), salt=st.sampled_from(["", "owner"]))
    def arrive(self, token_ids: list[int], salt: str) -> Sequence:
        self.count += 1
        return Sequence.of(make_request(str(self.count), token_ids, cache_salt=salt))

    @rule(sequence=live, reserve=st.integers(0, 2), cut=st.integers(0, 5), chunk=st.integers(0, 20))
    def admit(self, sequence: Sequence, reserve: int, cut: int = 5, chunk: int = 20) -> None:
        """With the first `cut` blocks that are known, slots for a chunk of the rest, and the promise of all others."""
        if sequence.block_table:
            return
        prefix = self.blocks.match(sequence, cut)
        needed = sequence.num_tokens - len(prefix) * BLOCK_SIZE
        chunk = min(chunk, needed)
        self.parents |= {child: parent for parent, child in pairwise(sequence.block_hashes)}
        if not self.has_window_blocks(sequence, prefix, chunk):
            return
        before, known = (self.blocks.num_free, self.blocks.num_cached), set(self.blocks._block_of)
        if self.blocks.allocate(sequence, chunk, prefix, reserve, needed - chunk):
            self.tables[sequence.request.id] = sequence
            assert sequence.num_remaining_tokens == needed >= 1
            assert self.blocks.num_available >= reserve
            self.check_evicted(known - set(self.blocks._block_of))
        else:
            assert before == (self.blocks.num_free, self.blocks.num_cached)
            assert not sequence.block_table

    @rule(sequence=live, cut=st.integers(0, 5), chunk=st.integers(0, 20))
    def advance(self, sequence: Sequence, cut: int, chunk: int) -> None:
        """What was promised is there, whoever has come in the meantime, and what has become known is taken over."""
        self.compute(sequence, 20)
        if sequence.request.id not in self.tables or not sequence.num_remaining_tokens:
            return
        prefix = self.blocks.match(sequence, cut)
        left = sequence.num_remaining_tokens - len(prefix) * BLOCK_SIZE
        if not self.has_window_blocks(sequence, prefix, min(chunk, left)):
            return
        assert self.blocks.allocate(sequence, min(chunk, left), prefix, ahead=left - min(chunk, left))

    @rule(number=st.integers(0, 4) | st.just(BLOCKS))
    def limit_copies(self, number: int) -> None:
        self.blocks.offload.max_copies = number

    @rule(prompts=st.lists(st.tuples(prompts(), st.sampled_from(["", "owner"])), min_size=1, max_size=4))
    def pass_through(self, prompts: list[tuple[list[int], str]]) -> None:
        """Whole lives, one after the other: what they leave presses out what is cached."""
        for token_ids, salt in prompts:
            sequence = self.arrive(token_ids, salt)
            self.admit(sequence, 0)
            self.compute(sequence, len(token_ids))
            self.tables_hold_their_own_tokens()
            self.preempt(sequence)

    @rule(starts=st.lists(st.integers(3, 50), min_size=2, max_size=3, unique=True), size=st.integers(8, 20))
    def grow_side_by_side(self, starts: list[int], size: int) -> None:
        """Prompts that share nothing: each begins, then each goes on to its end."""
        sequences = [self.arrive([start] * size, "") for start in starts]
        for sequence in sequences:
            self.admit(sequence, 0, 5, 1)
        for sequence in sequences:
            self.advance(sequence, 5, 20)
        for sequence in sequences:
            self.preempt(sequence)

    def has_window_blocks(self, sequence: Sequence, prefix: Prefix, num_tokens: int) -> bool:
        """Whether the pool, which is smaller here than what may run, has room for what the sequences then see."""
        if self.pool is None:
            return True
        seen = {block for each in self.tables.values() for block in self.seen_by(each)}
        start = sequence.num_computed_tokens + len(prefix) * BLOCK_SIZE
        new = self.blocks.blocks_for(start + num_tokens) - len(sequence.block_table) - len(prefix)
        seen |= {block for block in prefix if block is not None}
        return len(seen) + max(0, new) + sum(1 for block in prefix if block is None) <= WINDOW_BLOCKS

    def seen_by(self, sequence: Sequence) -> list[int]:
        return sequence.block_table[self.blocks._window_starts[sequence.request.id] :]

    def check_evicted(self, evicted: set[bytes]) -> None:
        """Ends only."""
        assert not evicted & {self.parents.get(ranked.content) for ranked in self.blocks._cached}

    def copy(self) -> None:
        copies = self.blocks.take_copies()
        assert not superseded(copies), "a copy that is overwritten before anything reads it"
        for copy in copies:
            if copy.restores:
                assert copy.disk_block in self.disk_blocks, "a disk block that holds nothing"
                owner, tokens = self.disk_blocks[copy.disk_block]
                self.written[copy.block] = owner, list(tokens)
                if copy.window_block is not None:
                    owner, tokens = self.windows_on_disk.get(copy.disk_block, ("nothing", []))
                    self.windows_written[copy.window_block] = owner, list(tokens)
                continue
            self.disk_blocks[copy.disk_block] = self.written[copy.block]
            self.windows_on_disk.pop(copy.disk_block, None)
            if copy.window_block is not None:
                self.windows_on_disk[copy.disk_block] = self.windows_written[copy.window_block]

    @rule(sequence=live, num_tokens=st.integers(1, 20))
    def compute(self, sequence: Sequence, num_tokens: int) -> None:
        slots = len(sequence.block_table) * BLOCK_SIZE - sequence.num_computed_tokens
        num_tokens = min(num_tokens, sequence.num_remaining_tokens, slots)
        if num_tokens <= 0:
            return
        self.copy()
        for position in range(sequence.num_computed_tokens, sequence.num_computed_tokens + num_tokens):
            block = sequence.block_table[position // BLOCK_SIZE]
            if position % BLOCK_SIZE == 0:
                self.written[block] = (sequence.request.cache_salt, [])
            self.written[block][1].append(sequence.token_ids[position])
            if self.pool is not None:
                place = sequence.window_table[position // BLOCK_SIZE]
                assert place != self.pool.scratch, "no window block for what is computed"
                self.windows_written[place] = self.written[block][0], list(self.written[block][1])
        self.blocks.mark_computed(sequence, num_tokens)

    @rule(sequence=live, token=st.sampled_from([1, 2]))
    def decode(self, sequence: Sequence, token: int) -> None:
        if not sequence.block_table or sequence.num_remaining_tokens or not self.has_window_blocks(sequence, (), 1):
            return
        if self.blocks.allocate(sequence, 1):
            sequence.token_ids.append(token)

    @rule(sequence=live)
    def preempt(self, sequence: Sequence) -> None:
        self.tables.pop(sequence.request.id, None)
        self.blocks.free(sequence)

    @rule(sequence=consumes(live), suspect=st.booleans())
    def end(self, sequence: Sequence, suspect: bool) -> None:
        if suspect:
            self.blocks.forget(sequence)
        self.preempt(sequence)

    @invariant()
    def conserved(self) -> None:
        self.blocks.check_integrity()
        used = {block for sequence in self.tables.values() for block in sequence.block_table}
        assert self.blocks.num_free + self.blocks.num_cached + len(used) == BLOCKS

    @invariant()
    def tables_hold_their_own_tokens(self) -> None:
        if self.blocks.offload.num_pending:
            return
        for sequence in self.tables.values():
            held = [self.written[block] for block in sequence.block_table if block in self.written]
            tokens = [token for _, block in held for token in block][: sequence.num_computed_tokens]
            assert tokens == sequence.token_ids[: sequence.num_computed_tokens]
            full = held[: sequence.num_computed_tokens // BLOCK_SIZE]
            assert {salt for salt, _ in full} <= {sequence.request.cache_salt}
            if self.pool is not None:
                self.check_window(sequence)

    def check_window(self, sequence: Sequence) -> None:
        """What the next token sees is in the window blocks."""
        assert len(sequence.window_table) == len(sequence.block_table)
        end = sequence.num_computed_tokens
        for position in range(max(0, end - WINDOW + 1), end):
            place = sequence.window_table[position // BLOCK_SIZE]
            assert place in self.windows_written, "no window block for what the next token sees"
            owner, tokens = self.windows_written[place]
            assert owner == sequence.request.cache_salt
            first = position // BLOCK_SIZE * BLOCK_SIZE
            assert tokens[: position - first + 1] == sequence.token_ids[first : position + 1]


class Unreserved(WindowPool):
    """With fewer window blocks than what may run can need: the machine looks whether there are enough."""

    def __init__(self, num_blocks: int, window: int, block_size: int, step_tokens: int) -> None:
        super().__init__(100, window, block_size, step_tokens)
        self.num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._unreserved = 10**6


class Leaky(BlockManager):
    """Forgets the head block of whatever it frees."""

    def free(self, sequence: Sequence) -> None:
        del sequence.block_table[:1]
        super().free(sequence)


class Saltless(BlockManager):
    """Shares between owners."""

    def match(self, sequence: Sequence, most: int = sys.maxsize) -> Prefix:
        super().match(sequence, most)
        twin = Sequence.of(make_request("twin", sequence.token_ids))
        return super().match(twin, most)


class Headless(BlockManager):
    """Takes what is worth least, whatever lies behind it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._cached = Unchained()


class Unchained(EvictionPolicy):
    def add(self, content: bytes, parent: bytes, worth: float) -> None:
        super().add(content, b"", worth)


class Disordered(BlockManager):
    """Reads before it writes."""

    def take_copies(self) -> tuple[BlockCopy, ...]:
        return tuple(sorted(super().take_copies(), key=lambda copy: not copy.restores))


class Hasty(BlockManager):
    """Writes before it reads."""

    def take_copies(self) -> tuple[BlockCopy, ...]:
        return tuple(sorted(super().take_copies(), key=lambda copy: copy.restores))


class Faithless(BlockManager):
    """Promises, and gives it to whoever comes."""

    def _promise(self, sequence: Sequence, num_blocks: int) -> None:
        pass


class Wasteful(Offload):
    """Makes copies that another overwrites."""

    def restore(self, content: bytes, block: int, window_block: int | None = None) -> None:
        super().restore(content, block, window_block)
        self._unread.clear()

    def save(self, ranked: EvictionCandidate, block: int, window_block: int | None = None) -> None:
        super().save(ranked, block, window_block)
        self._unread.clear()


class Blind(BlockManager):
    """Uses a prefix whatever has become of its window blocks."""

    def usable(self, sequence: Sequence, prefix: Prefix, most: int) -> Prefix:
        return prefix[:most]


class Short(Unreserved):
    """Lets the first block that a token sees go a block too soon."""

    def first_seen(self, position: int) -> int:
        return super().first_seen(position + BLOCK_SIZE)


class Greedy(Unreserved):
    """Never lets go of what was seen once."""

    def release(self, block: int) -> None:
        pass


class Forgetful(Offload):
    """Says that window blocks are in the file that were not saved."""

    def save(self, ranked: EvictionCandidate, block: int, window_block: int | None = None) -> None:
        super().save(ranked, block, None)
        if ranked.content in self:
            self.windows.add(ranked.content)


def superseded(copies: Iterable[BlockCopy]) -> int:
    """Of one step's copies, those into a disk block that another overwrites before anything has read it."""
    unread, count = set[int](), 0
    for copy in copies:
        if copy.restores:
            unread.discard(copy.disk_block)
        else:
            count += copy.disk_block in unread
            unread.add(copy.disk_block)
    return count


def machine_of(
    broken: type[BlockManager],
    disk_blocks: int = 0,
    broken_offload: type[Offload] = Offload,
    pool: type[WindowPool] | None = None,
) -> type[BlocksMachine]:
    class Machine(BlocksMachine):
        manager = broken
        offload = broken_offload
        num_disk_blocks = disk_blocks
        windows = pool

    return Machine


@pytest.mark.parametrize("pool", [None, Unreserved])
@pytest.mark.parametrize("disk_blocks", [0, 3, 20])
def test_blocks(disk_blocks: int, pool: type[WindowPool] | None) -> None:
    run_state_machine_as_test(machine_of(BlockManager, disk_blocks, pool=pool), settings=SETTINGS)


@pytest.mark.parametrize(
    ("planted", "disk_blocks"), [(Leaky, 0), (Saltless, 0), (Headless, 0), (Faithless, 0), (Disordered, 3), (Hasty, 3)]
)
def test_a_planted_defect_is_found(planted: type[BlockManager], disk_blocks: int) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_of(planted, disk_blocks), settings=UNSHRUNK)


def test_a_copy_that_is_overwritten_unread_is_found() -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_of(BlockManager, 2, Wasteful), settings=UNSHRUNK)


@pytest.mark.parametrize(
    ("planted", "disk_blocks", "offload", "pool"),
    [
        (Blind, 0, Offload, Unreserved),
        (BlockManager, 0, Offload, Short),
        (BlockManager, 0, Offload, Greedy),
        (BlockManager, 20, Forgetful, Unreserved),
    ],
)
def test_a_planted_defect_of_windows_is_found(
    planted: type[BlockManager], disk_blocks: int, offload: type[Offload], pool: type[WindowPool]
) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_of(planted, disk_blocks, offload, pool), settings=UNSHRUNK)
