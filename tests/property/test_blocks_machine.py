"""Blocks under any order of calls: conserved, counted, and never holding what another sequence's tokens are not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from service.engine.batch import BlockCopy
from service.engine.block_manager import BlockManager, Prefix
from service.engine.eviction import EvictionPolicy
from service.engine.offload import Offload
from service.engine.sequence import Sequence
from tests.fakes import make_request

BLOCKS, BLOCK_SIZE = 9, 4
SETTINGS = settings(deadline=None, max_examples=120, stateful_step_count=40)
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
    """Mirrors what was written to every block, as the KV tensors would have it."""

    manager: type[BlockManager] = BlockManager
    num_disk_blocks = 0
    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        offload = Offload(self.num_disk_blocks)
        self.blocks = self.manager(BLOCKS, BLOCK_SIZE, offload=offload, worth=lambda index: 1.0 + index)
        self.disk_blocks: dict[int, tuple[str, list[int]]] = {}
        self.parents: dict[bytes, bytes] = {}
        self.written: dict[int, tuple[str, list[int]]] = {}
        self.tables: dict[str, Sequence] = {}
        self.count = 0

    @rule(target=live, token_ids=prompts(), salt=st.sampled_from(["", "owner"]))
    def arrive(self, token_ids: list[int], salt: str) -> Sequence:
        self.count += 1
        return Sequence.of(make_request(str(self.count), token_ids, cache_salt=salt))

    @rule(sequence=live, reserve=st.integers(0, 2))
    def admit(self, sequence: Sequence, reserve: int) -> None:
        if sequence.block_table:
            return
        prefix = self.blocks.match(sequence)
        needed = sequence.num_tokens - len(prefix) * BLOCK_SIZE
        self.parents |= {child: parent for parent, child in pairwise(sequence.block_hashes)}
        before, known = (self.blocks.num_free, self.blocks.num_cached), set(self.blocks._block_of)
        if self.blocks.allocate(sequence, needed, prefix, reserve):
            self.tables[sequence.request.id] = sequence
            assert sequence.num_remaining_tokens == needed >= 1
            assert self.blocks.num_available >= reserve
            self.check_evicted(known - set(self.blocks._block_of))
            self.copy()
        else:
            assert before == (self.blocks.num_free, self.blocks.num_cached)
            assert not sequence.block_table

    @rule(prompts=st.lists(st.tuples(prompts(), st.sampled_from(["", "owner"])), min_size=1, max_size=4))
    def pass_through(self, prompts: list[tuple[list[int], str]]) -> None:
        """Whole lives, one after the other: what they leave presses out what is cached."""
        for token_ids, salt in prompts:
            sequence = self.arrive(token_ids, salt)
            self.admit(sequence, 0)
            self.compute(sequence, len(token_ids))
            self.tables_hold_their_own_tokens()
            self.preempt(sequence)

    def check_evicted(self, evicted: set[bytes]) -> None:
        """Ends only."""
        assert not evicted & {self.parents.get(ranked.content) for ranked in self.blocks._cached}

    def copy(self) -> None:
        for copy in self.blocks.take_copies():
            if copy.restores:
                owner, tokens = self.disk_blocks[copy.disk_block]
                self.written[copy.block] = owner, list(tokens)
            else:
                self.disk_blocks[copy.disk_block] = self.written[copy.block]

    @rule(sequence=live, num_tokens=st.integers(1, 20))
    def compute(self, sequence: Sequence, num_tokens: int) -> None:
        num_tokens = min(num_tokens, sequence.num_remaining_tokens)
        if not sequence.block_table or not num_tokens:
            return
        for position in range(sequence.num_computed_tokens, sequence.num_computed_tokens + num_tokens):
            block = sequence.block_table[position // BLOCK_SIZE]
            if position % BLOCK_SIZE == 0:
                self.written[block] = (sequence.request.cache_salt, [])
            self.written[block][1].append(sequence.token_ids[position])
        self.blocks.mark_computed(sequence, num_tokens)

    @rule(sequence=live, token=st.sampled_from([1, 2]))
    def decode(self, sequence: Sequence, token: int) -> None:
        if sequence.block_table and not sequence.num_remaining_tokens and self.blocks.allocate(sequence, 1):
            sequence.token_ids.append(token)
            self.copy()

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
        for sequence in self.tables.values():
            held = [self.written[block] for block in sequence.block_table if block in self.written]
            tokens = [token for _, block in held for token in block][: sequence.num_computed_tokens]
            assert tokens == sequence.token_ids[: sequence.num_computed_tokens]
            full = held[: sequence.num_computed_tokens // BLOCK_SIZE]
            assert {salt for salt, _ in full} <= {sequence.request.cache_salt}


class Leaky(BlockManager):
    """Forgets the head block of whatever it frees."""

    def free(self, sequence: Sequence) -> None:
        del sequence.block_table[:1]
        super().free(sequence)


class Saltless(BlockManager):
    """Shares between owners."""

    def match(self, sequence: Sequence) -> Prefix:
        twin = Sequence.of(make_request("twin", sequence.token_ids))
        return super().match(twin)


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


def machine_of(broken: type[BlockManager], disk_blocks: int = 0) -> type[BlocksMachine]:
    class Machine(BlocksMachine):
        manager = broken
        num_disk_blocks = disk_blocks

    return Machine


@pytest.mark.parametrize("disk_blocks", [0, 3, 20])
def test_blocks(disk_blocks: int) -> None:
    run_state_machine_as_test(machine_of(BlockManager, disk_blocks), settings=SETTINGS)


@pytest.mark.parametrize(
    ("planted", "disk_blocks"), [(Leaky, 0), (Saltless, 0), (Headless, 0), (Disordered, 3), (Hasty, 3)]
)
def test_a_planted_defect_is_found(planted: type[BlockManager], disk_blocks: int) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_of(planted, disk_blocks), settings=UNSHRUNK)
